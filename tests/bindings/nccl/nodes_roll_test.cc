// The roll over nodes, between threads over sockets on loopback: one outcome for all ranks, whatever
// they and strangers do.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "base/sanitizer.h"
#include "base/units.h"
#include "bindings/nccl/core/nodes/mark.h"
#include "bindings/nccl/core/nodes/roll_guest.h"
#include "bindings/nccl/core/nodes/roll_host.h"
#include "bindings/nccl/core/nodes/roll_wire.h"
#include "bindings/nccl/core/nodes/rolls.h"
#include "bindings/nccl/core/nodes/verdict.h"
#include "support/late_relay.h"

namespace braid::nccl {
namespace {

using Id = std::array<std::byte, kIdBytes>;
const auto never_aborted = [] { return false; };

/// As NCCL makes it: a number, the address of its bootstrap, zeros.
Id nccl_id(const char* address = "127.0.0.1") {
  Id id{};
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(4321);
  inet_pton(AF_INET, address, &at.sin_addr);
  const uint64_t number = 0x1234567890abcdef;
  std::memcpy(id.data(), &number, sizeof number);
  std::memcpy(id.data() + 8, &at, sizeof at);
  return id;
}

std::string key_of(const Id& id) { return {reinterpret_cast<const char*>(id.data()), id.size()}; }

/// Where patience is not what is tested: under a sanitizer 130 threads on two loaded cores wait
/// seconds for their turns.
constexpr int64_t kFar = kIsSanitized ? 100_s : 10_s;

Coming coming(int rank, int num_ranks, int64_t patience_ns, const std::string& words) {
  Coming made;
  made.rank = static_cast<uint32_t>(rank);
  made.num_ranks = static_cast<uint32_t>(num_ranks);
  made.patience_ns = patience_ns;
  made.words = words;
  return made;
}

std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::unique_ptr<RollGuest> signed_up(const Id& id, const std::string& token = "t") {
  const std::string key = key_of(id);
  auto guest = RollGuest::sign(*read_mark(key), key, token, Deadline::after_ns(kFar));
  EXPECT_TRUE(guest.ok()) << guest.status().to_string();
  return guest.ok() ? std::move(guest).value() : nullptr;
}

TEST(Mark, LiesInSpareBytesAndIsReadFromKeys) {
  Id id = nccl_id();
  const Id before = id;
  ASSERT_TRUE(mark_id(id, "t").ok());
  EXPECT_EQ(std::memcmp(id.data(), before.data(), 80), 0) << "NCCL's own bytes are as they were";
  const auto mark = read_mark(key_of(id) + "/split0:1");
  ASSERT_TRUE(mark.has_value());
  EXPECT_EQ(mark->at.host(), "127.0.0.1");
  EXPECT_NE(mark->at.port(), 4321);
  EXPECT_FALSE(read_mark(key_of(before)).has_value());
  EXPECT_FALSE(read_mark("short").has_value());
  EXPECT_EQ(mark_id(id, "t").code(), Code::kUnsupported) << "the bytes are used";
  Id odd{};
  EXPECT_EQ(mark_id(odd, "t").code(), Code::kUnsupported) << "no address";
}

TEST(Mark, IsToldInWords) {
  Id id = nccl_id();
  ASSERT_TRUE(mark_id(id, "").ok());
  const Mark mark = *read_mark(key_of(id));
  const auto read = decode_mark(encode(mark));
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(read->at.text(), mark.at.text());
  EXPECT_EQ(read->secret, mark.secret);
  EXPECT_TRUE(has_roll(mark));
  EXPECT_FALSE(has_roll(Mark{mark.at, {}}));
  for (const char* const bad : {"", "short", "0123456789abcdef0123456789abcdef",
                                "0123456789abcdef0123456789abcdefx 127.0.0.1",
                                "0123456789abcdef0123456789abcdef80 example"})
    EXPECT_FALSE(decode_mark(bad).ok()) << bad;
}

TEST(Mark, NamesTellNoSecretAndTokensNeedTheJobs) {
  Id id = nccl_id();
  ASSERT_TRUE(mark_id(id, "t").ok());
  const Mark mark = *read_mark(key_of(id));
  EXPECT_NE(roll_token(mark, "a"), roll_token(mark, "b"));
  EXPECT_TRUE(roll_of_key(mark, "k").starts_with(roll_of_id(mark) + "/"));
  EXPECT_NE(roll_of_key(mark, "k"), roll_of_key(mark, "l"));
}

TEST(RollWire, SaysWhatWasSaidAndNothingElse) {
  const Coming made = coming(3, 8, 5_s, "words");
  const std::string bytes = encode(made);
  const auto read = decode_coming(as_bytes(bytes));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read.value().rank, 3U);
  EXPECT_EQ(read.value().words, "words");
  for (size_t cut = 0; cut < bytes.size(); ++cut)
    EXPECT_FALSE(decode_coming(as_bytes(bytes).first(cut)).ok());
  EXPECT_FALSE(decode_coming(as_bytes(bytes + "x")).ok());
  for (const Coming& bad :
       {coming(8, 8, 1, ""), coming(0, 1, 1, ""), coming(0, 999, 1, ""), coming(0, 2, -1, "")})
    EXPECT_FALSE(decode_coming(as_bytes(encode(bad))).ok());
  // An option says how long, any number of days; who reads it has a limit.
  const auto long_one = decode_coming(as_bytes(encode(coming(0, 2, INT64_MAX, ""))));
  ASSERT_TRUE(long_one.ok()) << long_one.status().to_string();
  EXPECT_EQ(long_one->patience_ns, 7 * 24 * 3600 * 1_s);
  const std::string met = encode(Met{"", {"a", "b"}});
  EXPECT_EQ(decode_met(as_bytes(met)).value().words[1], "b");
  EXPECT_FALSE(decode_met(as_bytes(met).first(met.size() - 1)).ok());
  EXPECT_FALSE(decode_met(as_bytes(encode(Met{}))).ok()) << "neither yes nor no";
  std::vector<std::string> most(kMostNodeRanks, "words of a rank");
  most.emplace_back("what the group's meeting adds");
  const auto of_most = decode_met(as_bytes(encode(Met{"", most})));
  ASSERT_TRUE(of_most.ok()) << of_most.status().to_string();
  EXPECT_EQ(of_most->words, most);
  std::minstd_rand random(1);
  for (int i = 0; i < 20'000; ++i) {  // junk is refused, or read; nothing else happens
    std::string junk(random() % 64, '\0');
    for (char& c : junk) c = static_cast<char>(random());
    (void)decode_coming(as_bytes(junk));
    (void)decode_met(as_bytes(junk));
    (void)decode_facts(junk);
    Id id{};
    std::memcpy(id.data(), junk.data(), junk.size());
    (void)read_mark(key_of(id));
  }
}

RankFacts facts(char host, uint64_t process = 1) {
  RankFacts made;
  made.host = std::string(32, host);
  made.process = process;
  made.nccl_version = 22809;
  return made;
}

TEST(NodesVerdict, WhatIsTakenOverAndWhy) {
  const auto map_of = [](const std::string& hosts) {
    std::vector<RankFacts> ranks;
    for (const char host : hosts) ranks.push_back(facts(host));
    return judge_nodes(ranks, true);
  };
  EXPECT_EQ(map_of("aabb").value(), (fabric::NodeMap{2, 2}));
  EXPECT_EQ(map_of("aaabbbccc").value(), (fabric::NodeMap{3, 3}));
  for (const char* const hosts : {"aaaa", "ab", "abab", "aab", "aabbb", "abba"})
    EXPECT_EQ(map_of(hosts).status().code(), Code::kUnsupported) << hosts;
  std::vector<RankFacts> odd = {facts('a'), facts('a'), facts('b'), facts('b')};
  odd[3].nccl_version = 1;
  EXPECT_FALSE(judge_nodes(odd, true).ok());
  odd[3] = facts('b');
  EXPECT_TRUE(judge_nodes(odd, true).ok());
  EXPECT_FALSE(judge_nodes(odd, false).ok()) << "one process has them all";
  odd[2].unfit = "it has reasons";
  EXPECT_NE(judge_nodes(odd, true).status().message().find("it has reasons"), std::string::npos);
  const RankFacts said = decode_facts(encode(odd[2])).value();
  EXPECT_EQ(said.unfit, "it has reasons");
  EXPECT_EQ(said.host, odd[2].host);
}

/// What each of `num_ranks` threads is told of a meeting.
std::vector<Result<Met>> all_meet(std::vector<std::unique_ptr<RollGuest>>& guests,
                                  const std::string& topic, int num_ranks) {
  std::vector<Result<Met>> told(guests.size(), Result<Met>(Met{}));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < guests.size(); ++i)
    threads.emplace_back([&, i] {
      told[i] = guests[i]->meet(
          topic, coming(static_cast<int>(i), num_ranks, kFar, std::to_string(i)), never_aborted);
    });
  for (std::thread& thread : threads) thread.join();
  return told;
}

