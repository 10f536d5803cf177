#include "bindings/nccl/core/nodes/nccl_rail.h"

#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "base/units.h"
#include "bindings/nccl/core/nodes/mark.h"
#include "sys/cuda/owned.h"
#include "sys/host/thread.h"

namespace braid::nccl {

namespace {

constexpr int kInProgress = 7;  // ncclInProgress
constexpr std::chrono::milliseconds kMakingNap{1};
constexpr std::chrono::microseconds kCallNap{50};
constexpr int64_t kCallTime = 60_s;      // of a library that does not block
constexpr int64_t kCallersTime = 10_ms;  // less than who breaks a call off waits for the rail's end

/// Counts who is in a call, from before it looks at the communicator until it is out of NCCL.
class Calling {
 public:
  explicit Calling(std::atomic<int>& callers) : callers_(callers) { ++callers_; }
  ~Calling() { --callers_; }
  Calling(const Calling&) = delete;
  Calling& operator=(const Calling&) = delete;

 private:
  std::atomic<int>& callers_;
};

/// NCCL's making of a communicator has neither a deadline nor an end that others can bring about; who
/// asked for it has both. Who is last has the communicator: who asked, or the thread that makes it.
struct Making {
  enum State { kUnderWay, kDone, kGivenUp };
  std::atomic<State> state{kUnderWay};
  int result = 0;
  void* comm = nullptr;
};

Result<void*> comm_of(const braid_nccl_rails& real, const std::string& id,
                      const fabric::NodeMap& map, int node, comm::Device& device,
                      const NcclRail::GivesUp& gives_up) {
  const auto making = std::make_shared<Making>();
  BRAID_ASSIGN_OR_RETURN(
      std::thread thread,
      sys::start_thread("rail", [=, &cuda = device.cuda(), ordinal = device.ordinal()] {
        {
          const auto scope = sys::CurrentDevice::use(cuda, ordinal);
          making->result = real.make(real.context, id.data(), map.num_nodes, node, &making->comm);
        }
        if (making->state.exchange(Making::kDone) == Making::kGivenUp && making->result == 0)
          (void)real.abort(real.context, making->comm);
      }));
  while (making->state != Making::kDone) {
    const Status why = gives_up();
    if (!why.ok() && making->state.exchange(Making::kGivenUp) != Making::kDone) {
      thread.detach();
      return why.with_context(fmt::format("a communicator between {} nodes", map.num_nodes));
    }
    std::this_thread::sleep_for(kMakingNap);
  }
  thread.join();
  if (making->result != 0)
    return driver_error("NCCL answered {} when it was to make a communicator between {} nodes",
                        making->result, map.num_nodes);
  return making->comm;
}

}  // namespace

Result<std::string> NcclRail::agree_on_id(const braid_nccl_rails& real, group::Group& group,
                                          const fabric::NodeMap& map, Deadline deadline) {
  std::string own;
  if (map.node_of(group.rank()) == 0) {
    own.resize(kIdBytes);
    if (real.make_id(real.context, own.data()) != 0) own.clear();
  }
  BRAID_ASSIGN_OR_RETURN(const auto ids, group.exchange("nccl rail ids", own, deadline));
  for (int local = 0; local < map.per_node; ++local)
    if (ids[static_cast<size_t>(local)].size() != kIdBytes) return std::string();
  return ids[static_cast<size_t>(map.local_of(group.rank()))];
}

Result<std::unique_ptr<NcclRail>> NcclRail::make(const braid_nccl_rails& real,
                                                 const std::string& id, const fabric::NodeMap& map,
                                                 int node, comm::Device& device,
                                                 const GivesUp& gives_up) {
  BRAID_ASSIGN_OR_RETURN(void* const comm, comm_of(real, id, map, node, device, gives_up));
  return std::unique_ptr<NcclRail>(new NcclRail(real, comm));
}

NcclRail::~NcclRail() {
  if (void* const comm = comm_.exchange(nullptr)) (void)real_.destroy(real_.context, comm);
}

Result<void*> NcclRail::usable() const {
  if (const int refused = refused_)
    return unavailable("NCCL refused a call between nodes before: it answered {}", refused);
  if (void* const comm = comm_) return comm;
  return unavailable("the communicator between nodes has ended");
}

// A library that does not block (NCCL_COMM_BLOCKING=0 says so for rails, too) is asked until the call
// is over; under the mutex, for an abort frees what is asked.
Result<int> NcclRail::end_of(int result) {
  const Deadline patience = Deadline::after_ns(kCallTime);
  while (result == kInProgress && !patience.passed()) {
    std::this_thread::sleep_for(kCallNap);
    const std::lock_guard lock(mutex_);
    void* const comm = comm_;
    if (comm == nullptr) return unavailable("the communicator between nodes has ended");
    result = real_.error(real_.context, comm);
  }
  return result;
}

Status NcclRail::answered(const char* what, int answer) {
  BRAID_ASSIGN_OR_RETURN(const int result, end_of(answer));
  if (result == 0) return {};
  refused_ = result;
  return driver_error("NCCL answered {} to {} between nodes", result, what);
}

Status NcclRail::exchange(const coll::nodes::Passage& passage, sys::Stream stream) {
  const Calling calling(callers_);
  BRAID_ASSIGN_OR_RETURN(void* const comm, usable());
  const braid_nccl_passage asked{
      sys::pointer_to<const void>(passage.send), passage.send_bytes, passage.to,
      sys::pointer_to<void>(passage.recv),       passage.recv_bytes, passage.from};
  return answered("a send and a receive",
                  real_.exchange(real_.context, comm, &asked, stream.handle));
}

Status NcclRail::all_gather(sys::DevicePtr send, sys::DevicePtr recv, uint64_t bytes,
                            sys::Stream stream) {
  const Calling calling(callers_);
  BRAID_ASSIGN_OR_RETURN(void* const comm, usable());
  return answered("an all_gather",
                  real_.all_gather(real_.context, comm, sys::pointer_to<const void>(send),
                                   sys::pointer_to<void>(recv), bytes, stream.handle));
}

Status NcclRail::error() {
  const std::lock_guard lock(mutex_);
  BRAID_ASSIGN_OR_RETURN(void* const comm, usable());
  const int now = real_.error(real_.context, comm);
  if (now == 0 || now == kInProgress) return {};
  return peer_lost("NCCL's communicator between nodes failed: it says {}", now);
}

// An abort frees the communicator. A caller counts itself before it looks whether there is one, and the
// communicator is taken before callers are looked for, so whoever could use a freed one is seen here.
// One who stays longer than most calls take is stuck in NCCL, which nothing but the abort ends.
void NcclRail::abort() {
  void* comm = nullptr;
  {
    const std::lock_guard lock(mutex_);
    comm = comm_.exchange(nullptr);
  }
  const Deadline patience = Deadline::after_ns(kCallersTime);
  while (comm != nullptr && callers_ != 0 && !patience.passed())
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  if (comm != nullptr) (void)real_.abort(real_.context, comm);
}

}  // namespace braid::nccl
