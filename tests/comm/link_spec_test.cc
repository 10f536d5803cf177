#include "comm/link_spec.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace braid::comm {
namespace {

using Pairs = std::map<std::string, std::string>;

Result<LinkSpecs> specs(const Pairs& pairs, Hosts hosts = Hosts::kOne) {
  auto config = Config::from_pairs(pairs);
  EXPECT_TRUE(config.ok()) << config.status().to_string();
  return link_specs(config.value(), hosts);
}

TEST(LinkSpecs, AutoTakesMemoryOnOneHostAndTheNetworkOnSeveral) {
  const auto here = specs({});
  ASSERT_TRUE(here.ok());
  EXPECT_FALSE(here->are_named);
  ASSERT_EQ(here->links.size(), 2U);
  EXPECT_EQ(here->links[0].name, "shm");
  EXPECT_EQ(here->links[1].name, "staged");
  const auto apart = specs({}, Hosts::kSeveral);
  ASSERT_TRUE(apart.ok());
  ASSERT_EQ(apart->links.size(), 1U);
  EXPECT_EQ(apart->links[0].kind, fabric::LinkKind::kRdma);
}

// Plans are made of the first ones, which lead to everyone.
TEST(LinkSpecs, NetworksComeFirstWhereMemoryJoinsTheRanksOfANode) {
  for (const char* const wanted : {"auto", "shm,rdma,staged"}) {
    const auto both = specs({{"BRAID_LINKS", wanted}}, Hosts::kStages);
    ASSERT_TRUE(both.ok()) << both.status().to_string();
    ASSERT_EQ(both->links.size(), 3U);
    EXPECT_EQ(both->links[0].name, "rdma");
    EXPECT_EQ(both->links[1].name, "shm");
    EXPECT_EQ(both->links[2].name, "staged");
  }
}

TEST(LinkSpecs, SeveralAddressesAreSeveralLinksNamedByPlace) {
  const auto rails =
      specs({{"BRAID_LINKS", "rdma"}, {"BRAID_RDMA_ADDRS", "10.0.0.1, 10.0.1.1,10.0.2.1"}});
  ASSERT_TRUE(rails.ok()) << rails.status().to_string();
  ASSERT_EQ(rails->links.size(), 3U);
  EXPECT_EQ(rails->links[1].name, "rdma1");
  EXPECT_EQ(rails->links[1].address, "10.0.1.1");
  EXPECT_EQ(rails->links[2].provider, "tcp");
}

TEST(LinkSpecs, ProviderAndAddressCanBeNamed) {
  const auto one = specs({{"BRAID_LINKS", "shm, rdma:net:127.0.0.2"}});
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(one->links[1].name, "rdma");
  EXPECT_EQ(one->links[1].provider, "net");
  EXPECT_EQ(one->links[1].address, "127.0.0.2");
}

// A killed rank may hold a lock of theirs for ever.
TEST(LinkSpecs, ProvidersThroughSharedMemoryAreRefused) {
  for (const auto& [name, value] : Pairs{{"BRAID_LINKS", "shm,rdma:shm"},
                                         {"BRAID_LINKS ", "rdma:sm2;ofi_rxd:127.0.0.1"},
                                         {"BRAID_RDMA_PROVIDER", "shm"}}) {
    Pairs pairs{{"BRAID_LINKS", "rdma"}};
    pairs[name.substr(0, name.find(' '))] = value;
    const auto refused = specs(pairs);
    EXPECT_EQ(refused.status().code(), Code::kInvalidArgument) << value;
    EXPECT_NE(refused.status().message().find("use the link shm"), std::string::npos)
        << refused.status().to_string();
  }
  EXPECT_TRUE(specs({{"BRAID_RDMA_PROVIDER", "shm"}, {"BRAID_LINKS", "shm"}}).ok())
      << "no rdma link is asked for";
}

TEST(LinkSpecs, PaceByNameAndForAllRails) {
  const auto paced = specs({{"BRAID_LINKS", "shm,rdma:tcp:127.0.0.1,rdma:tcp:127.0.0.2"},
                            {"BRAID_PACE", "shm=400MB/s@50us,rdma=0.1"}});
  ASSERT_TRUE(paced.ok()) << paced.status().to_string();
  EXPECT_DOUBLE_EQ(paced->links[0].pace.rate_gbps, 0.4);
  EXPECT_EQ(paced->links[0].pace.latency_ns, 50'000);
  EXPECT_DOUBLE_EQ(paced->links[1].pace.rate_gbps, 0.1);
  EXPECT_DOUBLE_EQ(paced->links[2].pace.rate_gbps, 0.1);
  EXPECT_TRUE(paced->links[2].is_paced);
}

// Each wrong text is refused in words that hold the wrong word.
TEST(LinkSpecs, WrongWordsAreNamed) {
  const std::pair<Pairs, const char*> cases[] = {
      {{{"BRAID_LINKS", "shm,warp"}}, "warp"},      {{{"BRAID_LINKS", "shm,shm"}}, "twice"},
      {{{"BRAID_LINKS", ","}}, "'' is not"},        {{{"BRAID_PACE", "shm"}}, "no '='"},
      {{{"BRAID_PACE", "nvlink=1"}}, "nvlink"},     {{{"BRAID_PACE", "shm=fast"}}, "fast"},
      {{{"BRAID_PACE", "shm=1GB/s@soon"}}, "soon"},
  };
  for (const auto& [pairs, word] : cases) {
    const auto wrong = specs(pairs);
    ASSERT_FALSE(wrong.ok()) << word;
    EXPECT_EQ(wrong.status().code(), Code::kInvalidArgument);
    EXPECT_NE(wrong.status().message().find(word), std::string::npos) << wrong.status().message();
  }
}

}  // namespace
}  // namespace braid::comm
