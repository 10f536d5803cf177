// Input of long messages, made once: numbers without a period, of which every rank and call reads a
// stretch of its own, and their sums. A test then copies and compares memory, and has no loop over
// elements of its own, which in a build without optimisation is what it would spend its time on.
//
//   static const test::Rows<float> rows(num_ranks, count);
//   ... all_reduce of rows.of(rank, call) ...
//   EXPECT_EQ(test::first_wrong(recv, rows.sum(num_ranks, call), count), count);
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "support/tensors.h"

namespace braid::test {

template <typename T>
class Rows {
 public:
  static constexpr uint64_t kCalls = 64;  // after so many calls the stretches come again

  /// Rows of `count` elements.
  Rows(int num_ranks, uint64_t count) {
    const uint64_t sum_count = count + kCalls * kCallStep;
    numbers_.resize(sum_count + static_cast<uint64_t>(num_ranks) * kRankStep);
    for (uint64_t i = 0; i < numbers_.size(); ++i)
      numbers_[i] = static_cast<T>(mixed(1, 0, i) % 65521);  // sums of 16 are exact in fp32
    std::vector<T> sum(sum_count);
    for (int rank = 0; rank < num_ranks; ++rank) {
      const T* const row = of(rank, 0);
      for (uint64_t i = 0; i < sum_count; ++i) sum[i] += row[i];
      sums_.push_back(sum);
    }
  }

  const T* of(int rank, uint64_t call) const {
    return numbers_.data() + static_cast<uint64_t>(rank) * kRankStep + call % kCalls * kCallStep;
  }
  /// Of the first `num_ranks` ranks.
  const T* sum(int num_ranks, uint64_t call) const {
    return sums_[static_cast<size_t>(num_ranks) - 1].data() + call % kCalls * kCallStep;
  }

 private:
  static constexpr uint64_t kCallStep = 127;
  static constexpr uint64_t kRankStep = 8209;  // beyond those of all calls: no stretch comes twice

  std::vector<T> numbers_;
  std::vector<std::vector<T>> sums_;  // [number of ranks - 1]
};

/// Index of the first element that is not as wanted; `count` when all are.
template <typename T>
uint64_t first_wrong(const T* got, const T* want, uint64_t count) {
  if (count == 0 || std::memcmp(got, want, count * sizeof(T)) == 0) return count;
  uint64_t i = 0;
  while (std::memcmp(got + i, want + i, sizeof(T)) == 0) ++i;
  return i;
}

}  // namespace braid::test
