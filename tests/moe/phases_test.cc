// The protocol of phases.h under every order that a weak memory may choose: ranks step and stores
// land in an order drawn from a seed, two calls are in flight, one rank is behind. Nothing may be
// early, torn, overwritten or stuck; and each fault that is planted must be found.
#include "moe/phases.h"
#include "base/sanitizer.h"

#include <gtest/gtest.h>

#include <string>

#include "moe/simulated_windows.h"

namespace braid::moe {
namespace {

using test::Fault;

constexpr uint64_t kRowBytes = 64;
constexpr int kRows = 3;  // to each rank in each phase
constexpr uint64_t kPhases = 8;
constexpr int kForAll = 99;

uint64_t word_of(uint64_t phase, int source, int target, int row, uint64_t word) {
  return phase * 1'000'003 + static_cast<uint64_t>(source) * 10'007 +
         static_cast<uint64_t>(target) * 1'009 + static_cast<uint64_t>(row) * 101 + word;
}

/// One rank's program, a step at a time: it sends up to two phases ahead of what it has received,
/// and reads what came in as many steps as there are words.
class Program {
 public:
  Program(test::Sea& sea, int rank, bool gathers)
      : sea_(sea),
        windows_(sea, rank),
        phases_(windows_, sea.layout(), rank),
        rank_(rank),
        gathers_(gathers) {}

  bool is_done() const { return received_ == kPhases; }
  const std::string& complaint() const { return complaint_; }

  void step() {
    phases_.settle();
    const bool wants_to_send = sent_ < kPhases && sent_ < received_ + kHalves;
    if (wants_to_send && (reading_ == 0) && sea_.below(2) == 0) return send();
    receive();
  }

 private:
  uint64_t region(uint64_t phase) const {
    return sea_.fault() == Fault::kOneBufferTooFew ? phase - phase % kHalves : phase;
  }

  void send() {
    if (begun_ == sent_) {
      if (!phases_.may_begin()) return;
      begun_ = phases_.begin();
    }
    if (!phases_.may_send(begun_)) return;
    if (gathers_) put_rows(rank_, kForAll);
    for (int peer = 0; peer < phases_.size(); ++peer) {
      if (!gathers_) put_rows(peer, peer);
      FlagWords words;
      words.rows = kRows;
      words.call = static_cast<uint32_t>(begun_);
      phases_.signal(begun_, peer, words);
    }
    sent_ = begun_;
  }

  void put_rows(int window, int target) {
    for (int row = 0; row < kRows; ++row) {
      auto* const room = reinterpret_cast<uint64_t*>(phases_.room_in_region(
          region(begun_), window, static_cast<uint64_t>(row) * kRowBytes, kRowBytes));
      for (uint64_t w = 0; w < kRowBytes / 8; ++w) room[w] = word_of(begun_, rank_, target, row, w);
    }
  }

  void receive() {
    const uint64_t phase = received_ + 1;
    if (phase > sent_ || !phases_.has_arrived(phase)) return;
    const auto words = static_cast<uint64_t>(phases_.size()) * kRows * (kRowBytes / 8);
    for (int burst = 0; burst < 8 && reading_ < words; ++burst, ++reading_)
      look_at(phase, reading_);
    if (reading_ < words) return;
    reading_ = 0;
    received_ = phase;
    phases_.release(phase, true);
    if (sea_.fault() == Fault::kResetCounter)
      for (int source = 0; source < phases_.size(); ++source)
        sea_.signal(rank_, rank_, sea_.layout().flag_line(phase % kHalves, source), {}, 0);
  }

