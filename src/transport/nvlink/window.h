// Window: one span of device memory per rank, all of the same size, each mapped by every rank of
// the node. A rank's offset means the same place in every rank's span.
//
// Memory of cudaMalloc and cuMemAlloc travels between processes as a CUDA IPC handle of the whole
// allocation; ranks that are threads of one process use each other's addresses. Memory of
// cuMemCreate travels as the allocations that are mapped under the span, one file descriptor each
// (handover.h); a peer maps them one after the other in addresses of its own. Either mapping keeps
// a peer's memory alive, so a peer that is gone cannot make our writes land in somebody else's; of
// threads only what they lend does (lent_memory.h).
//
// Whoever owns memory of cuMemCreate may map something else at its addresses at any time. The
// windows still lead to the old memory: is_current() says whether that is what our addresses mean.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "group/group.h"
#include "sys/cuda/api.h"
#include "transport/nvlink/backing.h"
#include "transport/nvlink/lent_memory.h"

namespace braid::nvlink {

class Window {
 public:
  Window() = default;
  struct Parts {
    std::vector<sys::DevicePtr> by_rank;
    std::vector<sys::DevicePtr> opened;  // bases to close
    std::vector<MappedParts> mapped;     // of peers' memory of cuMemCreate
    Backing own;                         // of ours
    std::vector<Hold> borrowed;          // their memory, where they lend it
  };
  Window(sys::Cuda& cuda, uint64_t bytes, Parts parts)
      : cuda_(&cuda), bytes_(bytes), parts_(std::move(parts)) {}
  Window(Window&& other) noexcept;
  Window& operator=(Window&& other) noexcept;
  /// Closes the peers' mappings. The caller sees to it that no work still uses them.
  ~Window();

  uint64_t bytes() const { return bytes_; }
  bool is_open() const { return !parts_.by_rank.empty(); }
  /// Where `rank`'s span begins, as this device addresses it.
  sys::DevicePtr at(int rank) const { return parts_.by_rank[static_cast<size_t>(rank)]; }
  /// Whether our span is memory of cuMemCreate.
  bool is_mapped_memory() const { return !parts_.own.empty(); }
  /// Then: whether these `bytes` of our span are still the memory that the peers' windows lead to.
  /// Some calls to the driver for each allocation under them.
  bool is_current(sys::DevicePtr memory, uint64_t bytes) const {
    return parts_.own.is_mapped_at(memory, bytes);
  }

 private:
  void close();
  sys::Cuda* cuda_ = nullptr;
  uint64_t bytes_ = 0;
  Parts parts_;
};

struct WindowRequest {
  std::string topic;  // names the exchange and the object in messages
  int device = 0;     // of the current context
  sys::DevicePtr memory = 0;
  uint64_t bytes = 0;
  Status refusal = {};  // not ok: this rank has no memory to share; every rank gets this Status
};

/// Collective. Every rank gets the same verdict. Errors: the refusal of the lowest rank that has
/// one, naming it; invalid_argument when sizes differ; unsupported for memory that neither
/// CUDA IPC nor a file descriptor can share (cudaMallocAsync; cuMemCreate without that handle
/// type); driver; the group's Status when an exchange fails.
Result<Window> share_window(group::Group& group, sys::Cuda& cuda, const WindowRequest& request,
                            Deadline deadline);

}  // namespace braid::nvlink
