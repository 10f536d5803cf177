// Which NICs an engine opens when nobody says.
#include "engine/nics.h"

#include <gtest/gtest.h>

#include "engines.h"

namespace braid::engine::test {
namespace {

std::vector<std::string> texts(const std::vector<NicRequest>& nics) {
  std::vector<std::string> out;
  for (const NicRequest& nic : nics) out.push_back(nic.provider + " " + nic.address);
  return out;
}

sys::FabricInterface interface(const char* provider, const char* name, const char* address) {
  return {provider, name, address, 0, false};
}

using Texts = std::vector<std::string>;

TEST(Nics, EveryDeviceOfTheBestFabricIsTakenOnce) {
  NicFacts facts;
  facts.addresses = {"10.0.0.1"};
  facts.interfaces = {interface("verbs;ofi_rxm", "mlx5_0", "127.0.0.1"),
                      interface("verbs;ofi_rxm", "mlx5_0", "10.1.0.1"),
                      interface("verbs;ofi_rxm", "mlx5_0", "fe80::1"),
                      interface("verbs;ofi_rxm", "mlx5_1", ""),
                      interface("verbs;ofi_rxm", "mlx5_1", "10.2.0.1")};
  EXPECT_EQ(texts(choose_nics(facts)), (Texts{"verbs;ofi_rxm 10.1.0.1", "verbs;ofi_rxm 10.2.0.1"}));
  facts.interfaces.push_back(interface("verbs", "mlx5_0", "10.1.0.1"));
  facts.interfaces.push_back(interface("verbs", "mlx5_1:2", ""));  // InfiniBand has no address
  EXPECT_EQ(texts(choose_nics(facts)), (Texts{"verbs mlx5_0", "verbs mlx5_1:2"}));
  facts.interfaces.push_back(interface("efa", "rdmap0s6-rdm", ""));
  EXPECT_EQ(texts(choose_nics(facts)), (Texts{"efa rdmap0s6-rdm"}));
}

TEST(Nics, WithoutAFabricBytesGoByTheAddressesOfTheHost) {
  NicFacts facts;
  facts.addresses = {"10.0.0.1", "fd00::1", "10.0.0.1"};
  EXPECT_EQ(texts(choose_nics(facts)), (Texts{"tcp 10.0.0.1", "tcp fd00::1"}));
  facts.interfaces = {interface("verbs;ofi_rxm", "mlx5_0", "")};  // a port without an address
  EXPECT_EQ(texts(choose_nics(facts)), (Texts{"tcp 10.0.0.1", "tcp fd00::1"}));
}

TEST(Nics, LoopbackNeedsNoFabric) {
  NicFacts facts;
  facts.addresses = {"127.0.0.1"};
  facts.are_loopback = true;
  facts.interfaces = {interface("efa", "rdmap0s6-rdm", "")};
  EXPECT_EQ(texts(choose_nics(facts)), (Texts{"tcp 127.0.0.1"}));
}

TEST(Nics, ThereAreNotMoreThanTheMost) {
  NicFacts facts;
  for (size_t i = 0; i < 2 * kMostChosenNics; ++i) {
    const std::string number = std::to_string(i);
    facts.addresses.push_back("10.0.0." + number);
    facts.interfaces.push_back({"efa", "efa" + number, "", 0, false});
  }
  EXPECT_EQ(choose_nics(facts).size(), kMostChosenNics);
  facts.interfaces.clear();
  EXPECT_EQ(choose_nics(facts).size(), kMostChosenNics);
}

TEST(Nics, AreFoundOnThisMachine) {
  const std::vector<std::string> loopback = {"127.0.0.1", "::1"};
  auto found = find_nics(loopback, true);
  ASSERT_TRUE(is_ok(found));
  for (const NicRequest& nic : *found) EXPECT_TRUE(nic.provider == "tcp" || nic.provider == "net");
  const std::vector<std::string> nowhere = {"no host has this name.invalid"};
  EXPECT_FALSE(find_nics(nowhere, true).ok());
}

TEST(Nics, AreReadFromText) {
  std::vector<NicRequest> nics;
  for (const char* text : {"tcp:127.0.0.1", "tcp:fd00::1", "shm", "verbs;ofi_rxm:10.0.0.1"})
    nics.push_back(parse_nic(text).value());
  EXPECT_EQ(texts(nics), (Texts{"tcp 127.0.0.1", "tcp fd00::1", "shm ", "verbs;ofi_rxm 10.0.0.1"}));
  EXPECT_TRUE(failed(parse_nic("").status(), Code::kInvalidArgument, "PROVIDER:ADDRESS"));
  EXPECT_TRUE(failed(parse_nic(":1").status(), Code::kInvalidArgument, "NIC ':1'"));
}

TEST(Hosts, OnlyATokenOpensThePortToOthers) {
  const auto address = [](const char* text) { return sys::resolve(text, 0)->front(); };
  const std::vector<sys::Interface> alone = {{"lo", address("127.0.0.1"), true}};
  std::vector<sys::Interface> wired = alone;
  wired.push_back({"eth0", address("10.0.0.1"), false});
  EXPECT_EQ(choose_hosts(false, wired), Texts{"127.0.0.1"});
  EXPECT_EQ(choose_hosts(true, wired), Texts{"0.0.0.0"});
  EXPECT_EQ(choose_hosts(true, alone), Texts{"127.0.0.1"});
}

TEST(Tickets, CallAllWhoAskedInOrder) {
  Ticket ticket("a wait", 0, nullptr);
  std::string calls;
  EXPECT_TRUE(ticket.then([&](const Status& ended) { calls += ended.ok() ? "1" : "x"; }));
  EXPECT_TRUE(ticket.then([&](const Status&) { calls += "2"; }));
  ticket.finish({})({});
  EXPECT_EQ(calls, "12");
  EXPECT_FALSE(ticket.then([&](const Status&) { calls += "3"; }));
  EXPECT_EQ(calls, "12");
}

TEST(Mailboxes, TellOnceOfTheNextMessage) {
  Mailbox mailbox(1 << 20);
  int calls = 0;
  EXPECT_TRUE(mailbox.tell([&] { ++calls; }));
  EXPECT_TRUE(mailbox.put({"one", "a", {}}));
  EXPECT_TRUE(mailbox.put({"two", "a", {}}));
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(mailbox.tell([&] { ++calls; }));
  (void)mailbox.take(in_seconds(1));
  (void)mailbox.take(in_seconds(1));
  EXPECT_TRUE(mailbox.tell([&] { ++calls; }));
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace braid::engine::test
