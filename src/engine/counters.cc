#include "engine/counters.h"

namespace braid::engine {

void Counters::drop_if_empty(Counts::iterator at) {
  if (at->second.count == 0 && at->second.expected.ticket == nullptr) counters_.erase(at);
}

// A flag in memory of the host is a store. One in a GPU's is a call of the driver, which may take long:
// that is left to the caller, who holds no lock.
Reached Counters::settle(Counts::iterator at) {
  Counter& counter = at->second;
  if (counter.expected.ticket == nullptr || counter.count < counter.expected.count) return {};
  const Expectation reached = std::exchange(counter.expected, {});
  counter.count -= reached.count;
  drop_if_empty(at);
  if (reached.flag.on_gpu != 0) return {{}, reached.ticket, reached.flag.on_gpu};
  if (reached.flag.on_host != nullptr) reached.flag.on_host->store(1, std::memory_order_release);
  return {reached.ticket->finish({}), nullptr, 0};
}

Reached Counters::add(uint32_t immediate, uint64_t count) {
  const std::lock_guard lock(mutex_);
  const auto at = counters_.try_emplace(immediate).first;
  at->second.count += count;
  return settle(at);
}

Result<Reached> Counters::expect(uint32_t immediate, Expectation expectation) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(ended_);
  const auto at = counters_.try_emplace(immediate).first;
  Counter& counter = at->second;
  if (counter.expected.ticket != nullptr)
    return invalid_argument("immediate {}: {} are expected already, {} of them are here", immediate,
                            counter.expected.count, counter.count);
  counter.expected = std::move(expectation);
  return settle(at);
}

Callback Counters::forget(uint32_t immediate, Status why, const Ticket* only) {
  const std::lock_guard lock(mutex_);
  const auto found = counters_.find(immediate);
  if (found == counters_.end() || found->second.expected.ticket == nullptr) return {};
  if (only != nullptr && found->second.expected.ticket.get() != only) return {};
  const Expectation ended = std::exchange(found->second.expected, {});
  drop_if_empty(found);
  return ended.ticket->finish(std::move(why));
}

Callback Counters::discard(uint32_t immediate, Status why) {
  const std::lock_guard lock(mutex_);
  const auto found = counters_.find(immediate);
  if (found == counters_.end()) return {};
  const TicketPtr ticket = found->second.expected.ticket;
  counters_.erase(found);
  return ticket == nullptr ? Callback() : ticket->finish(std::move(why));
}

std::vector<Callback> Counters::forget_all(const Status& why) {
  const std::lock_guard lock(mutex_);
  ended_ = why;
  std::vector<Callback> out;
  for (auto& [immediate, counter] : counters_)
    if (counter.expected.ticket != nullptr)
      out.push_back(std::exchange(counter.expected, {}).ticket->finish(why));
  return out;
}

uint64_t Counters::count(uint32_t immediate) const {
  const std::lock_guard lock(mutex_);
  const auto found = counters_.find(immediate);
  return found == counters_.end() ? 0 : found->second.count;
}

size_t Counters::num_kept() const {
  const std::lock_guard lock(mutex_);
  return counters_.size();
}

}  // namespace braid::engine
