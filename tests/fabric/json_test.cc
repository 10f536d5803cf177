#include "fabric/json.h"

#include <gtest/gtest.h>

#include <random>

#include "fabric/hash.h"
#include "fabric/merge.h"
#include "support/fake_machine.h"

namespace braid::fabric {
namespace {

Fabric sample() {
  braid::test::FakeMachine machine(4);
  Fabric fabric = merge({machine.node("a"), machine.node("a"), machine.node("b")});
  fabric.links = {paced_link(LinkKind::kShm, "shm", 0.4, 20'000),
                  assumed_link(LinkKind::kStaged, "staged")};
  return fabric;
}

std::string with(const std::string& from, const std::string& to) {
  std::string text = to_json(sample());
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string refusal(std::string_view text) {
  const Result<Fabric> fabric = parse_fabric(text);
  EXPECT_FALSE(fabric.ok());
  return fabric.ok() ? "" : fabric.status().message();
}

TEST(FabricJson, RoundTrips) {
  const std::string text = to_json(sample());
  const Result<Fabric> read = parse_fabric(text);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(to_json(read.value()), text);
  EXPECT_EQ(fabric_hash(read.value()), fabric_hash(sample()));
  EXPECT_EQ(read.value().node_of_rank, (std::vector<int>{0, 0, 1}));
  EXPECT_EQ(read.value().links[0].source, Source::kPaced);
}

TEST(FabricJson, AnEmptyFabricRoundTrips) { EXPECT_TRUE(parse_fabric(to_json(Fabric{})).ok()); }

TEST(FabricJson, NodesRoundTripAlone) {
  const Node node = sample().nodes[0];
  const Result<Node> read = parse_node(to_json(node));
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(to_json(read.value()), to_json(node));
  EXPECT_FALSE(parse_node(to_json(sample())).ok()) << "a fabric is no node";
}

TEST(FabricJson, NamesThePlaceThatIsWrong) {
  EXPECT_NE(refusal("{").find("fabric: not JSON"), std::string::npos);
  EXPECT_NE(refusal("7").find("'format' is missing"), std::string::npos);
  EXPECT_NE(refusal(with("braid-fabric", "x")).find("format is 'x'"), std::string::npos);
  EXPECT_NE(refusal(with("\"version\": 1", "\"version\": 9")).find("version is 9"),
            std::string::npos);
  EXPECT_NE(refusal(with("\"kind\": \"shm\"", "\"kind\": \"shn\""))
                .find("links[0].kind: 'shn' is unknown"),
            std::string::npos);
  EXPECT_NE(refusal(with("\"rate_gbps\": 0.4", "\"rate_gbps\": -1")).find("links[0].rate_gbps"),
            std::string::npos);
  EXPECT_NE(
      refusal(with("\"num_cores\": 48", "\"num_cores\": 4.5")).find("nodes[0].cpus[0].num_cores"),
      std::string::npos);
  EXPECT_NE(
      refusal(with("\"numa_node\": 0", "\"numa_node\": 18446744073709551615")).find("numa_node"),
      std::string::npos);
  EXPECT_NE(refusal(with("\"is_up\": true", "\"is_up\": 1")).find("expected true or false"),
            std::string::npos);
  EXPECT_NE(refusal(with("\"to\": 1", "\"to\": 4")).find("gpu_paths[0].to: 4 is not in 0 to 3"),
            std::string::npos);
}

TEST(FabricJson, RanksMustBeOnNodesThatExist) {
  std::string text = to_json(sample());
  text.replace(text.rfind("1"), 1, "2");
  EXPECT_NE(refusal(text).find("node_of_rank[2]: 2 is not in 0 to 1"), std::string::npos)
      << refusal(text);
  Fabric none;
  none.node_of_rank = {0};
  EXPECT_NE(refusal(to_json(none)).find("ranks, but no node"), std::string::npos);
}

TEST(FabricJson, NamesThatAreNotTextAreWrittenAnyway) {
  Fabric fabric = sample();
  fabric.nodes[0].name = "\xff\xfe";
  EXPECT_TRUE(parse_fabric(to_json(fabric)).ok());
}

TEST(FabricJson, DamagedTextNeverCrashes) {
  const std::string good = to_json(sample());
  std::mt19937_64 rng(5);
  for (int round = 0; round < 400; ++round) {
    std::string text = good;
    for (int k = 0; k < 1 + static_cast<int>(rng() % 4); ++k)
      text[rng() % text.size()] = static_cast<char>(rng());
    if (rng() % 4 == 0) text.resize(rng() % text.size());
    const Result<Fabric> read = parse_fabric(text);
    const std::string message = read.status().message();
    EXPECT_EQ(read.ok(), message.empty());
    for (const char c : message) EXPECT_TRUE(c >= ' ' && c <= '~') << message;
  }
}

}  // namespace
}  // namespace braid::fabric