TEST(NodesRoll, AllMeetAndHearEveryone) {
  Id id = nccl_id();
  ASSERT_TRUE(mark_id(id, "t").ok());
  std::vector<std::unique_ptr<RollGuest>> guests;
  for (int rank = 0; rank < 4; ++rank) guests.push_back(signed_up(id));
  for (const char* const topic : {"first", "second"})
    for (const auto& met : all_meet(guests, topic, 4)) {
      ASSERT_TRUE(met.ok()) << met.status().to_string();
      EXPECT_EQ(met.value().words, (std::vector<std::string>{"0", "1", "2", "3"}));
    }
}

// A rank without braid, or that did not reach the roll: nobody waits, and all have one answer.
TEST(NodesRoll, FewerThanAllAreNotWaitedFor) {
  Id id = nccl_id();
  ASSERT_TRUE(mark_id(id, "t").ok());
  std::vector<std::unique_ptr<RollGuest>> guests;
  for (int rank = 0; rank < 3; ++rank) guests.push_back(signed_up(id));
  const int64_t began_ns = now_ns();
  for (const auto& met : all_meet(guests, "first", 4)) {
    ASSERT_TRUE(met.ok());
    EXPECT_FALSE(met.value().all_came());
  }
  EXPECT_LT(now_ns() - began_ns, kFar / 2);
}

