#include "sys/verbs/registration.h"

#include <unistd.h>

#include <cerrno>

#include "sys/error_text.h"

namespace braid::sys::verbs {
namespace {

// Local rights let reads and messages land; remote ones let peers write, and read.
int access_of(Access access) {
  const int local = IBV_ACCESS_LOCAL_WRITE;
  if (access == Access::kLocalSource) return local;
  return local | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
}

ibv_mr* try_once(const Library& library, ibv_pd* protection, const FabricMemory& memory,
                 int access) {
  const auto address = reinterpret_cast<uint64_t>(memory.base);
  errno = 0;
  if (memory.dmabuf_fd < 0)
    return library.reg_mr_iova2(protection, memory.base, memory.bytes, address,
                                static_cast<unsigned>(access));
  if (library.reg_dmabuf_mr == nullptr) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  return library.reg_dmabuf_mr(protection, memory.dmabuf_offset, memory.bytes, address,
                               memory.dmabuf_fd, access);
}

bool is_refusal(int error) {
  return error == EINVAL || error == EOPNOTSUPP || error == EPROTONOSUPPORT;
}

// Relaxed ordering lets a write's parts pass each other on PCIe: without it large NICs stay below
// half of their rate. The completion that tells of a write is ordered behind all of them, which is
// all that anybody here relies on.
ibv_mr* try_relaxed_first(const Library& library, ibv_pd* protection, const FabricMemory& memory,
                          int access) {
  ibv_mr* mr = try_once(library, protection, memory, access | IBV_ACCESS_RELAXED_ORDERING);
  if (mr != nullptr || !is_refusal(errno)) return mr;
  return try_once(library, protection, memory, access);
}

Status failure(const FabricMemory& memory, int error) {
  const std::string what =
      memory.cuda_device < 0 ? "host memory" : fmt::format("memory of GPU {}", memory.cuda_device);
  const std::string text = fmt::format("registering {} bytes of {} at {}: {}", memory.bytes, what,
                                       static_cast<void*>(memory.base), error_text(error));
  if (is_refusal(error) && (memory.cuda_device >= 0 || memory.dmabuf_fd >= 0))
    return unsupported("{}", text);
  if (error == ENOMEM)
    return exhausted("{}: the limit of locked memory (ulimit -l) may be too low", text);
  if (error == EFAULT || error == EINVAL) return invalid_argument("{}", text);
  return driver_error("{}", text);
}

// With this kernel module a GPU's addresses can be registered as the host's can. Without it the
// kernel would take them for addresses of the host's.
bool has_peer_memory() {
  return access("/sys/module/nvidia_peermem", F_OK) == 0 ||
         access("/sys/kernel/mm/memory_peers/nv_mem/version", F_OK) == 0;
}

Status check_request(const FabricMemory& memory) {
  if (memory.base == nullptr || memory.bytes == 0)
    return invalid_argument("registering {} bytes at {}: nothing to register", memory.bytes,
                            static_cast<void*>(memory.base));
  if (memory.cuda_device >= 0 && memory.dmabuf_fd < 0 && !has_peer_memory())
    return unsupported(
        "registering {} bytes of memory of GPU {}: that takes a dma-buf, or the "
        "kernel module nvidia_peermem",
        memory.bytes, memory.cuda_device);
  return {};
}

}  // namespace

Result<MemoryRegion> register_with(const Library& library, ibv_pd* protection,
                                   const FabricMemory& memory) {
  BRAID_RETURN_IF_ERROR(check_request(memory));
  ibv_mr* mr = try_relaxed_first(library, protection, memory, access_of(memory.access));
  // A file that was mapped for reading can still be written from.
  if (mr == nullptr && memory.access == Access::kLocalSource && memory.cuda_device < 0 &&
      (errno == EFAULT || errno == EACCES || errno == EPERM))
    mr = try_relaxed_first(library, protection, memory, 0);
  if (mr == nullptr) return failure(memory, errno);
  return MemoryRegion(library, mr);
}

// No descriptor is called -1: who takes dma-bufs says so of this one, who does not says that.
bool takes_dmabufs(const Library& library, ibv_pd* protection) {
  if (library.reg_dmabuf_mr == nullptr) return false;
  ibv_mr* mr = library.reg_dmabuf_mr(protection, 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE);
  if (mr != nullptr) library.dereg_mr(mr);
  return mr != nullptr || (errno != EOPNOTSUPP && errno != EPROTONOSUPPORT);
}

}  // namespace braid::sys::verbs
