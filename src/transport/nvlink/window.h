// Window: one span of device memory per rank, all of the same size, each mapped by every rank of
// the node. A rank's offset means the same place in every rank's span.
//
// Memory of cudaMalloc and cuMemAlloc travels between processes as a CUDA IPC handle of the whole
// allocation; ranks that are threads of one process use each other's addresses. The mapping keeps a
// peer's memory alive, so a peer that is gone cannot make our writes land in somebody else's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "group/group.h"
#include "sys/cuda/api.h"

namespace braid::nvlink {

class Window {
 public:
  Window() = default;
  Window(sys::Cuda& cuda, uint64_t bytes, std::vector<sys::DevicePtr> by_rank,
         std::vector<sys::DevicePtr> opened)
      : cuda_(&cuda), bytes_(bytes), by_rank_(std::move(by_rank)), opened_(std::move(opened)) {}
  Window(Window&& other) noexcept;
  Window& operator=(Window&& other) noexcept;
  /// Closes the peers' mappings. The caller sees to it that no work still uses them.
  ~Window();

  uint64_t bytes() const { return bytes_; }
  bool is_open() const { return !by_rank_.empty(); }
  /// Where `rank`'s span begins, as this device addresses it.
  sys::DevicePtr at(int rank) const { return by_rank_[static_cast<size_t>(rank)]; }
  /// Whether another rank is a thread of this process: its span is not a mapping of ours.
  bool has_peer_in_process() const { return opened_.size() + 1 < by_rank_.size(); }

 private:
  void close();
  sys::Cuda* cuda_ = nullptr;
  uint64_t bytes_ = 0;
  std::vector<sys::DevicePtr> by_rank_;
  std::vector<sys::DevicePtr> opened_;  // bases to close
};

struct WindowRequest {
  std::string topic;  // names the exchange and the object in messages
  int device = 0;     // of the current context
  sys::DevicePtr memory = 0;
  uint64_t bytes = 0;
  Status refusal = {};  // not ok: this rank has no memory to share; every rank gets this Status
};

/// Collective. Every rank gets the same verdict. Errors: the refusal of the lowest rank that has
/// one, naming it; invalid_argument when sizes differ; unsupported for memory that CUDA IPC cannot
/// share (cudaMallocAsync, VMM); driver; the group's Status when an exchange fails.
Result<Window> share_window(group::Group& group, sys::Cuda& cuda, const WindowRequest& request,
                            Deadline deadline);

}  // namespace braid::nvlink
