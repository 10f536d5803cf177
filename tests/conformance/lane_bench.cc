// Measures one-way latency and throughput of the host lanes between ranks that are threads of this
// process, to choose slot size and depth. Not part of the test run:
//   cmake --build DIR --target lane_bench
//   lane_bench [ranks [rate_gbps]]
// Prints one line per lane, slot and depth: GB/s out of every rank (all ranks send to all at once,
// each received byte is copied out as a collective would) and half the round trip of an 8-byte
// piece between ranks 0 and 1.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "support/thread_group.h"
#include "transport/connect.h"
#include "transport/lane.h"

namespace braid::transport {
namespace {

constexpr uint64_t kTotalBytes = 64 << 20;
constexpr int kRoundTrips = 3000;

Deadline soon() { return Deadline::after_ns(60'000'000'000); }

struct Setup {
  bool is_staged = false;
  bool is_multicast = false;
  double rate_gbps = 0;
  HostLaneOptions options;
};

std::unique_ptr<Lane> open(const Setup& setup, group::Group& group, Doorbell& doorbell) {
  auto lane =
      (setup.is_staged ? connect_staged : connect_shm)(group, doorbell, setup.options, soon());
  if (!lane.ok()) std::exit((std::fprintf(stderr, "%s\n", lane.status().to_string().c_str()), 1));
  if (setup.rate_gbps == 0) return std::move(*lane);
  return paced(std::move(*lane), {.rate_gbps = setup.rate_gbps}, group.size());
}

/// Sends `total` to every peer and copies everything that arrives into `sink`.
double flood(Lane& lane, group::Group& group, const Setup& setup, uint64_t total) {
  const int rank = group.rank(), size = group.size();
  const std::vector<std::byte> source(total, std::byte{1});
  std::vector<std::byte> sink(total * static_cast<uint64_t>(size));
  const uint64_t piece = lane.caps().max_piece_bytes, pieces = (total + piece - 1) / piece;
  std::vector<uint64_t> sent(static_cast<size_t>(size)), got(static_cast<size_t>(size));
  const auto part = [&](uint64_t i) { return std::min(piece, total - i * piece); };
  if (!group.barrier("flood", soon()).ok()) std::exit(1);
  const int64_t begin = now_ns();
  for (bool done = false; !done;) {
    bool moved = lane.progress();
    done = true;
    for (int hop = 1; hop < size; ++hop) {
      const auto peer = static_cast<size_t>((rank + hop) % size);
      const PeerSet to =
          setup.is_multicast ? PeerSet::all_but(rank, size) : PeerSet::only(static_cast<int>(peer));
      if (sent[peer] < pieces &&
          lane.try_put(to, {}, {source.data() + sent[peer] * piece, part(sent[peer])}) ==
              PutResult::kAccepted) {
        if (setup.is_multicast)
          for (auto& count : sent) ++count;
        else
          ++sent[peer];
        moved = true;
      }
      while (lane.available(static_cast<int>(peer)) > 0) {
        const Arrival arrival = lane.at(static_cast<int>(peer), 0);
        std::memcpy(sink.data() + peer * total + got[peer] * piece, arrival.payload.data(),
                    arrival.payload.size());
        lane.release(static_cast<int>(peer), 1);
        ++got[peer], moved = true;
      }
      done &= sent[peer] == pieces && got[peer] == pieces;
    }
    if (!moved) sched_yield();
  }
  const auto ns = static_cast<double>(now_ns() - begin);
  if (!group.barrier("flooded", soon()).ok()) std::exit(1);
  return static_cast<double>(total) * (size - 1) / ns;
}

int64_t ping_pong(Lane& lane, group::Group& group) {
  const int rank = group.rank(), peer = 1 - rank;
  const std::byte payload[8] = {};
  const auto receive = [&] {
    while (lane.available(peer) == 0) lane.progress();
    lane.release(peer, 1);
  };
  const auto send = [&] {
    while (lane.try_put(PeerSet::only(peer), {}, payload) != PutResult::kAccepted) lane.progress();
  };
  if (!group.barrier("ping", soon()).ok()) std::exit(1);
  const int64_t begin = now_ns();
  for (int i = 0; rank < 2 && i < kRoundTrips; ++i) {
    if (rank == 0) send();
    receive();
    if (rank == 1) send();
  }
  return (now_ns() - begin) / kRoundTrips / 2;
}

void measure(int ranks, const Setup& setup) {
  const uint64_t total = kTotalBytes / static_cast<uint64_t>(ranks);
  test::run_thread_ranks(ranks, [&](group::Group& group) {
    auto doorbell = Doorbell::connect(group, soon());
    if (!doorbell.ok()) std::exit(1);
    auto lane = open(setup, group, **doorbell);
    flood(*lane, group, setup, total);
    const double gbps = flood(*lane, group, setup, total);
    const int64_t latency_ns = ranks == 2 && setup.rate_gbps == 0 ? ping_pong(*lane, group) : 0;
    if (group.rank() == 0)
      std::printf(
          "%s%s ranks %d slot %u KiB depth %u rate %.2f: %.3f GB/s sent per rank, one way %ld ns\n",
          lane->name().c_str(), setup.is_multicast ? " multicast" : "", ranks,
          setup.options.slot_bytes >> 10, setup.options.depth_pieces, setup.rate_gbps, gbps,
          static_cast<long>(latency_ns));
    (void)group.barrier("close", soon());
  });
}

}  // namespace
}  // namespace braid::transport

int main(int argc, char** argv) {
  using braid::transport::Setup;
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  const double rate = argc > 2 ? std::atof(argv[2]) : 0;
  for (const uint32_t slot_kib : {16, 64, 256})
    for (const uint32_t depth : {4, 8, 16}) {
      Setup setup;
      setup.rate_gbps = rate;
      setup.options.slot_bytes = slot_kib << 10;
      setup.options.depth_pieces = depth;
      measure(ranks, setup);
      setup.is_staged = true;
      measure(ranks, setup);
      setup.is_multicast = true;
      if (ranks > 2) measure(ranks, setup);
    }
}
