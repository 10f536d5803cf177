// Sleeping on a word in shared memory: the one way a rank waits for another without burning a core.
//
// The rule that makes a lost wake-up impossible: a sleeper publishes that it sleeps, reads the
// word, checks its condition, and only then calls futex_wait with the value it read; a waker
// changes the condition, then the word, then calls futex_wake. The kernel compares the word and
// goes to sleep in one step.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace braid::sys {

/// Sleeps while `word` holds `expected`, until a wake, a signal, or the deadline. False only when
/// the deadline passed. May return early for no reason: check the condition again. Works between
/// processes.
bool futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, Deadline deadline) noexcept;

/// Wakes up to `count` sleepers; returns how many there were.
int futex_wake(const std::atomic<uint32_t>& word, int count) noexcept;

}  // namespace braid::sys
