#include "bindings/nccl/core/race_track.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "base/units.h"
#include "bindings/nccl/core/enqueue.h"
#include "coll/device/collectives.h"
#include "group/agree.h"

namespace braid::nccl {

namespace {

constexpr uint64_t kElementBytes = 2;  // bfloat16, what most programs send
constexpr auto kBetweenPolls = std::chrono::microseconds(20);
// As between a program's calls: many round trips of a network. A lap has two: 96 ms for a size that braid has won
// in bursts (kSingleLaps), of the race's time as everything else.
constexpr auto kPause = std::chrono::milliseconds(2);
// As between a layer's calls, in which a TCP connection comes to rest: 1 MiB both ways over loopback by BBR took
// 0.7 to 1.2 ms in the mean behind 2 ms, 1.1 to 2.8 behind 25 (docs/measured/nodes.md). 600 ms of kRestedLaps.
constexpr auto kLongPause = std::chrono::milliseconds(25);

constexpr Heat kBursts{Calls::kBursts, kLeastGain};
constexpr std::array kHeats = {kBursts, kBursts};
constexpr Heat kBurstsNotLost{Calls::kBursts, kNoLoss};
constexpr std::array kHeatsInWindows = {kBurstsNotLost, kBurstsNotLost,
                                        Heat{Calls::kBursts, kLeastGain, true}};
constexpr std::array kHeatsOverNodes = {Heat{Calls::kBursts, kLeastGainOverNodes},
                                        Heat{Calls::kSingles, kLeastGainOverNodes},
                                        Heat{Calls::kRestedSingles, kLeastGainOverNodes}};

/// What outlives a track whose work does not end. Never given back: whoever uses it may wake up.
struct Left {
  sys::OwnedStream stream;
  std::array<sys::OwnedEvent, 3> events;
};

}  // namespace

Status Entrants::enqueue_ours(const braid_nccl_call& call) const {
  return nodes != nullptr ? nodes->enqueue(call) : enqueue(device, call);
}

Status Entrants::barrier(sys::Stream stream) const {
  return nodes != nullptr ? nodes->barrier(stream) : coll::device::barrier(device, stream);
}

Status judge_codes(const std::vector<std::vector<int64_t>>& all, const Status& own) {
  const auto is_refusal = [](const auto& rank) {
    return rank[0] == static_cast<int64_t>(Code::kUnsupported);
  };
  if (std::all_of(all.begin(), all.end(), is_refusal)) return own;
  if (!own.ok() && own.code() != Code::kUnsupported) return own;
  for (size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank][0] != 0) return unavailable("rank {} could not time NCCL's calls", rank);
  return {};
}

RaceTrack::~RaceTrack() {
  if (!is_left_) return;
  if (const auto is_done = for_.device.cuda().is_done(stream_.get());
      is_done.ok() && is_done.value())
    return;
  Left* const left = new Left;
  memory_.leave();
  left->stream = std::move(stream_);
  left->events = std::move(events_);
}

Status RaceTrack::take_memory() {
  sys::Cuda& cuda = for_.device.cuda();
  BRAID_ASSIGN_OR_RETURN(
      stream_, sys::own<sys::OwnedStream>(cuda, cuda.create_stream(sys::StreamPriority::kNormal)));
  for (auto& event : events_) {
    BRAID_ASSIGN_OR_RETURN(
        event, sys::own<sys::OwnedEvent>(cuda, cuda.create_event(sys::EventTiming::kOn)));
  }
  sizes_ = for_.sizes;
  is_left_ = true;  // it is filled
  return memory_.take(sizes_, stream_.get());
}