  void look_at(uint64_t phase, uint64_t at) {
    const uint64_t w = at % (kRowBytes / 8);
    const int row = static_cast<int>(at / (kRowBytes / 8) % kRows);
    const int source = static_cast<int>(at / (kRowBytes / 8) / kRows);
    uint64_t found = 0;
    const std::byte* const rows = gathers_ ? phases_.region_at(region(phase), source)
                                           : phases_.region_of(region(phase), source);
    std::memcpy(&found, rows + static_cast<uint64_t>(row) * kRowBytes + 8 * w, sizeof found);
    const FlagWords words = phases_.words_of(phase, source);
    if (found != word_of(phase, source, gathers_ ? kForAll : rank_, row, w) || words.call != phase)
      complaint_ = fmt::format("rank {} phase {}: row {} of rank {} has {}", rank_, phase, row,
                               source, found);
  }

  test::Sea& sea_;
  test::SimulatedWindows windows_;
  Phases phases_;
  const int rank_;
  const bool gathers_;  // rows are put into the own window, once for all
  uint64_t begun_ = 0, sent_ = 0, received_ = 0, reading_ = 0;
  std::string complaint_;
};

/// "": all phases of all ranks were as they must be.
std::string simulate(int num_ranks, uint64_t seed, Fault fault, bool gathers = false) {
  test::Sea sea(
      WindowLayout::with_halves(num_ranks, static_cast<uint64_t>(num_ranks) * kRows * kRowBytes),
      seed, fault);
  std::vector<std::unique_ptr<Program>> ranks;
  for (int r = 0; r < num_ranks; ++r) ranks.push_back(std::make_unique<Program>(sea, r, gathers));
  const auto slow = static_cast<size_t>(sea.below(static_cast<uint64_t>(num_ranks)));
  const int limit = 60'000 * num_ranks * num_ranks;
  for (int step = 0; step < limit; ++step) {
    for (uint64_t landed = sea.below(4); landed > 0; --landed) sea.land_one();
    const auto who = static_cast<size_t>(sea.below(static_cast<uint64_t>(num_ranks)));
    if (who == slow && sea.below(8) != 0) continue;
    ranks[who]->step();
    if (!ranks[who]->complaint().empty()) return ranks[who]->complaint();
    if (std::all_of(ranks.begin(), ranks.end(), [](const auto& r) { return r->is_done(); }))
      return "";
  }
  return "stuck";
}

TEST(MoePhases, NothingIsEarlyTornOverwrittenOrStuck) {
  for (int num_ranks = 2; num_ranks <= 8; ++num_ranks)
    for (uint64_t seed = 0; seed < (kIsSanitized ? 5 : 25); ++seed)  // of one thread
      ASSERT_EQ(simulate(num_ranks, seed, Fault::kNone), "")
          << num_ranks << " ranks, seed " << seed;
}

TEST(MoePhases, GatheredRowsAreTheSame) {
  for (int num_ranks = 2; num_ranks <= 8; ++num_ranks)
    for (uint64_t seed = 0; seed < (kIsSanitized ? 2 : 10); ++seed)
      ASSERT_EQ(simulate(num_ranks, seed, Fault::kNone, true), "")
          << num_ranks << " ranks, seed " << seed;
}

/// How many of some seeds show the fault.
int found(Fault fault, int num_ranks, bool gathers = false) {
  int count = 0;
  for (uint64_t seed = 0; seed < 12; ++seed)
    count += simulate(num_ranks, seed, fault, gathers).empty() ? 0 : 1;
  return count;
}

TEST(MoePhases, EveryPlantedFaultIsFound) {
  for (const int num_ranks : kIsSanitized ? std::vector{2} : std::vector{2, 5}) {
    EXPECT_GE(found(Fault::kNoFence, num_ranks), 8);
    EXPECT_GE(found(Fault::kFlagBeforeData, num_ranks), 8);
    EXPECT_GE(found(Fault::kResetCounter, num_ranks), 2);
    EXPECT_GE(found(Fault::kOneBufferTooFew, num_ranks), 8);
    EXPECT_GE(found(Fault::kNoFence, num_ranks, true), 8);
    EXPECT_GE(found(Fault::kFlagBeforeData, num_ranks, true), 4);  // of the first peer alone
    EXPECT_GE(found(Fault::kOneBufferTooFew, num_ranks, true), 8);
  }
}

}  // namespace
}  // namespace braid::moe
