#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "plan/plan.h"

namespace braid::plan {
namespace {

std::vector<fabric::Link> two_links() {
  std::vector<fabric::Link> links(2);
  links[0] = {.name = "shm", .kind = fabric::LinkKind::kShm, .rate_gbps = 5, .shares_with = {}};
  links[1] = {.name = "rdma:tcp:lo",
              .kind = fabric::LinkKind::kRdma,
              .rate_gbps = 0.8,
              .latency_ns = 14000,
              .source = fabric::Source::kPaced,
              .shares_with = "x16:0"};
  return links;
}

Plan sample_plan() {
  return {{Op::kAllGather, 64 << 20, 4}, {49152, 16384}, 65536, 1.5e6, "they finish together"};
}

TEST(Words, SayEveryLinkItsPartAndTheReason) {
  const std::string words = to_words(sample_plan(), two_links());
  for (const char* part :
       {"all_gather", "4 ranks", "shm", "75.0 %", "rdma:tcp:lo", "25.0 %", "paced",
        "shares x16:0 with other links", "because they finish together"})
    EXPECT_NE(words.find(part), std::string::npos) << part << " is not in:\n" << words;
}

TEST(Words, SayWhenThereIsNoPrediction) {
  Plan plan = sample_plan();
  plan.predicted_ns = 0;
  EXPECT_NE(to_words(plan, two_links()).find("no prediction"), std::string::npos);
}

TEST(Words, WhatTuningMeasuredStandsInTheFactsPlace) {
  Plan plan = sample_plan();
  plan.alone_ns = {0, 128e6};
  const std::string words = to_words(plan, two_links());
  EXPECT_NE(words.find("at 5 GB/s, 0 ns (assumed)"), std::string::npos) << words;
  EXPECT_NE(
      words.find("at 0.524 GB/s (tuned: all of it alone in 128 ms, shares x16:0 with other links)"),
      std::string::npos)
      << words;
  EXPECT_EQ(words.find("paced"), std::string::npos) << words;
  const auto json = nlohmann::json::parse(to_json(plan, two_links()));
  EXPECT_EQ(json["links"][0]["alone_ns"], 0);
  EXPECT_EQ(json["links"][1]["alone_ns"], 128e6);
  EXPECT_EQ(nlohmann::json::parse(to_json(sample_plan(), two_links()))["links"][1]["alone_ns"], 0);
}

TEST(Json, HasStableFields) {
  const auto json = nlohmann::json::parse(to_json(sample_plan(), two_links()));
  EXPECT_EQ(json["op"], "all_gather");
  EXPECT_EQ(json["bytes"], 64 << 20);
  EXPECT_EQ(json["size_class"], 26);
  EXPECT_EQ(json["cell_bytes"], 65536);
  EXPECT_EQ(json["links"].size(), 2u);
  EXPECT_EQ(json["links"][1]["share"], 16384);
  EXPECT_EQ(json["links"][1]["fraction"], 0.25);
  EXPECT_EQ(json["links"][1]["bytes"], 16 << 20);
  EXPECT_EQ(json["links"][1]["kind"], "rdma");
  EXPECT_EQ(json["links"][1]["source"], "paced");
}

TEST(Json, NamesThatAreNotTextDoNotThrow) {
  std::vector<fabric::Link> links = two_links();
  links[0].name = "\xff\xfe\"";
  EXPECT_TRUE(nlohmann::json::accept(to_json(sample_plan(), links)));
}

TEST(WordsDeathTest, SharesMustFitTheLinks) {
  EXPECT_DEATH(to_words(sample_plan(), std::vector<fabric::Link>(3)), "2 shares for 3 links");
}

}  // namespace
}  // namespace braid::plan