Status RaceTrack::prepare() {
  const Status own = take_memory();
  begin_ns_ = now_ns();
  const int64_t number = own.ok() ? static_cast<int64_t>(sizes_.num()) : 0;
  BRAID_ASSIGN_OR_RETURN(const auto all, group::exchange_numbers(for_.group, "nccl race memory",
                                                                 {&number, 1}, deadline_));
  for (const std::vector<int64_t>& of_rank : all)
    sizes_.end =
        std::min(sizes_.end, sizes_.begin + static_cast<size_t>(std::max<int64_t>(of_rank[0], 0)));
  if (sizes_.num() == 0) return {};
  BRAID_ASSIGN_OR_RETURN(const bool is_open,
                         memory_.open(for_.group, kRacedBytes[sizes_.end - 1], deadline_));
  if (!is_open) sizes_.end = sizes_.begin;
  return {};
}

std::span<const Heat> RaceTrack::heats() const {
  if (for_.nodes != nullptr) return kHeatsOverNodes;
  return for_.in_windows ? std::span<const Heat>(kHeatsInWindows) : kHeats;
}

Result<Lap> RaceTrack::run(size_t i, int num_calls, size_t heat) {
  const Burst burst{kRacedBytes[i], num_calls, is_in_place(heat), heats()[heat].calls};
  // In turn: what one of them leaves behind, a warm cache or a hot GPU, meets both alike.
  real_first_ = !real_first_ || burst.is_of_singles();
  Status own;
  int64_t took_ns[2] = {0, 0};  // braid, NCCL
  for (const bool is_real : {real_first_, !real_first_}) {
    if (!own.ok()) break;
    const Result<int64_t> took = burst_ns(burst, is_real);
    own = took.status();
    if (took.ok()) took_ns[is_real ? 1 : 0] = took.value();
  }
  // The others may be waiting for what this rank has not enqueued.
  if (!own.ok() && own.code() != Code::kUnsupported) for_.group.report(own);
  const int64_t told[] = {static_cast<int64_t>(own.code()), took_ns[1], took_ns[0],
                          now_ns() - begin_ns_};
  BRAID_ASSIGN_OR_RETURN(const auto all,
                         group::exchange_numbers(for_.group, "nccl race lap", told, deadline_));
  BRAID_RETURN_IF_ERROR(judge_codes(all, own));
  Lap lap;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    lap.ranks.push_back(
        {static_cast<double>(all[rank][1]) / 1e3, static_cast<double>(all[rank][2]) / 1e3});
    lap.elapsed_ns = std::max(lap.elapsed_ns, all[rank][3]);
  }
  return lap;
}

/// unsupported: NCCL refused the first of them, so nothing of it lies anywhere.
Status RaceTrack::enqueue_burst(const Burst& burst, bool is_real) {
  const braid_nccl_call call = call_of(burst);
  for (int k = 0; k < burst.num_calls; ++k) {
    const Status own = is_real ? for_.real_calls.run(for_.real, call) : for_.enqueue_ours(call);
    if (own.ok()) continue;
    return k == 0 && is_real ? own : unavailable("call {}: {}", k, own.message());
  }
  return {};
}

Result<int64_t> RaceTrack::burst_ns(const Burst& burst, bool is_real) {
  sys::Cuda& cuda = for_.device.cuda();
  const sys::Stream stream = stream_.get();
  const size_t num_timed = burst.is_of_singles() ? 2 : 1;
  is_left_ = true;  // until it is seen to be through
  for_.device.order().expect_call();
  BRAID_RETURN_IF_ERROR(for_.barrier(stream));
  if (burst.is_of_singles()) BRAID_RETURN_IF_ERROR(pause(burst.calls));
  BRAID_RETURN_IF_ERROR(cuda.record(events_[0].get(), stream));
  Status refused;
  for (size_t k = 1; k <= num_timed; ++k) {
    const Status enqueued = enqueue_timed(burst, is_real, events_[k].get());
    if (!enqueued.ok() && enqueued.code() != Code::kUnsupported) return enqueued;
    if (!enqueued.ok()) refused = enqueued;
  }
  BRAID_RETURN_IF_ERROR(wait_for(events_[num_timed].get()));
  is_left_ = false;
  BRAID_RETURN_IF_ERROR(refused);
  int64_t slowest_ns = 0;
  for (size_t k = 1; k <= num_timed; ++k) {
    BRAID_ASSIGN_OR_RETURN(const int64_t took_ns,
                           cuda.elapsed_ns(events_[k - 1].get(), events_[k].get()));
    slowest_ns = std::max(slowest_ns, took_ns);
  }
  return slowest_ns;
}

