// Random programs over several nodes, from NCCL's functions down, and a library that fails at any of
// its calls. A few of each run here; BRAID_NODES_PROGRAMS and BRAID_NODES_FAILURES ask for more, and
// scripts/nodes_programs for as many as records/nodes_programs.json has.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "base/sanitizer.h"
#include "base/units.h"
#include "bindings/nccl/world_of_ranks.h"

namespace braid::nccl::programs {
namespace {

/// Making communicators takes longest: of many programs there are more to a world.
constexpr uint64_t kFewPrograms = kIsSanitized ? 20 : 75, kManyPrograms = 1000;
/// From a rank's first error to the last rank's: braid's own deadline here, and what NCCL's peers
/// take to notice that one has gone.
constexpr int64_t kDeadline = 5_s;

uint64_t number_from(const char* name, uint64_t or_else) {
  const char* const wanted = getenv(name);  // NOLINT(concurrency-mt-unsafe)
  return wanted != nullptr ? strtoull(wanted, nullptr, 10) : or_else;
}

class NodesPrograms : public testing::Test {
 protected:
  NodesPrograms() {
    const std::map<std::string, std::string> options = {
        {"BRAID_NCCL_NODES", "on"},     {"BRAID_GPU_PACKETS", "0"}, {"BRAID_GPU_LINES", "0"},
        {"BRAID_GPU_SCRATCH", "16MiB"}, {"BRAID_TUNE", "off"},      {"BRAID_NCCL_MEET", "10s"},
        {"BRAID_NCCL_TIMEOUT", "3s"},   {"BRAID_LOG", "off"}};
    for (const auto& [name, value] : options) {
      setenv(name.c_str(), value.c_str(), 1);  // NOLINT(concurrency-mt-unsafe): one thread
      names_.push_back(name);
    }
  }
  ~NodesPrograms() override {
    for (const std::string& name : names_) unsetenv(name.c_str());  // NOLINT(concurrency-mt-unsafe)
  }

  static Tally run(const WorldTerms& terms, uint64_t num_programs) {
    return run(terms, num_programs, [](NcclOfThreads&) {});
  }
  template <typename Prepare>
  static Tally run(const WorldTerms& terms, uint64_t num_programs, const Prepare& prepare) {
    ProgramGenerator generator(terms.seed, terms.node_of_rank);
    std::vector<Program> programs;
    for (uint64_t i = 0; i < num_programs; ++i) programs.push_back(generator.next());
    World world(terms);
    prepare(world.library());
    return world.run(programs, generator.families());
  }

