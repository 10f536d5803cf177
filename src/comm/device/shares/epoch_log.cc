#include "comm/device/shares/epoch_log.h"

#include <algorithm>
#include <atomic>
#include <thread>

namespace braid::comm {

namespace {

uint64_t packed(uint64_t call, uint32_t change) { return call << 32 | change; }
uint32_t call_of(uint64_t word) { return static_cast<uint32_t>(word >> 32); }
uint32_t change_of(uint64_t word) { return static_cast<uint32_t>(word); }
bool is_of(uint64_t word, uint64_t call) { return call_of(word) == static_cast<uint32_t>(call); }

}  // namespace

EpochLog::EpochLog(int rank, std::vector<Pages*> pages) : rank_(rank), pages_(std::move(pages)) {}

bool EpochLog::is_free(uint64_t call) {
  if (call <= all_passed_ + kWords) return true;
  uint64_t least = UINT64_MAX;
  for (Pages* pages : pages_)  // pairs with settle()
    least = std::min(least, std::atomic_ref(pages->passed).load(std::memory_order_acquire));
  all_passed_ = least;
  return call <= all_passed_ + kWords;
}

uint64_t EpochLog::write_once(uint64_t call, uint32_t change) const {
  const std::atomic_ref word(word_of(call));
  uint64_t seen = word.load(std::memory_order_acquire);
  while (!is_of(seen, call))
    if (word.compare_exchange_weak(seen, packed(call, change), std::memory_order_acq_rel))
      return packed(call, change);
  return seen;
}

Result<uint32_t> EpochLog::settle(uint64_t call, Deadline deadline,
                                  const std::function<Status()>& fate) {
  while (!is_free(call)) {
    BRAID_RETURN_IF_ERROR(fate());
    if (deadline.passed())
      return timeout("gpu call {}: rank {} is ahead of another rank by {} calls", call, rank_,
                     call - all_passed_);
    std::this_thread::yield();
  }
  const uint64_t word = write_once(call, 0);
  std::atomic_ref(pages_[static_cast<size_t>(rank_)]->passed)
      .store(call, std::memory_order_release);  // pairs with is_free()
  return change_of(word);
}

uint64_t EpochLog::propose(uint32_t change, uint64_t from_call) {
  for (uint64_t call = from_call; is_free(call); ++call) {
    const uint64_t before = std::atomic_ref(word_of(call)).load(std::memory_order_acquire);
    if (is_of(before, call)) continue;
    if (change_of(write_once(call, change)) == change) return call;
  }
  return 0;
}

}  // namespace braid::comm
