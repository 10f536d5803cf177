#include "plan/search.h"

#include <gtest/gtest.h>

#include <numeric>

#include "plan/simulated_links.h"
#include "plan/solve.h"

namespace braid::plan {
namespace {

using testing::SimulatedLinks;

Shares even(size_t n) { return to_shares(std::vector<double>(n, 1)); }

// Drives a search to its end; the median of `calls` runs counts, as a tuner does it.
void run(StepSearch& search, SimulatedLinks& links, int calls = 1) {
  for (int guard = 0; !search.done(); ++guard) {
    ASSERT_LT(guard, 100) << "does not end";
    ASSERT_EQ(std::accumulate(search.shares().begin(), search.shares().end(), uint64_t{0}), kWhole);
    std::vector<std::vector<int64_t>> runs;
    for (int c = 0; c < calls; ++c) runs.push_back(links.run(search.shares()));
    std::vector<int64_t> medians;
    for (size_t i = 0; i < links.links.size(); ++i) {
      std::sort(runs.begin(), runs.end(),
                [&](const auto& a, const auto& b) { return a[i] < b[i]; });
      medians.push_back(runs[runs.size() / 2][i]);
    }
    search.observe(medians);
  }
}

TEST(StepSearch, LevelsRates421FromAnEvenStart) {
  SimulatedLinks links({{"a", 0.4}, {"b", 0.2}, {"c", 0.1}}, 64e6);
  StepSearch search(even(3), links.names());
  run(search, links);
  EXPECT_LE(links.call_ns(search.best()), 1.03 * links.ideal_ns());
  EXPECT_LE(search.rounds(), 12);
}

TEST(StepSearch, LevelsFlexLinksRatesFromAllOnOneNearly) {
  SimulatedLinks links({{"nvlink", 147}, {"pcie", 22}, {"rdma", 12}}, 256e6);
  StepSearch search(to_shares(std::vector<double>{0.98, 0.01, 0.01}), links.names());
  run(search, links);
  EXPECT_LE(links.call_ns(search.best()), 1.04 * links.ideal_ns());
  EXPECT_LE(search.rounds(), 16);
}

TEST(StepSearch, AGoodStartIsRecognisedInOneRound) {
  SimulatedLinks links({{"a", 4}, {"b", 2}}, 1e8);
  StepSearch search(to_shares(std::vector<double>{2, 1}), links.names());
  run(search, links);
  EXPECT_EQ(search.rounds(), 1);
  EXPECT_NE(search.why().find("all links finish within"), std::string::npos) << search.why();
}

TEST(StepSearch, LevelsLinksWithLatency) {
  SimulatedLinks links({{"a", 10, 5e3}, {"b", 4, 2e6}, {"c", 2, 5e5}}, 1e8);
  StepSearch search(even(3), links.names());
  run(search, links);
  const std::vector<int64_t> finish = links.run(search.best());
  const auto [least, most] = std::minmax_element(finish.begin(), finish.end());
  EXPECT_LE(static_cast<double>(*most - *least), 0.05 * static_cast<double>(*most));
}

TEST(StepSearch, EndsWithinBoundsUnderNoise) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SimulatedLinks links({{"a", 0.4}, {"b", 0.2}, {"c", 0.1}}, 64e6, 0.05, seed);
    StepSearch search(even(3), links.names());
    run(search, links, 5);
    EXPECT_LE(search.rounds(), 24);
    EXPECT_LE(links.call_ns(search.best()), 1.15 * links.ideal_ns()) << "seed " << seed;
  }
}

TEST(StepSearch, DropsADeadLinkAndGoesOn) {
  SimulatedLinks links({{"a", 2}, {"dead", 1, 0, true}, {"c", 1}}, 1e8);
  StepSearch search(even(3), links.names());
  run(search, links);
  EXPECT_EQ(search.best()[1], 0u);
  EXPECT_LE(links.call_ns(search.best()), 1.04 * links.ideal_ns());
}

TEST(StepSearch, ALinkThatDiesLaterTakesTheOldBestWithIt) {
  SimulatedLinks links({{"a", 2}, {"b", 2}, {"c", 1}}, 1e8);
  StepSearch search(even(3), links.names());
  search.observe(links.run(search.shares()));
  links.links[1].is_dead = true;
  run(search, links);
  EXPECT_EQ(search.best()[1], 0u);
  EXPECT_GT(search.best_ns(), 0);
}

