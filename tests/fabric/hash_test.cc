#include "fabric/hash.h"

#include <gtest/gtest.h>

#include "fabric/merge.h"
#include "support/fake_machine.h"

namespace braid::fabric {
namespace {

Fabric sample_gpus() {
  braid::test::FakeMachine machine;
  Fabric fabric = merge(std::vector<Node>(8, machine.node()));
  fabric.links = gpu_links(fabric);
  return fabric;
}

TEST(FabricHash, IsSixteenHexDigitsAndStable) {
  const std::string hash = fabric_hash(sample_gpus());
  EXPECT_EQ(hash.size(), 16u);
  EXPECT_EQ(hash.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(hash, fabric_hash(sample_gpus()));
  // A published function: a cache written by an older build must be found again.
  EXPECT_EQ(fabric_hash(Fabric{}), "eb6fcc53b2b6ae40") << fingerprint(Fabric{});
}

template <typename Change>
std::string hash_after(Change change) {
  Fabric fabric = sample_gpus();
  change(fabric);
  return fabric_hash(fabric);
}

TEST(FabricHash, ChangesWithWhatATuningDependsOn) {
  const std::string hash = fabric_hash(sample_gpus());
  EXPECT_NE(hash, hash_after([](Fabric& f) { f.node_of_rank.pop_back(); }));
  EXPECT_NE(hash, hash_after([](Fabric& f) { f.nodes[0].cpus[0].num_cores = 2; }));
  EXPECT_NE(hash, hash_after([](Fabric& f) { f.nodes[0].gpus[3].num_nvlinks = 8; }));
  EXPECT_NE(hash, hash_after([](Fabric& f) { f.nodes[0].gpus[3].name = "other"; }));
  EXPECT_NE(hash, hash_after([](Fabric& f) { f.nodes[0].nics[0].is_up = false; }));
  EXPECT_NE(hash, hash_after([](Fabric& f) { f.nodes[0].nics[0].rate_gbps *= 2; }));
  EXPECT_NE(hash, hash_after([](Fabric& f) { f.links.pop_back(); }));
  EXPECT_NE(hash, hash_after([](Fabric& f) { std::swap(f.links[0], f.links[1]); }));
  EXPECT_NE(hash, hash_after([](Fabric& f) { f.links[0].source = Source::kPaced; }));
  EXPECT_NE(hash, hash_after([](Fabric& f) { f.links[0].rate_gbps *= 2; }));
}

TEST(FabricHash, IgnoresNamesAddressesAndMemory) {
  const std::string hash = fabric_hash(sample_gpus());
  EXPECT_EQ(hash,
            hash_after([](Fabric& f) { f.nodes[0].name = f.nodes[0].host_id = "elsewhere"; }));
  EXPECT_EQ(hash, hash_after([](Fabric& f) { f.nodes[0].cpus[0].memory_bytes += 4096; }));
  EXPECT_EQ(hash, hash_after([](Fabric& f) { f.nodes[0].nics[0].address = "10.9.9.9"; }));
  EXPECT_EQ(hash, hash_after([](Fabric& f) { f.nodes[0].gpus[0].pci_address = "0000:ff:00.0"; }));
  EXPECT_EQ(hash, hash_after([](Fabric& f) { f.links[0].rate_gbps *= 1.01; }))
      << "within the class";
}

TEST(FabricHash, RatesThatAreOnlyAssumedOrMeasuredDoNotCount) {
  const auto with = [](Source source, double rate) {
    return hash_after([&](Fabric& f) {
      f.links[0].source = source;
      f.links[0].rate_gbps = rate;
    });
  };
  EXPECT_EQ(with(Source::kMeasured, 10), with(Source::kMeasured, 300));
  EXPECT_EQ(with(Source::kAssumed, 10), with(Source::kAssumed, 300));
  EXPECT_NE(with(Source::kPaced, 10), with(Source::kPaced, 300));
}

}  // namespace
}  // namespace braid::fabric