TEST(NodesRoll, OneThatEndsEndsTheMeetingForAll) {
  Id id = nccl_id();
  ASSERT_TRUE(mark_id(id, "t").ok());
  std::vector<std::unique_ptr<RollGuest>> guests;
  for (int rank = 0; rank < 3; ++rank) guests.push_back(signed_up(id));
  auto last = signed_up(id);
  std::thread ends([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    last.reset();
  });
  for (const auto& met : all_meet(guests, "first", 4)) EXPECT_FALSE(met.value().all_came());
  ends.join();
}

TEST(NodesRoll, PatienceEndsForAllAlikeAlsoForWhoComesLater) {
  Id id = nccl_id();
  ASSERT_TRUE(mark_id(id, "t").ok());
  auto early = signed_up(id), late = signed_up(id);
  const auto first = early->meet("m", coming(0, 2, 200_ms, ""), never_aborted);
  EXPECT_FALSE(first.value().all_came());
  const auto second = late->meet("m", coming(1, 2, kFar, ""), never_aborted);
  EXPECT_EQ(second.value().why_not, first.value().why_not);
}

// Deadlines that pass at the very moment of the last coming: both outcomes are right, mixed ones
// never.
TEST(NodesRoll, NoOutcomeIsMixed) {
  std::atomic<int> num_yes{0};
  for (int round = 0; round < 30; ++round) {
    Id id = nccl_id();
    ASSERT_TRUE(mark_id(id, "t").ok());
    auto a = signed_up(id), b = signed_up(id);
    bool of_b = false;
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(80 + 4 * round));
      of_b = b->meet("m", coming(1, 2, kFar, ""), never_aborted).value().all_came();
    });
    const bool of_a = a->meet("m", coming(0, 2, 100_ms, ""), never_aborted).value().all_came();
    other.join();
    EXPECT_EQ(of_a, of_b);
    num_yes += of_a ? 1 : 0;
  }
  EXPECT_GT(num_yes, 0);
}

TEST(NodesRoll, RanksThatDisagreeAboutWhoTheyAre) {
  Id id = nccl_id();
  ASSERT_TRUE(mark_id(id, "t").ok());
  auto a = signed_up(id), b = signed_up(id);
  std::thread other([&] {
    EXPECT_FALSE(b->meet("m", coming(0, 2, kFar, ""), never_aborted).value().all_came());
  });
  EXPECT_FALSE(a->meet("m", coming(0, 2, kFar, ""), never_aborted).value().all_came());
  other.join();
}

