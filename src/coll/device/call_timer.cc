#include "coll/device/call_timer.h"

#include <algorithm>

#include "base/clock.h"
#include "coll/device/collectives.h"
#include "group/agree.h"
#include "sys/cuda/launch.h"

namespace braid::kernels {

std::span<const std::byte> longest_pause_fatbin();

}  // namespace braid::kernels

namespace braid::coll::device {

namespace {

// In a row: one alone would also measure how fast the host enqueues it.
constexpr int kCalls = 3;
// Two turns on an H200, where a program's is a little over 2 ms: beside others every kernel of 5 ms
// was interrupted, and none of 2 ms.
constexpr int64_t kLookForPauses_ns = 5'000'000;

}  // namespace

uint64_t seen_bytes(plan::Op op, uint64_t block_bytes) {
  return plan::is_one_buffer(op) ? 2 * block_bytes : block_bytes;
}

Result<sys::Kernel> longest_pause_kernel(comm::Device& device) {
  return device.kernels().find(kernels::longest_pause_fatbin(), "braid_longest_pause");
}

Status CallTimer::prepare() {
  sys::Cuda& cuda = device_.cuda();
  BRAID_ASSIGN_OR_RETURN(send_, sys::own<sys::DeviceMemory>(cuda, cuda.alloc(bytes_of_all())));
  BRAID_ASSIGN_OR_RETURN(recv_, cuda.alloc(bytes_of_all()));
  recv_hold_ = nvlink::lend(cuda, device_.ordinal(), recv_);
  BRAID_ASSIGN_OR_RETURN(
      stream_, sys::own<sys::OwnedStream>(cuda, cuda.create_stream(sys::StreamPriority::kNormal)));
  for (auto& event : events_) {
    BRAID_ASSIGN_OR_RETURN(
        event, sys::own<sys::OwnedEvent>(cuda, cuda.create_event(sys::EventTiming::kOn)));
  }
  page_ = std::make_unique<HostPage>();
  BRAID_ASSIGN_OR_RETURN(page_on_device_, cuda.register_host(page_.get(), sizeof(HostPage)));
  pinned_ = sys::RegisteredHost(cuda, page_.get());
  return {};
}

Status CallTimer::open() {
  begin_ns_ = now_ns();
  return device_.registrations().add(recv_, bytes_of_all());
}

Status CallTimer::close() { return device_.registrations().remove(recv_); }

Result<double> CallTimer::time(plan::Op op, uint64_t block_bytes) {
  BRAID_ASSIGN_OR_RETURN(const int64_t took_ns, own_ns(op, block_bytes));
  BRAID_ASSIGN_OR_RETURN(const int64_t most_ns, most_of_all(took_ns));
  return static_cast<double>(most_ns) / 1e3;
}

Result<int64_t> CallTimer::longest_pause_ns() {
  BRAID_ASSIGN_OR_RETURN(const sys::Kernel kernel, longest_pause_kernel(device_));
  sys::Cuda& cuda = device_.cuda();
  BRAID_RETURN_IF_ERROR(sys::launch(cuda, kernel, {1, 1, 0}, stream_.get(),
                                    page_on_device_ + offsetof(HostPage, longest_pause_ns),
                                    int64_t{kLookForPauses_ns}));
  BRAID_RETURN_IF_ERROR(cuda.synchronize(stream_.get()));
  return most_of_all(page_->longest_pause_ns);
}

/// Collective: the largest of what the ranks say. Also brings the time that has passed.
Result<int64_t> CallTimer::most_of_all(int64_t own_ns) {
  const int64_t own[] = {own_ns, now_ns() - begin_ns_};
  BRAID_ASSIGN_OR_RETURN(const auto all,
                         group::exchange_numbers(group_, "gpu tuning", own, deadline_));
  int64_t most_ns = 0;
  for (const std::vector<int64_t>& of_rank : all) {
    most_ns = std::max(most_ns, of_rank[0]);
    elapsed_ns_ = std::max(elapsed_ns_, of_rank[1]);
  }
  return most_ns;
}

Result<int64_t> CallTimer::own_ns(plan::Op op, uint64_t block_bytes) {
  sys::Cuda& cuda = device_.cuda();
  const sys::Stream stream = stream_.get();
  // Ranks meet before the clock starts: otherwise the first to come measures its own waiting.
  BRAID_RETURN_IF_ERROR(barrier(device_, stream));
  BRAID_RETURN_IF_ERROR(cuda.record(events_[0].get(), stream));
  for (int call = 0; call < kCalls; ++call) BRAID_RETURN_IF_ERROR(run(op, block_bytes, stream));
  BRAID_RETURN_IF_ERROR(cuda.record(events_[1].get(), stream));
  BRAID_RETURN_IF_ERROR(cuda.synchronize(stream));
  BRAID_ASSIGN_OR_RETURN(const int64_t took_ns,
                         cuda.elapsed_ns(events_[0].get(), events_[1].get()));
  return took_ns / kCalls;
}

Status CallTimer::run(plan::Op op, uint64_t block_bytes, sys::Stream stream) {
  const uint64_t floats = block_bytes / sizeof(float);
  const uint64_t buffer_floats = 2 * floats;
  switch (op) {
    case plan::Op::kAllGather:
      return all_gather(device_, send_.get(), recv_, floats, Dtype::kFloat32, stream);
    case plan::Op::kAllReduce:
      return all_reduce(device_, send_.get(), recv_, buffer_floats, Dtype::kFloat32, RedOp::kSum,
                        stream);
    case plan::Op::kReduceScatter:
      return reduce_scatter(device_, send_.get(), recv_, floats, Dtype::kFloat32, RedOp::kSum,
                            stream);
    case plan::Op::kAllToAll:
      return all_to_all(device_, send_.get(), recv_, floats, Dtype::kFloat32, stream);
    case plan::Op::kBroadcast:
      return broadcast(device_, recv_, recv_, buffer_floats, Dtype::kFloat32, 0, stream);
  }
  return internal_error("op {} is unknown", static_cast<int>(op));
}

}  // namespace braid::coll::device