TEST(StepSearch, ALinkTooSlowForTheFloorIsLeftOut) {
  SimulatedLinks links({{"a", 100}, {"b", 0.1}}, 1e8);
  StepSearch search(even(2), links.names());
  run(search, links);
  EXPECT_EQ(search.best(), (Shares{kWhole, 0}));
}

TEST(StepSearch, AllLinksLostEndsIt) {
  StepSearch search(even(2), {"a", "b"});
  search.observe(std::vector<int64_t>{StepSearch::kLost, StepSearch::kLost});
  EXPECT_TRUE(search.done());
  EXPECT_EQ(search.best_ns(), 0);
}

TEST(StepSearch, OneLinkIsNoSearch) {
  StepSearch search({0, kWhole, 0}, {"a", "b", "c"});
  EXPECT_TRUE(search.done());
  EXPECT_EQ(search.best(), (Shares{0, kWhole, 0}));
}

TEST(StepSearch, LinksWithoutShareStayOut) {
  SimulatedLinks links({{"a", 3}, {"b", 1}, {"c", 1000}}, 1e8);
  StepSearch search(to_shares(std::vector<double>{1, 1, 0}), links.names());
  run(search, links);
  EXPECT_EQ(search.best()[2], 0u);
}

// A link that gets slower the more the other one carries: the order flips although each move was
// right by itself.
TEST(StepSearch, HalvesTheStepWhenTheOrderFlips) {
  StepSearch search(even(2), {"a", "b"});
  const int64_t times[][2] = {{200, 100}, {100, 200}, {200, 100},
                              {100, 200}, {200, 100}, {100, 200}};
  std::vector<uint32_t> moves;
  for (const auto& t : times) {
    const Shares before = search.shares();
    search.observe(t);
    if (search.done()) break;
    moves.push_back(before[0] > search.shares()[0] ? before[0] - search.shares()[0]
                                                   : search.shares()[0] - before[0]);
  }
  ASSERT_GE(moves.size(), 4u);
  for (size_t i = 1; i < moves.size(); ++i) EXPECT_NEAR(moves[i], moves[i - 1] / 2.0, 2);
}

TEST(StepSearch, RemembersTheBestRoundNotTheLast) {
  SearchOptions options;
  options.max_rounds = 3;
  StepSearch search(even(2), {"a", "b"}, options);
  search.observe(std::vector<int64_t>{500, 100});
  const Shares second = search.shares();
  search.observe(std::vector<int64_t>{300, 200});
  search.observe(std::vector<int64_t>{900, 100});
  EXPECT_TRUE(search.done());
  EXPECT_EQ(search.best(), second);
  EXPECT_EQ(search.shares(), second);
  EXPECT_EQ(search.best_ns(), 300);
}

TEST(StepSearch, ObservingAfterTheEndChangesNothing) {
  StepSearch search(even(2), {"a", "b"});
  search.observe(std::vector<int64_t>{100, 100});
  ASSERT_TRUE(search.done());
  search.observe(std::vector<int64_t>{900, 100});
  EXPECT_EQ(search.rounds(), 1);
  EXPECT_EQ(search.shares(), even(2));
}

TEST(StepSearch, EveryRoundSaysWhatItDid) {
  StepSearch search(even(2), {"shm", "staged"});
  search.observe(std::vector<int64_t>{100'000, 300'000});
  EXPECT_NE(search.why().find("from staged"), std::string::npos) << search.why();
  EXPECT_NE(search.why().find("to shm"), std::string::npos) << search.why();
}

TEST(StepSearch, SixtyFourLinksEnd) {
  std::vector<testing::SimulatedLink> many;
  for (int i = 0; i < 64; ++i) many.push_back({"l" + std::to_string(i), 1.0 + i % 7});
  SimulatedLinks links(many, 1e9);
  StepSearch search(even(64), links.names());
  const double before = links.call_ns(search.shares());
  run(search, links);
  EXPECT_LE(links.call_ns(search.best()), before);
}

}  // namespace
}  // namespace braid::plan