TEST(NodesRoll, AnotherTokenOrIdIsRefused) {
  Id id = nccl_id(), other = nccl_id();
  ASSERT_TRUE(mark_id(id, "t").ok() && mark_id(other, "t").ok());
  const std::string key = key_of(id);
  Mark mark = *read_mark(key);
  EXPECT_FALSE(RollGuest::sign(mark, key, "another", Deadline::after_ns(kFar / 2)).ok());
  mark.secret[0] ^= std::byte{1};
  EXPECT_FALSE(RollGuest::sign(mark, key, "t", Deadline::after_ns(kFar / 2)).ok());
  EXPECT_NE(signed_up(other), nullptr);
}

// Nobody listens there, or who does says nothing: it takes no longer than it may.
TEST(NodesRoll, ARollThatCannotBeReachedIsGivenUp) {
  Id id = nccl_id();
  ASSERT_TRUE(mark_id(id, "t").ok());
  Mark mark = *read_mark(key_of(id));
  const auto hosts = sys::resolve("127.0.0.1", 0);
  const auto mute = sys::listen_on(hosts.value().front(), 5);
  mark.at = sys::local_endpoint(mute.value().get()).value();
  const int64_t began_ns = now_ns();
  EXPECT_FALSE(RollGuest::sign(mark, key_of(id), "t", Deadline::after_ns(1_s)).ok());
  EXPECT_LT(now_ns() - began_ns, 4_s);
}

// Its machine is overloaded: the ranks of a large job have come all at once.
TEST(NodesRoll, ARollThatHasNoTimeIsKnockedAtAgain) {
  Id id = nccl_id();
  ASSERT_TRUE(mark_id(id, "t").ok());
  Mark mark = *read_mark(key_of(id));
  const test::LateRelay busy(mark.at, 0, 1);
  mark.at = busy.at();
  const auto guest = RollGuest::sign(mark, key_of(id), "t", Deadline::after_ns(kFar));
  EXPECT_TRUE(guest.ok()) << guest.status().to_string();
}

// Connections that send junk, half a greeting or nothing, beside ranks.
TEST(NodesRoll, StrangersDoNotDisturb) {
  Id id = nccl_id();
  ASSERT_TRUE(mark_id(id, "t").ok());
  const sys::Endpoint at = read_mark(key_of(id))->at;
  std::vector<sys::Fd> strangers;
  std::minstd_rand random(3);
  for (int i = 0; i < 60; ++i) {
    auto fd = sys::connect_to(at, Deadline::after_ns(2_s));
    ASSERT_TRUE(fd.ok());
    std::string junk(i % 3 == 0 ? 0 : random() % 400, '\0');
    for (char& c : junk) c = static_cast<char>(random());
    (void)sys::send_some(fd.value().get(), as_bytes(junk));
    if (i % 2 == 0) strangers.push_back(std::move(fd).value());  // half open
  }
  std::vector<std::unique_ptr<RollGuest>> guests;
  for (int rank = 0; rank < 4; ++rank) guests.push_back(signed_up(id));
  for (const auto& met : all_meet(guests, "first", 4)) EXPECT_TRUE(met.value().all_came());
}

// Ranks that found no place knocked for three seconds, one and all, and heard of no reason.
TEST(NodesRoll, AFullRollSaysSo) {
  Id id = nccl_id();
  auto host = RollHost::serve(sys::resolve("127.0.0.1", 0)->front(), 2);
  ASSERT_TRUE(host.ok()) << host.status().to_string();
  const auto mark = (*host)->add_id("t");
  ASSERT_TRUE(mark.ok());
  write_mark(id, mark.value());
  const std::string key = key_of(id);
  const auto sign = [&](const std::string& child) {
    return RollGuest::sign(mark.value(), key + child, "t", Deadline::after_ns(kFar));
  };
  auto first = sign("/a"), second = sign("/b");
  ASSERT_TRUE(first.ok() && second.ok());
  const auto third = sign("/c");
  ASSERT_FALSE(third.ok());
  EXPECT_NE(third.status().message().find("full"), std::string::npos) << third.status().message();
  first.value().reset();
  EXPECT_TRUE(sign("/c").ok()) << "there is a place again";
}

