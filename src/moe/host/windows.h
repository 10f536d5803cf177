// HostWindows: windows between processes. A peer on the same host is reached by stores into its
// shared memory, as a GPU reaches another over NVLink; any other one through a proxy: what is put in
// its rooms is kept here until the signal, and goes over a lane.
//
// Threads: one at a time, but for acquire(), which any may call.
#pragma once

#include <memory>
#include <vector>

#include "comm/state.h"
#include "fabric/node_map.h"
#include "moe/host/proxy.h"
#include "moe/window.h"
#include "transport/host/doorbell.h"
#include "transport/host/segments.h"

namespace braid::moe {

class HostWindows final : public Windows {
 public:
  /// Collective over the comm's group; under the comm's lock. Errors as share_segments() and
  /// connect_rdma(); unavailable where ranks are on several hosts and the comm has no rdma link.
  /// `uses_rails`: where there are as many ranks on each node, rows go along rails and are landed by
  /// node mates (proxy.h); else every rank is reached directly.
  static Result<std::unique_ptr<HostWindows>> connect(comm::Comm::State& state,
                                                      const WindowLayout& layout, bool uses_rails,
                                                      Deadline deadline);

  std::byte* own() override { return window_of(rank_); }
  const std::byte* window(int peer) const override { return window_of(peer); }
  std::byte* room(int peer, uint64_t offset, uint64_t bytes) override;
  void put(std::span<const Place> places, std::span<const std::byte> bytes) override;
  void signal(int peer, uint64_t line, std::span<const std::byte> words, uint64_t number) override;
  uint64_t acquire(uint64_t line) const override;
  void cut(int peer) override;
  Status health(int peer) const override;

  /// The bell that peers and the proxy ring when something has come.
  transport::Doorbell& bell() { return *bell_; }
  /// Bytes that left for other ranks: rows and lines that were put into the windows of ranks on this
  /// node, and what was given to the lane, which along rails is all for one rank of each node.
  uint64_t sent_bytes(int peer) const;
  /// How ranks lie on nodes where rows go along rails; one node of all where they do not.
  const fabric::NodeMap& nodes() const { return nodes_; }

 private:
  HostWindows(transport::Segments segments, std::unique_ptr<transport::Doorbell> bell, int rank)
      : segments_(std::move(segments)),
        bell_(std::move(bell)),
        rank_(rank),
        nodes_{1, segments_.size()},
        sent_bytes_(static_cast<size_t>(segments_.size())) {}
  void start_proxy(std::unique_ptr<transport::Lane> lane, const WindowLayout& layout,
                   comm::Comm::State& state);
  std::byte* window_of(int rank) const { return segments_.of(rank); }

  transport::Segments segments_;
  std::unique_ptr<transport::Doorbell> bell_;
  const int rank_;
  fabric::NodeMap nodes_;
  std::vector<uint64_t> sent_bytes_;
  std::vector<Place> far_;        // of put(), kept for its memory
  std::unique_ptr<Proxy> proxy_;  // null where all ranks share the host; ends first
};

}  // namespace braid::moe
