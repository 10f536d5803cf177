// HostWindows: windows between processes. A peer on the same host is reached by stores into its
// shared memory, as a GPU reaches another over NVLink; any other one through a proxy: what is put in
// its rooms is kept here until the signal, and goes over a lane.
//
// Threads: one at a time, but for acquire(), which any may call.
#pragma once

#include <memory>
#include <vector>

#include "comm/state.h"
#include "moe/host/proxy.h"
#include "moe/window.h"
#include "transport/host/doorbell.h"
#include "transport/host/segments.h"

namespace braid::moe {

class HostWindows final : public Windows {
 public:
  /// Collective over the comm's group; under the comm's lock. Errors as share_segments() and
  /// connect_rdma(); unavailable where ranks are on several hosts and the comm has no rdma link.
  static Result<std::unique_ptr<HostWindows>> connect(comm::Comm::State& state,
                                                      const WindowLayout& layout,
                                                      Deadline deadline);

  std::byte* own() override { return window_of(rank_); }
  std::byte* room(int peer, uint64_t offset, uint64_t bytes) override;
  void signal(int peer, uint64_t line, std::span<const std::byte> words, uint64_t number) override;
  uint64_t acquire(uint64_t line) const override;
  void cut(int peer) override;
  Status health(int peer) const override;

  /// The bell that peers and the proxy ring when something has come.
  transport::Doorbell& bell() { return *bell_; }
  /// Bytes that left for other ranks: rows and lines, however they are reached.
  uint64_t sent_bytes(int peer) const { return sent_bytes_[static_cast<size_t>(peer)]; }

 private:
  HostWindows(transport::Segments segments, std::unique_ptr<transport::Doorbell> bell, int rank)
      : segments_(std::move(segments)),
        bell_(std::move(bell)),
        rank_(rank),
        sent_bytes_(static_cast<size_t>(segments_.size())) {}
  std::byte* window_of(int rank) const { return segments_.of(rank); }

  transport::Segments segments_;
  std::unique_ptr<transport::Doorbell> bell_;
  const int rank_;
  std::vector<uint64_t> sent_bytes_;
  std::unique_ptr<Proxy> proxy_;  // null where all ranks share the host; ends first
};

}  // namespace braid::moe
