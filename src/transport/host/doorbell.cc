// The doorbell over shared memory and futex; the protocol and why no wake is lost are told in
// doorbell.h.
//
// Two details that the drawing there leaves out. arm() reads `count` before it raises `asleep`, and
// sleep() hands that value to the kernel: a ring between the two makes the sleep return at once.
// And a ringer takes `asleep` down with its ring, so that of many puts to one sleeper only the
// first costs a system call; whoever finds it down already has put data that the woken rank's next
// look, or its next arm(), must see.
#include "transport/host/doorbell.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <utility>

#include "base/check.h"
#include "base/sanitizer.h"
#include "sys/shm/futex.h"
#include "transport/host/ring.h"
#include "transport/host/segments.h"

namespace braid::transport {
namespace {

constexpr int64_t kMaxSleepNs = 10'000'000;  // bounds what a lost wake could cost

struct alignas(kLineBytes) Bell {
  std::atomic<uint32_t> count;   // rings ever; the futex word
  std::atomic<uint32_t> asleep;  // 1 from arm() until rung or disarmed
};
static_assert(sizeof(Bell) == kLineBytes);
static_assert(std::atomic<uint32_t>::is_always_lock_free, "shared between processes");

// Orders everything this thread stored before against what it loads after. ThreadSanitizer does not
// know fences, so there a read-modify-write of the bell takes its place: correct too, but it pulls
// the line away from other ringers.
void full_fence([[maybe_unused]] Bell& bell) noexcept {
  if constexpr (kIsThreadSanitized)
    bell.asleep.fetch_add(0, std::memory_order_seq_cst);
  else
    std::atomic_thread_fence(std::memory_order_seq_cst);
}

class SharedDoorbell final : public Doorbell {
 public:
  SharedDoorbell(Segments segments, int rank)
      : segments_(std::move(segments)), own_(bell_of(rank)) {}

  void ring(int peer) noexcept override {
    Bell* bell = bell_of(peer);
    if (bell == nullptr) return;
    full_fence(*bell);  // pairs with the fence in arm()
    if (bell->asleep.load(std::memory_order_relaxed) == 0) return;
    if (bell->asleep.exchange(0, std::memory_order_relaxed) == 0) return;
    bell->count.fetch_add(1, std::memory_order_release);  // pairs with the load in arm()
    sys::futex_wake(bell->count, 1);
  }

  void arm() noexcept override {
    armed_count_ = own_->count.load(std::memory_order_acquire);  // pairs with ring()
    own_->asleep.store(1, std::memory_order_relaxed);
    full_fence(*own_);  // pairs with the fence in ring()
  }

  void disarm() noexcept override { own_->asleep.store(0, std::memory_order_relaxed); }

  void sleep(int64_t until_ns) noexcept override {
    const int64_t now = now_ns();
    const int64_t until = std::min(until_ns, now + kMaxSleepNs);
    if (until > now) sys::futex_wait(own_->count, armed_count_, Deadline::at_ns(until));
    disarm();
  }

 private:
  Bell* bell_of(int rank) const { return reinterpret_cast<Bell*>(segments_.of(rank)); }

  const Segments segments_;
  Bell* const own_;
  uint32_t armed_count_ = 0;
};

}  // namespace

Result<std::unique_ptr<Doorbell>> Doorbell::connect(group::Group& group, Deadline deadline,
                                                    const std::string& host_id) {
  SegmentRequest request;
  request.topic = "doorbell";
  request.bytes = sizeof(Bell);
  request.shape = "bell";
  request.needs_one_host = false;
  request.host_id = host_id;
  BRAID_ASSIGN_OR_RETURN(Segments segments, share_segments(group, request, deadline));
  return std::unique_ptr<Doorbell>(
      std::make_unique<SharedDoorbell>(std::move(segments), group.rank()));
}

}  // namespace braid::transport