/// When all that is enqueued is through.
Status RaceTrack::pause(Calls calls) {
  BRAID_RETURN_IF_ERROR(for_.device.cuda().record(events_[0].get(), stream_.get()));
  BRAID_RETURN_IF_ERROR(wait_for(events_[0].get()));
  std::this_thread::sleep_for(calls == Calls::kRestedSingles ? kLongPause : kPause);
  return {};
}

// A rank that NCCL refused comes to the barrier, too: the others may have been refused alike.
Status RaceTrack::enqueue_timed(const Burst& burst, bool is_real, sys::Event end) {
  Status own = enqueue_burst(burst, is_real);
  if (!own.ok() && own.code() != Code::kUnsupported) return own;
  BRAID_RETURN_IF_ERROR(for_.barrier(stream_.get()));
  BRAID_RETURN_IF_ERROR(for_.device.cuda().record(end, stream_.get()));
  return own;
}

Status RaceTrack::wait_for(sys::Event event) {
  while (true) {
    BRAID_ASSIGN_OR_RETURN(const bool is_done, for_.device.cuda().is_done(event));
    if (is_done) return {};
    if (for_.real_calls.is_shut()) return unavailable("the communicator was broken off");
    if (for_.group.broken()) return for_.group.fate();
    if (now_ns() - begin_ns_ > patience_ns_)
      return timeout("calls that were to be timed do not end");
    std::this_thread::sleep_for(kBetweenPolls);
  }
}

// In memory that nobody registered, where programs do it so; in windows, where both differ by as much as
// two thirds in either direction (docs/measured/nccl.md), braid must lose neither: an all_gather of 32 MiB on two H100 is as
// fast as NCCL's in place and 1.41 times as fast out of place (decision 19). An all_to_all that overwrites what it
// sends is never ours there (shim_races.cc).
bool RaceTrack::is_in_place(size_t heat) const {
  const bool is_one_buffer = for_.op == BRAID_NCCL_ALL_REDUCE || for_.op == BRAID_NCCL_BROADCAST;
  if (!for_.in_windows) return is_one_buffer;
  return for_.op != BRAID_NCCL_ALL_TO_ALL && heat == 0;
}

// A sum of zeros takes as long as any other.
braid_nccl_call RaceTrack::call_of(const Burst& burst) const {
  const uint64_t elements = burst.call_bytes / kElementBytes;
  const uint64_t block = elements / static_cast<uint64_t>(for_.group.size());
  const bool is_one_buffer = for_.op == BRAID_NCCL_ALL_REDUCE || for_.op == BRAID_NCCL_BROADCAST;
  const uint64_t own_block = static_cast<uint64_t>(for_.group.rank()) * block * kElementBytes;
  sys::DevicePtr send = memory_.send(), recv = memory_.recv();
  if (burst.is_in_place) send = recv;
  if (burst.is_in_place && for_.op == BRAID_NCCL_ALL_GATHER) send += own_block;
  if (burst.is_in_place && for_.op == BRAID_NCCL_REDUCE_SCATTER) recv += own_block;
  braid_nccl_call call{};
  call.op = for_.op;
  call.dtype = static_cast<int>(Dtype::kBfloat16);
  call.redop = static_cast<int>(RedOp::kSum);
  call.count = is_one_buffer ? elements : block;
  call.send = sys::pointer_to<void>(send);
  call.recv = sys::pointer_to<void>(recv);
  call.stream = stream_.get().handle;
  return call;
}

}  // namespace braid::nccl
