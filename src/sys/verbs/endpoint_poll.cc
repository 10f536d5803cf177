#include <arpa/inet.h>

#include <algorithm>

#include "base/clock.h"
#include "sys/verbs/endpoint.h"

namespace braid::sys::verbs {
namespace {

// A peer that takes no immediates for that long, while its NIC still answers, is given up here.
// Longer than the largest write takes on a slow link, so that a link is never given up for being
// slow.
constexpr int64_t kSilenceNs = 10'000'000'000;

}  // namespace

size_t Endpoint::poll(std::span<FabricEvent> events) {
  post_held();
  if (events.empty()) return 0;
  size_t count = take_owed(events);
  count += take_completions(events.subspan(count));
  if (count > 0) return count;
  look_around();
  return take_owed(events);
}

size_t Endpoint::take_owed(std::span<FabricEvent> events) {
  const size_t count = std::min(events.size(), owed_.size());
  std::copy_n(owed_.begin(), count, events.begin());
  owed_.erase(owed_.begin(), owed_.begin() + static_cast<ptrdiff_t>(count));
  return count;
}

size_t Endpoint::take_completions(std::span<FabricEvent> events) {
  std::array<ibv_wc, 32> completions;
  const int wanted = static_cast<int>(std::min(completions.size(), events.size()));
  if (wanted == 0) return 0;
  const int got = ibv_poll_cq(completions_.get(), wanted, completions.data());
  if (got < 0) break_off(Failure::of_errno(-got));
  size_t count = 0;
  uint32_t immediates = 0;
  for (int i = 0; i < got; ++i) {
    if (work_of(completions[i].wr_id) == Work::kImmediate) ++immediates;
    if (const auto event = take(completions[i])) events[count++] = *event;
  }
  offer_immediates(immediates);
  return count;
}

void Endpoint::give_back(Work work) {
  switch (work) {
    case Work::kTransfer: transfer_credits_.give(); break;
    case Work::kSend: send_credits_.give(); break;
    case Work::kReceive: receive_credits_.give(); break;
    case Work::kImmediate: return;
  }
  ++progress_;
}

// `opcode` is never read: it means nothing where a completion failed, and else we know it.
std::optional<FabricEvent> Endpoint::take(const ibv_wc& completion) {
  const Work work = work_of(completion.wr_id);
  FabricOp* op = operation_of(completion.wr_id);
  give_back(work);
  if (completion.status != IBV_WC_SUCCESS) return take_failed(completion, op);
  FabricEvent event{.kind = FabricEvent::Kind::kCompleted, .op = op};
  if (work == Work::kReceive) {
    event.kind = FabricEvent::Kind::kReceived;
    event.bytes = completion.byte_len;
  } else if (work == Work::kImmediate) {
    // A peer that sends a message here, where none belongs, has sent no immediate.
    if ((completion.wc_flags & IBV_WC_WITH_IMM) == 0) return std::nullopt;
    event.kind = FabricEvent::Kind::kArrived;
    event.immediate = ntohl(completion.imm_data);
  }
  return event;
}

// The first failure breaks the connection; what follows are the rest's completions. The receives
// that waited for immediates are nobody's operation: one event tells of them when they are first.
std::optional<FabricEvent> Endpoint::take_failed(const ibv_wc& completion, FabricOp* op) {
  const Failure failure = Failure::of_status(completion);
  const bool is_first = !broken_;
  break_off_untold(failure);
  if (op == nullptr && !is_first) return std::nullopt;
  return failed_event(op, failure);
}

void Endpoint::break_off(const Failure& failure) {
  if (!broken_) owed_.push_back(failed_event(nullptr, failure));
  break_off_untold(failure);
}

void Endpoint::break_off_untold(const Failure& failure) {
  if (broken_) return;
  broken_ = failure;
  data_.fail();
  messages_.fail();
}

void Endpoint::look_around() {
  const int64_t now = now_ns();
  domain_.events().look(now);
  const int event = watch_.event.load(std::memory_order_acquire);
  if (event != Watch::kNone) break_off(Failure::of_event(event));
  watch_silence(now);
}

// The NIC tries for ever where the target has no receive for an immediate, so we look at the clock.
void Endpoint::watch_silence(int64_t now) {
  const bool is_waiting = transfer_credits_.taken() + send_credits_.taken() > 0;
  if (!is_waiting || progress_ != progress_seen_) {
    progress_seen_ = progress_;
    silent_since_ns_ = now;
  } else if (now - silent_since_ns_ > kSilenceNs) {
    break_off(Failure::of_silence());
  }
}

}  // namespace braid::sys::verbs