  std::vector<std::string> names_;
};

/// Nodes of as many ranks each, which are taken over; others are NCCL's, and so are the worlds in
/// which one rank is unlike the others.
WorldTerms world_of(uint64_t number) {
  WorldTerms terms;
  terms.seed = number;
  if (number % 8 == 1) terms.node_of_rank = {0, 0, 1, 1, 2, 2};
  if (number % 8 == 3) terms.node_of_rank = {0, 0, 0, 1, 1, 1};
  if (number % 16 == 5) terms.node_of_rank = {0, 1, 0, 1};
  if (number % 16 == 7) terms.node_of_rank = {0, 0, 0, 1};
  if (number % 8 == 6) terms.odd = static_cast<Odd>(1 + number / 8 % 3);
  return terms;
}

TEST_F(NodesPrograms, EveryByteIsRightAndRanksAgree) {
  const uint64_t wanted = number_from("BRAID_NODES_PROGRAMS", 2 * kFewPrograms);
  const uint64_t of_a_world = std::clamp(wanted / 16, kFewPrograms, kManyPrograms);
  Tally all;
  uint64_t num_programs = 0, num_worlds = 0;
  for (; num_programs < wanted; num_programs += of_a_world, ++num_worlds) {
    const WorldTerms terms = world_of(num_worlds + number_from("BRAID_NODES_SEED", 0));
    const Tally one = run(terms, of_a_world);
    ASSERT_EQ(one.wrong, 0U) << "seed " << terms.seed << ": " << one.first_wrong;
    ASSERT_EQ(one.disagreed, 0U) << "seed " << terms.seed;
    ASSERT_EQ(one.ranks_hung, 0) << "seed " << terms.seed;
    ASSERT_EQ(one.ranks_with_error, 0) << "seed " << terms.seed << ": " << one.first_error;
    all.num_calls += one.num_calls;
    all.num_groups += one.num_groups;
    all.num_graphs += one.num_graphs;
    all.num_children += one.num_children;
    all.taken += one.taken;
    all.handed_on += one.handed_on;
  }
  EXPECT_GT(all.taken, all.num_calls / 10) << "else these programs show nothing";
  EXPECT_GT(all.handed_on, 0U);
  std::printf(
      "programs: {\"programs\": %llu, \"worlds\": %llu, \"calls\": %llu, \"groups\": %llu, "
      "\"graphs\": %llu, \"children\": %llu, \"taken\": %llu, \"handed_on\": %llu, \"wrong\": 0, "
      "\"disagreed\": 0, \"hung\": 0}\n",
      static_cast<unsigned long long>(num_programs), static_cast<unsigned long long>(num_worlds),
      static_cast<unsigned long long>(all.num_calls),
      static_cast<unsigned long long>(all.num_groups),
      static_cast<unsigned long long>(all.num_graphs),
      static_cast<unsigned long long>(all.num_children), static_cast<unsigned long long>(all.taken),
      static_cast<unsigned long long>(all.handed_on));
}

/// Whatever call of the library fails, on whichever rank: all ranks come through and have every byte
/// right, or all have an error in time. Where the library is silent about a call of the program's
/// own, nobody but the program can know.
TEST_F(NodesPrograms, AFailureAtAnyCallIsAnErrorOnAllOrOnNone) {
  const uint64_t wanted = number_from("BRAID_NODES_FAILURES", 3);
  const uint64_t most = kIsSanitized ? 300 : 1000;  // of a call's number, where there are few
  const uint64_t spread = wanted < most ? most / wanted | 1 : 1;  // odd: of every kind
  // They mostly wait: scripts/nodes_programs.py has several processes do a part each.
  const uint64_t first = number_from("BRAID_NODES_PART", 0);
  const uint64_t stride = number_from("BRAID_NODES_PARTS", 1);
  uint64_t num_worlds = 0, num_failed = 0, num_errors = 0, num_unseen = 0;
  int64_t slowest_ns = 0;
  for (uint64_t i = first; i < wanted; i += stride) {
    const uint64_t at = i * spread + (wanted < most ? 14 : 0);
    WorldTerms terms;
    terms.seed = at;
    // More than BRAID_NCCL_MEET for each race of a group's that waits, one after the other, for a rank
    // which the library holds: of small and large messages of two operations.
    terms.most_idle_ns = 45_s;
    const Failure how = at % 25 == 24 ? Failure::kSilent
                        : at % 2 == 0 ? Failure::kAnswer
                                      : Failure::kStuck;
    const Tally one = run(terms, 4 + at / 8, [&](NcclOfThreads& library) {
      library.fail_at(static_cast<int>(i % 4), at, how);
    });
    EXPECT_EQ(one.wrong, 0U) << "failure at " << at << ": " << one.first_wrong;
    EXPECT_EQ(one.disagreed, 0U) << "failure at " << at;
    EXPECT_TRUE(one.ranks_with_error == 0 || one.ranks_with_error == 4)
        << "failure at " << at << ": " << one.ranks_with_error << ", " << one.first_error;
    if (how != Failure::kSilent) {
      EXPECT_EQ(one.ranks_hung, 0) << "failure at " << at;
    }
    EXPECT_LT(one.first_to_last_error_ns, kDeadline) << "failure at " << at;
    slowest_ns = std::max(slowest_ns, one.first_to_last_error_ns);
    ++num_worlds;
    num_failed += one.has_failed ? 1 : 0;
    num_errors += one.ranks_with_error == 4 ? 1 : 0;
    num_unseen += one.ranks_hung > 0 ? 1 : 0;
  }
  EXPECT_GT(num_failed, num_worlds * 9 / 10);
  std::printf(
      "failures: {\"worlds\": %llu, \"failed\": %llu, \"error_on_all\": %llu, "
      "\"left_to_the_programs_watchdog\": %llu, \"most_s_to_the_last_rank\": %.3f}\n",
      static_cast<unsigned long long>(num_worlds), static_cast<unsigned long long>(num_failed),
      static_cast<unsigned long long>(num_errors), static_cast<unsigned long long>(num_unseen),
      static_cast<double>(slowest_ns) * 1e-9);
}

/// A rank's thread and its watchdog find a failure at one time: bytes are no result because the one
/// was amid its question when the other aborted what it asks.
TEST_F(NodesPrograms, AnAbortAmidAQuestionIsNoAnswer) {
  for (const uint64_t at : {214, 216, 218, 220}) {
    WorldTerms terms;
    terms.seed = at;
    terms.watch_every_ns = 30_ms;
    terms.asking_ns = 60_ms;
    const Tally one = run(terms, 4 + at / 8, [&](NcclOfThreads& library) {
      library.fail_at(2, at, Failure::kAnswer);
    });
    EXPECT_EQ(one.wrong, 0U) << "failure at " << at << ": " << one.first_wrong;
    EXPECT_EQ(one.ranks_with_error, 4) << "failure at " << at;
  }
}

}  // namespace
}  // namespace braid::nccl::programs
