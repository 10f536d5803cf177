#include <sys/prctl.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "sys/error_text.h"
#include "sys/peer_memory/api.h"

namespace braid::sys {
namespace {

// The kernel takes 1024 pieces a call (IOV_MAX).
constexpr size_t kMostPieces = 1024;
using Pieces = std::array<iovec, kMostPieces>;

Status refused(const char* call, int process, int error) {
  const auto text = fmt::format("{} of process {}: {}", call, process, error_text(error));
  if (error == ESRCH) return {Code::kPeerLost, text};
  if (error == EPERM || error == ENOSYS) return {Code::kUnavailable, text};
  if (error == EFAULT) return {Code::kInvalidArgument, text};
  return {Code::kDriver, text};
}

using Call = ssize_t (*)(pid_t, const iovec*, unsigned long, const iovec*, unsigned long,
                         unsigned long);

// The kernel may stop early, at a piece's end or within one; what is left is asked for again, and
// the call that can move nothing says why.
Status copy_all(Call call, const char* name, int process, std::span<const PeerCopy> copies) {
  Pieces local, peer;
  size_t at = 0;
  uint64_t skip = 0;  // of copies[at], already moved
  while (at < copies.size()) {
    const size_t count = std::min(kMostPieces, copies.size() - at);
    for (size_t i = 0; i < count; ++i) {
      const PeerCopy& c = copies[at + i];
      const uint64_t from = i == 0 ? skip : 0;
      local[i] = {c.local + from, c.bytes - from};
      peer[i] = {reinterpret_cast<void*>(c.peer_address + from), c.bytes - from};
    }
    const ssize_t moved = call(process, local.data(), count, peer.data(), count, 0);
    if (moved < 0) return refused(name, process, errno);
    auto left = static_cast<uint64_t>(moved);
    for (; at < copies.size() && left >= copies[at].bytes - skip; ++at, skip = 0)
      left -= copies[at].bytes - skip;
    skip += left;
  }
  return {};
}

}  // namespace

Status read_peer_memory(int process, std::span<const PeerCopy> copies) {
  return copy_all(::process_vm_readv, "process_vm_readv", process, copies);
}

Status write_peer_memory(int process, std::span<const PeerCopy> copies) {
  return copy_all(::process_vm_writev, "process_vm_writev", process, copies);
}

void admit_peers() {
  // Fails where there is no Yama, which then forbids nothing.
  (void)::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
}

}  // namespace braid::sys
