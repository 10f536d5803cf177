// What all calls of a buffer are made of: who may call, how a phase is begun, waited for and agreed
// on, and what is said when it does not come.
#include "moe/buffer.h"

#include <fmt/ranges.h>
#include <immintrin.h>
#include <sched.h>

#include <algorithm>

#include "base/log.h"
#include "base/units.h"
#include "moe/in_call.h"
#include "moe/slot.h"

namespace braid::moe {

namespace {

constexpr int kSpinRounds = 400;
constexpr int kYieldRounds = 40;
constexpr int64_t kLongestSleepNs = 1'000'000;  // so that a broken group is seen in a millisecond
constexpr int kTopkOfHint = 16;

/// One field in which two ranks differ, in the words of the API.
Status difference(int a, const FlagWords& of_a, int b, const FlagWords& of_b, int reader) {
  const CallShape &x = of_a.shape, &y = of_b.shape;
  const auto differ = [&](const char* what, uint32_t in_a, uint32_t in_b) {
    return invalid_argument("ranks disagree: rank {} has {} {}, rank {} has {}", a, what, in_a, b,
                            in_b);
  };
  if (Phases::is_of_mask(of_a) || Phases::is_of_mask(of_b))
    return unavailable("rank {} sends nothing: it has masked rank {}",
                       Phases::is_of_mask(of_a) ? a : b, reader);
  if (x.kind == CallKind::kNone || y.kind == CallKind::kNone)
    return unavailable("rank {} could not take part in its call {}",
                       x.kind == CallKind::kNone ? a : b,
                       x.kind == CallKind::kNone ? of_a.call : of_b.call);
  if (x.kind != y.kind)
    return invalid_argument("ranks disagree: rank {} calls {}, rank {} calls {}", a,
                            call_name(x.kind), b, call_name(y.kind));
  if (x.num_experts != y.num_experts) return differ("num_experts", x.num_experts, y.num_experts);
  if (x.num_topk != y.num_topk) return differ("num_topk", x.num_topk, y.num_topk);
  if (x.max_tokens != y.max_tokens)
    return differ("num_max_dispatch_tokens_per_rank", x.max_tokens, y.max_tokens);
  if (x.dtype != y.dtype)
    return invalid_argument("ranks disagree: rank {} has rows of {}, rank {} of {}", a,
                            dtype_name(static_cast<Dtype>(x.dtype)), b,
                            dtype_name(static_cast<Dtype>(y.dtype)));
  if (x.row_bytes != y.row_bytes) return differ("bytes a row", x.row_bytes, y.row_bytes);
  if (x.side_bytes != y.side_bytes) return differ("side bytes a row", x.side_bytes, y.side_bytes);
  if (x.of_phase != y.of_phase)
    return differ("a handle of the dispatch in phase", x.of_phase, y.of_phase);
  if (x.options != y.options)
    return differ("options (weights, ids, scales, partial)", x.options, y.options);
  return differ("made calls:", of_a.call, of_b.call);
}

}  // namespace

uint64_t low_latency_half_bytes(int max_tokens, uint64_t row_bytes, int num_ranks,
                                int num_experts) {
  const auto m = static_cast<uint64_t>(std::max(max_tokens, 0));
  const auto n = static_cast<uint64_t>(std::max(num_ranks, 1));
  const auto k = static_cast<uint64_t>(std::clamp(num_experts, 1, kTopkOfHint));
  const Slot slot(static_cast<int>(k), round_up(row_bytes, 16), 0, true);
  const uint64_t dispatch = n * round_up(m * slot.bytes, kLineBytes);
  return std::max(dispatch, m * k * round_up(row_bytes, 16));
}

Buffer::Buffer(comm::Comm::State& state, const BufferOptions& options)
    : state_(state),
      rank_(state.rank()),
      size_(state.size()),
      options_(options),
      timeout_ns_(state.config.duration_ns("BRAID_TIMEOUT")) {}

Buffer::~Buffer() = default;

Result<std::unique_ptr<Buffer>> Buffer::create(comm::Comm& comm, const BufferOptions& options) {
  comm::CallGuard guard(comm);
  BRAID_RETURN_IF_ERROR(guard.status());
  comm::Comm::State& state = guard.state();
  constexpr uint64_t kMostHalfBytes = uint64_t{1} << 40;
  if (options.half_bytes > kMostHalfBytes)
    return invalid_argument(
        "moe buffer on rank {}: expected at most {} for calls of a kind, got {}", state.rank(),
        format_bytes(2 * kMostHalfBytes), format_bytes(2 * options.half_bytes));
  std::unique_ptr<Buffer> buffer(new Buffer(state, options));
  const uint64_t parts = options.can_shrink ? static_cast<uint64_t>(state.size()) : 1;
  buffer->layout_ = WindowLayout::with_halves(state.size(), options.half_bytes * parts);
  BRAID_ASSIGN_OR_RETURN(buffer->windows_,
                         HostWindows::connect(state, buffer->layout_, !options.can_shrink,
                                              Deadline::after_ns(buffer->timeout_ns_)));
  buffer->phases_.emplace(*buffer->windows_, buffer->layout_, state.rank());
  return buffer;
}

Status Buffer::in_rank(const char* call, const Status& status) const {
  return status.with_context(fmt::format("{} on rank {}", call, rank_));
}

Status Buffer::enter(bool may_be_begun) {
  if (in_call_.exchange(true, std::memory_order_acquire))
    return invalid_argument("moe buffer on rank {}: another thread is in a call of it", rank_);
  Status status;
  if (!state_.is_closed) {
    phases_->settle();
    (void)phases_->hear();
  }
  if (state_.is_closed)
    status = invalid_argument("moe buffer on rank {}: its comm is closed", rank_);
  else if (begun_ && !may_be_begun)
    status =
        invalid_argument("moe buffer on rank {}: its dispatch was begun and not finished", rank_);
  else
    status = look_around();
  if (!status.ok()) {
    leave();
    return status;
  }
  return {};
}

Status Buffer::look_around() {
  BRAID_RETURN_IF_ERROR(look_for_the_lost());
  return state_.interrupt ? state_.interrupt() : Status();
}

Status Buffer::look_for_the_lost() {
  if (phases_->told_off() >= 0)
    return peer_lost("rank {} was late and has been given up by rank {}", rank_,
                     phases_->told_off());
  if (!options_.can_shrink && state_.group && state_.group->broken()) return state_.group->fate();
  for (int peer = 0; peer < size_; ++peer) {
    if (phases_->is_masked(peer)) continue;
    const Status health = windows_->health(peer);
    if (health.ok()) continue;
    if (!options_.can_shrink) return health;
    log::warn("moe", "rank {} is given up: {}", peer, health.message());
    phases_->give_up(peer);
  }
  return {};
}

template <typename Done>
Status Buffer::wait_until(Done&& done, Deadline deadline) {
  if (done()) return {};
  const int64_t begin_ns = now_ns();
  const Status status = wait_longer(done, deadline);
  waited_ns_ += now_ns() - begin_ns;
  return status;
}

template <typename Done>
Status Buffer::wait_longer(Done&& done, Deadline deadline) {
  const int spins = state_.is_oversubscribed ? 0 : kSpinRounds;
  for (int round = 0;; ++round) {
    if (done()) return {};
    if (round < spins) {
      _mm_pause();
      continue;
    }
    phases_->settle();
    if (phases_->hear()) continue;
    if (round < spins + kYieldRounds) {
      sched_yield();
      continue;
    }
    // Who is lost may have done its part before, since we looked.
    if (const Status lost = look_for_the_lost(); !lost.ok()) return done() ? Status() : lost;
    if (state_.interrupt) BRAID_RETURN_IF_ERROR(state_.interrupt());
    if (deadline.passed()) return timeout("deadline");
    windows_->bell().arm();
    if (done()) {
      windows_->bell().disarm();
      return {};
    }
    windows_->bell().sleep(std::min(deadline.at_ns(), now_ns() + kLongestSleepNs));
  }
}

Status Buffer::await(const std::function<bool()>& done) {
  return wait_until(done, Deadline::after_ns(timeout_ns_));
}

Status Buffer::late(const Ticket& ticket, const std::vector<int>& missing, const char* what) {
  return timeout(
      "call {}: {} {} {} not come within {}", ticket.call, what,
      missing.size() == 1 ? "rank" : "ranks",
      fmt::format("{} {}", fmt::join(missing, ", "), missing.size() == 1 ? "has" : "have"),
      format_ns(timeout_ns_));
}

Result<Buffer::Ticket> Buffer::begin_phase(const CallShape& shape, uint32_t call) {
  if (!phases_->may_begin())
    return invalid_argument(
        "two results are alive: the receive half (hook) of an earlier call was not called yet");
  Ticket ticket{phases_->begin(), call, shape, 0};
  const Status status = wait_for_acks(ticket);
  if (status.ok()) {
    phases_->signal_masked(ticket.phase, call);
    return ticket;
  }
  phases_->signal_failure(ticket.phase, call);
  phases_->release(ticket.phase, false);
  return status;
}

Status Buffer::wait_for_acks(const Ticket& ticket) {
  for (;;) {
    const Status status = wait_until([&] { return phases_->may_send(ticket.phase); },
                                     Deadline::after_ns(timeout_ns_));
    if (status.code() != Code::kTimeout) return status;
    const std::vector<int> missing = phases_->missing_acks(ticket.phase);
    if (!options_.can_shrink) return late(ticket, missing, "what was to be given back by");
    for (const int peer : missing) phases_->give_up(peer);
  }
}

void Buffer::signal(const Ticket& ticket, int peer, uint32_t rows, uint32_t total_rows,
                    uint32_t num_tokens) {
  phases_->signal(ticket.phase, peer, {ticket.shape, rows, total_rows, num_tokens, ticket.call},
                  ticket.remark);
}

void Buffer::drop(const Ticket& ticket) {
  const InCall in_call(*this);
  if (in_call.status().ok() && !phases_->is_received(ticket.phase))
    phases_->release(ticket.phase, false);
}

void Buffer::note_waits(const Ticket& ticket, int64_t start_ns, std::vector<bool>& seen,
                        int64_t* wait_ns) {
  for (int source = 0; source < size_; ++source) {
    if (seen[static_cast<size_t>(source)] || !phases_->has_arrived(ticket.phase, source)) continue;
    seen[static_cast<size_t>(source)] = true;
    wait_ns[source] += now_ns() - start_ns;
  }
}

Status Buffer::receive_phase(const Ticket& ticket, int64_t* wait_ns) {
  const int64_t start_ns = now_ns();
  std::vector<bool> seen(static_cast<size_t>(size_));
  const auto has_come = [&] {
    if (wait_ns != nullptr) note_waits(ticket, start_ns, seen, wait_ns);
    return phases_->has_arrived(ticket.phase);
  };
  Status status = wait_until(has_come, Deadline::after_ns(timeout_ns_));
  while (status.code() == Code::kTimeout && options_.can_shrink) {
    for (const int peer : phases_->missing_flags(ticket.phase)) phases_->give_up(peer);
    status = wait_until(has_come, Deadline::after_ns(timeout_ns_));
  }
  if (status.code() == Code::kTimeout)
    status = late(ticket, phases_->missing_flags(ticket.phase), "what was to be sent by");
  if (!status.ok()) {
    phases_->release(ticket.phase, false);
    return status;
  }
  status = agree(ticket);
  if (!status.ok()) phases_->release(ticket.phase, true);
  return status;
}

// Every rank has the same words before it and compares them in the same order, so all say the same.
Status Buffer::agree(const Ticket& ticket) {
  uint32_t latest = calls_;
  Status status;
  int first = -1;
  for (int source = 0; source < size_; ++source) {
    if (phases_->is_masked(source)) continue;
    const FlagWords words = phases_->words_of(ticket.phase, source);
    if (!Phases::is_of_mask(words)) latest = std::max(latest, words.call);
    if (first < 0) first = source;
    const FlagWords of_first = phases_->words_of(ticket.phase, first);
    if (!status.ok() || (words.shape == of_first.shape && words.call == of_first.call &&
                         words.shape.kind != CallKind::kNone))
      continue;
    status = difference(first, of_first, source, words, rank_);
  }
  if (!status.ok()) calls_ = latest;
  return status;
}

Status Buffer::set_masked(int rank, bool is_masked) {
  if (rank == rank_ || rank < 0 || rank >= size_)
    return invalid_argument(
        "low_latency_update_mask_buffer on rank {}: argument rank_to_mask: expected another rank "
        "of {}, "
        "got {}",
        rank_, size_, rank);
  const uint64_t bit = uint64_t{1} << rank;
  phases_->set_mask(is_masked ? phases_->mask() | bit : phases_->mask() & ~bit);
  return {};
}

Status Buffer::clear_mask() {
  phases_->forget_given_up();
  return {};
}

}  // namespace braid::moe