TEST(NodesRoll, TheGroupOfAllRanksIsServedByTheRoll) {
  Id id = nccl_id();
  ASSERT_TRUE(mark_id(id, "t").ok());
  std::atomic<int> num_signed{0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank)
    threads.emplace_back([&, rank] {
      auto guest = signed_up(id);
      ++num_signed;
      while (num_signed < 4) std::this_thread::yield();  // as NCCL's init
      const auto met = guest->meet(kGroupTopic, coming(rank, 4, kFar, ""), never_aborted);
      ASSERT_TRUE(met.ok() && met.value().all_came());
      auto group = guest->join(met.value(), rank, 4, Deadline::after_ns(kFar), {});
      ASSERT_TRUE(group.ok()) << group.status().to_string();
      const auto all =
          (*group)->exchange("x", std::to_string(rank * rank), Deadline::after_ns(kFar));
      ASSERT_TRUE(all.ok()) << all.status().to_string();
      EXPECT_EQ(all.value(), (std::vector<std::string>{"0", "1", "4", "9"}));
      (*group)->leave();
    });
  for (std::thread& thread : threads) thread.join();
}

// 16 nodes of 8: what signing and two meetings add to NCCL's init.
// 128 ranks sign, as beside NCCL's init, and meet twice, all through a network that takes 10 ms a way
// and in which strangers knock: someone with another token, with another id, with junk, and some who
// say nothing.
TEST(NodesRoll, SixteenNodesOfEightTenMillisecondsAway) {
  constexpr int kRanks = 128;
  Id id = nccl_id(), other_id = nccl_id();
  ASSERT_TRUE(mark_id(id, "t").ok() && mark_id(other_id, "t").ok());
  const std::string key = key_of(id);
  Mark mark = *read_mark(key);
  const test::LateRelay network(mark.at, 10_ms);
  mark.at = network.at();
  Mark other = *read_mark(key_of(other_id));
  other.at = network.at();

  std::vector<sys::Fd> silent;
  std::vector<Status> strangers(2);
  std::vector<std::thread> knocking;
  for (int i = 0; i < 20; ++i)
    if (auto fd = sys::connect_to(mark.at, Deadline::after_ns(kFar / 2)); fd.ok()) {
      if (i % 2 == 0) (void)sys::send_some(fd->get(), as_bytes(std::string(300, 'j')));
      silent.push_back(std::move(fd).value());
    }
  const auto knock = [&](size_t i, const Mark& with, const std::string& token) {
    strangers[i] = RollGuest::sign(with, key, token, Deadline::after_ns(kFar / 2)).status();
  };
  const int64_t began_ns = now_ns();
  knocking.emplace_back([&] { knock(0, mark, "another"); });
  other.secret[0] ^= std::byte{1};
  knocking.emplace_back([&] { knock(1, other, "t"); });

  std::vector<std::unique_ptr<RollGuest>> guests(kRanks);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      auto guest = RollGuest::sign(mark, key, "t", Deadline::after_ns(kFar));
      EXPECT_TRUE(guest.ok()) << guest.status().to_string();
      if (guest.ok()) guests[rank] = std::move(guest).value();
    });
  for (std::thread& thread : threads) thread.join();
  for (std::thread& thread : knocking) thread.join();
  const int64_t signed_ns = now_ns() - began_ns;
  ASSERT_EQ(std::count(guests.begin(), guests.end(), nullptr), 0);
  for (const char* const topic : {"first", "second"})
    for (const auto& met : all_meet(guests, topic, kRanks))
      EXPECT_EQ(met.value().words.size(), static_cast<size_t>(kRanks));
  const int64_t met_ns = now_ns() - began_ns - signed_ns;
  EXPECT_FALSE(strangers[0].ok()) << "another token";
  EXPECT_FALSE(strangers[1].ok()) << "another id";
  std::printf("roll: {\"ranks\": %d, \"sign_ms\": %.1f, \"two_meetings_ms\": %.1f}\n", kRanks,
              static_cast<double>(signed_ns) * 1e-6, static_cast<double>(met_ns) * 1e-6);
  // Asked: a second beside NCCL's init. Where others compute, it takes its turns.
  EXPECT_LT(signed_ns + met_ns, kFar);
}

}  // namespace
}  // namespace braid::nccl
