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
constexpr int64_t kShutPatience = 200_ms;

/// What outlives a track whose work does not end. Never given back: whoever uses it may wake up.
struct Left {
  sys::DeviceMemory send, recv;
  sys::OwnedStream stream;
  std::array<sys::OwnedEvent, 2> events;
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

Status RealCalls::run(const braid_nccl_real& real, const braid_nccl_call& call) {
  {
    const std::lock_guard lock(mutex_);
    if (is_shut_) return unavailable("the communicator was broken off");
    is_inside_ = true;
  }
  const int result = real.run(real.context, &call);
  is_inside_ = false;
  if (result != 0) return unsupported("NCCL answered {} to a call that was to be timed", result);
  return {};
}

void RealCalls::shut() {
  {
    const std::lock_guard lock(mutex_);
    is_shut_ = true;
  }
  const Deadline patience = Deadline::after_ns(kShutPatience);
  while (is_inside_ && !patience.passed()) std::this_thread::sleep_for(kBetweenPolls);
}

RaceTrack::~RaceTrack() {
  if (!is_left_) return;
  if (const auto is_done = for_.device.cuda().is_done(stream_.get());
      is_done.ok() && is_done.value())
    return;
  Left* const left = new Left;
  left->send = std::move(send_);
  left->recv = std::move(recv_);
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
  for (sizes_ = for_.sizes; sizes_.num() > 0; --sizes_.end) {
    const uint64_t bytes = kRacedBytes[sizes_.end - 1];
    auto send = sys::own<sys::DeviceMemory>(cuda, cuda.alloc(bytes));
    auto recv = sys::own<sys::DeviceMemory>(cuda, cuda.alloc(bytes));
    if (!send.ok() || !recv.ok()) continue;
    send_ = std::move(send).value();
    recv_ = std::move(recv).value();
    BRAID_RETURN_IF_ERROR(cuda.fill(send_.get(), 0, bytes, stream_.get()));
    return cuda.fill(recv_.get(), 0, bytes, stream_.get());
  }
  return exhausted("there is no memory to race in");
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
  return {};
}

Result<Lap> RaceTrack::run(size_t i, int num_calls) {
  // In turn: what one of them leaves behind, a warm cache or a hot GPU, meets both alike.
  real_first_ = !real_first_;
  Status own;
  int64_t took_ns[2] = {0, 0};  // braid, NCCL
  for (const bool is_real : {real_first_, !real_first_}) {
    if (!own.ok()) break;
    const Result<int64_t> took = burst_ns(i, num_calls, is_real);
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
Status RaceTrack::enqueue_burst(size_t i, int num_calls, bool is_real) {
  const braid_nccl_call call = call_of(kRacedBytes[i]);
  for (int k = 0; k < num_calls; ++k) {
    const Status own = is_real ? for_.real_calls.run(for_.real, call) : for_.enqueue_ours(call);
    if (own.ok()) continue;
    return k == 0 && is_real ? own : unavailable("call {}: {}", k, own.message());
  }
  return {};
}

// A rank that NCCL refused comes to the second barrier, too: the others may have been refused alike.
Result<int64_t> RaceTrack::burst_ns(size_t i, int num_calls, bool is_real) {
  sys::Cuda& cuda = for_.device.cuda();
  const sys::Stream stream = stream_.get();
  is_left_ = true;  // until it is seen to be through
  for_.device.order().expect_call();
  BRAID_RETURN_IF_ERROR(for_.barrier(stream));
  BRAID_RETURN_IF_ERROR(cuda.record(events_[0].get(), stream));
  const Status enqueued = enqueue_burst(i, num_calls, is_real);
  if (!enqueued.ok() && enqueued.code() != Code::kUnsupported) return enqueued;
  BRAID_RETURN_IF_ERROR(for_.barrier(stream));
  BRAID_RETURN_IF_ERROR(cuda.record(events_[1].get(), stream));
  BRAID_RETURN_IF_ERROR(wait_for(events_[1].get()));
  is_left_ = false;
  BRAID_RETURN_IF_ERROR(enqueued);
  return cuda.elapsed_ns(events_[0].get(), events_[1].get());
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

// In place where programs do it so. A sum of zeros takes as long as any other.
braid_nccl_call RaceTrack::call_of(uint64_t bytes) const {
  const uint64_t elements = bytes / kElementBytes;
  const uint64_t block = elements / static_cast<uint64_t>(for_.group.size());
  const bool is_one_buffer = for_.op == BRAID_NCCL_ALL_REDUCE || for_.op == BRAID_NCCL_BROADCAST;
  void* const recv = sys::pointer_to<void>(recv_.get());
  braid_nccl_call call{};
  call.op = for_.op;
  call.dtype = static_cast<int>(Dtype::kBfloat16);
  call.redop = static_cast<int>(RedOp::kSum);
  call.count = is_one_buffer ? elements : block;
  call.send = is_one_buffer ? recv : sys::pointer_to<void>(send_.get());
  call.recv = recv;
  call.stream = stream_.get().handle;
  return call;
}

}  // namespace braid::nccl
