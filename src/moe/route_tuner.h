// RouteTuner: whether the rows of one shape of dispatch are routed (a copy to each rank that wants
// one) or gathered (one copy where it was made, out of which every rank takes what is its own).
// Results are the same bytes. It is decided by what calls took, once for all ranks: every flag has a
// remark with the time of its rank's last call, so all ranks hear the same times, and with what is
// to be done in the next call, of which the lowest rank's word counts. A rank that missed a call has
// missed a word; what it pushes is told by its own remark, so nothing goes wrong meanwhile.
//
//   call c      pushed as told in c - 1; remark: how, the time of c - 1, how in c + 1
//   heard in c  the slowest rank's time of c - 1 is a sample of how that was pushed
//
// Both ways are tried in turn until each has kSamples; then the one with the least time per token
// stays. Calls whose tokens differ by more than a factor of four are judged apart: a call is taken to
// be like the last but one, which is what its word was said after.
//
// Pure; used between calls only.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>

namespace braid::moe {

struct Remark {
  bool is_gathered = false;
  bool gathers_next = false;
  uint32_t took = 0;  // in units of 100 ns; 0: not known

  static constexpr uint32_t kMostTook = (1U << 30) - 1;
  static constexpr Remark of(uint32_t word) {
    return {(word >> 31) != 0, (word >> 30 & 1) != 0, word & kMostTook};
  }
  constexpr uint32_t word() const {
    return (is_gathered ? 1U << 31 : 0) | (gathers_next ? 1U << 30 : 0) | std::min(took, kMostTook);
  }
};

class RouteTuner {
 public:
  static constexpr int kSamples = 4;  // of each way

  /// How this rank pushes its next call, and what it says with it.
  bool gathers() const { return gathers_; }
  uint32_t remark() const { return Remark{gathers_, choose_next(), took_}.word(); }

  /// Of the call at hand: what all ranks have said (those that count), the lowest rank first, and
  /// the most tokens that a rank has.
  void hear(std::span<const uint32_t> remarks, int32_t most_tokens) {
    uint32_t slowest = 0;
    bool are_known = !remarks.empty();
    for (const uint32_t word : remarks) {
      const Remark remark = Remark::of(word);
      are_known = are_known && remark.took != 0;
      slowest = std::max(slowest, remark.took);
    }
    if (are_known && last_tokens_ >= 0) add_sample(slowest);
    took_ = 0;
    last_tokens_ = most_tokens;
    if (remarks.empty()) return;
    const Remark first = Remark::of(remarks[0]);
    was_gathered_ = first.is_gathered;
    gathers_ = first.gathers_next;
  }
  /// It has ended well here, after so much work.
  void end(int64_t took_ns) {
    took_ = static_cast<uint32_t>(std::clamp<int64_t>(took_ns / 100, 1, Remark::kMostTook));
  }
  /// Whether calls like the last one are measured.
  bool is_settled() const { return last_tokens_ >= 0 && is_settled(measured()); }

 private:
  struct Times {
    std::array<int, 2> count{};     // routed, gathered
    std::array<double, 2> least{};  // time per token
  };
  static bool is_settled(const Times& m) {
    return m.count[0] >= kSamples && m.count[1] >= kSamples;
  }
  static size_t band_of(int32_t tokens) {
    return static_cast<size_t>(std::bit_width(static_cast<uint32_t>(tokens))) / 2;
  }
  const Times& measured() const { return measured_[band_of(last_tokens_)]; }
  bool choose_next() const {
    if (last_tokens_ < 0) return true;  // the first call is routed, the second one gathered
    const Times& m = measured();
    return is_settled(m) ? m.least[1] < m.least[0] : !gathers_;
  }
  void add_sample(uint32_t took) {
    Times& m = measured_[band_of(last_tokens_)];
    const size_t way = was_gathered_ ? 1 : 0;
    const double each = static_cast<double>(took) / std::max(last_tokens_, 1);
    m.least[way] = m.count[way]++ == 0 ? each : std::min(m.least[way], each);
  }

  bool gathers_ = false;
  bool was_gathered_ = false;  // the last call that was heard of
  uint32_t took_ = 0;
  int32_t last_tokens_ = -1;
  std::array<Times, 17> measured_{};
};

}  // namespace braid::moe
