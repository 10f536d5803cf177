// RowSum: rows of one type added up in fp32, in the order in which they come, and rounded once. The
// first one is not added to a zero, whose sign a sum would lose.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "moe/formats.h"

namespace braid::moe {

class RowSum {
 public:
  RowSum(Dtype dtype, uint64_t hidden) : dtype_(dtype), sum_(hidden) {}
  void begin() { is_empty_ = true; }
  void add(const std::byte* x) {
    if (is_empty_)
      widen(dtype_, x, sum_.data(), sum_.size());
    else
      add_row(dtype_, x, sum_.data(), sum_.size());
    is_empty_ = false;
  }
  /// Zeros where none was added.
  void store(std::byte* out) {
    if (is_empty_) std::fill(sum_.begin(), sum_.end(), 0.0F);
    narrow(dtype_, sum_.data(), out, sum_.size());
  }

 private:
  const Dtype dtype_;
  std::vector<float> sum_;
  bool is_empty_ = true;
};

/// The weights of a copy, which lie at `from`, added to those of a token.
inline void add_weights(const std::byte* from, std::vector<float>& sum) {
  for (size_t i = 0; i < sum.size(); ++i) {
    float weight = 0;
    std::memcpy(&weight, from + 4 * i, sizeof weight);
    sum[i] += weight;
  }
}

}  // namespace braid::moe
