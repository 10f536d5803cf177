// Rails that drop, fail, fall silent, come back and write late: nothing is lost, torn, early or
// counted twice.
#include <algorithm>
#include <numeric>
#include <random>
#include <thread>

#include "engine/engine.h"
#include "engines.h"

namespace braid::engine::test {
namespace {

Way rails(int count, sys::FakeRules rules = {}) {
  rules.is_truthful = true;
  return {"fake", false, "fake", count, rules};
}

struct Pair {
  explicit Pair(const Way& way, int64_t silence_ns = 100'000'000) : engines(way) {
    EngineOptions of_a = engines.options("a"), of_b = engines.options("b");
    of_a.rail_silence_ns = of_b.rail_silence_ns = silence_ns;
    a = Engines::make(of_a);
    b = Engines::make(of_b);
  }
  Engines engines;
  std::unique_ptr<Engine> a, b;
};

bool are_all(const std::vector<std::byte>& bytes, uint8_t value) {
  return std::all_of(bytes.begin(), bytes.end(),
                     [&](std::byte x) { return x == static_cast<std::byte>(value); });
}

std::string name_of(sys::FakeFault fault) {
  constexpr const char* kNames[] = {"Drop", "Reset", "Zombie", "Mute", "Fail", "Repeat"};
  return kNames[static_cast<int>(fault)];
}

class Faults : public testing::TestWithParam<sys::FakeFault> {};

// Each round writes everything anew; faults meet random pieces of it.
TEST_P(Faults, NothingIsLostOrCountedTwice) {
  for (const bool lost_fails : {true, false}) {
    sys::FakeRules rules;
    rules.lost_fails = lost_fails;
    rules.reorder_window = 8;
    rules.max_delay_polls = 4;
    Pair pair(rails(2, rules));
    constexpr uint64_t kPage = 4096, kPages = 128;
    Memory from(*pair.a, kPage * kPages, 1), to(*pair.b, kPage * kPages, 2);
    const RemoteRegion remote = import(*pair.a, to);
    std::mt19937 random(3);
    uint64_t counts = 0;
    for (int round = 0; round < 12; ++round) {
      const auto fresh = pattern(from.bytes.size(), 100 + static_cast<uint32_t>(round));
      std::copy(fresh.begin(), fresh.end(), from.bytes.begin());
      std::vector<uint64_t> ids(kPages), places(kPages);
      std::iota(ids.begin(), ids.end(), 0);
      places = ids;
      std::shuffle(places.begin(), places.end(), random);
      PageList list;
      list.page_bytes = kPage;
      list.source_ids = ids;
      list.target_ids = places;
      if (round > 0)
        for (int i = 0; i < 2; ++i)
          pair.engines.fabric().inject("a" + std::to_string(random() % 2), random() % 60,
                                       GetParam());
      ASSERT_TRUE(is_ok(wait(pair.a->write_pages(from.region, remote, list, under(5)))));
      counts += kPages;
      ASSERT_EQ(pair.b->count(5), counts);
      for (uint64_t i = 0; i < kPages; ++i)
        ASSERT_TRUE(std::equal(from.region->base + i * kPage, from.region->base + (i + 1) * kPage,
                               to.region->base + places[i] * kPage));
    }
  }
}

// A piece that comes back, or flies again, does so between the regions of its own plane.
TEST_P(Faults, PlanesAreWholeAndCountedOnce) {
  sys::FakeRules rules;
  rules.reorder_window = 8;
  rules.max_delay_polls = 4;
  Pair pair(rails(2, rules));
  constexpr uint64_t kPage = 4096, kPages = 24;
  constexpr size_t kPlanes = 6;
  std::vector<std::unique_ptr<Memory>> from, to;
  std::vector<PagePlane> planes;
  for (uint32_t i = 0; i < kPlanes; ++i) {
    from.push_back(std::make_unique<Memory>(*pair.a, kPage * kPages, 1));
    to.push_back(std::make_unique<Memory>(*pair.b, kPage * kPages, 2));
    planes.push_back({from[i]->region, import(*pair.a, *to[i])});
  }
  std::mt19937 random(4);
  std::vector<uint64_t> ids(kPages), places(kPages);
  std::iota(ids.begin(), ids.end(), 0);
  places.assign(ids.rbegin(), ids.rend());
  PageList list;
  list.page_bytes = kPage;
  list.source_ids = ids;
  list.target_ids = places;
  for (uint64_t round = 0; round < 8; ++round) {
    for (uint32_t i = 0; i < kPlanes; ++i) {
      const auto fresh = pattern(kPage * kPages, static_cast<uint32_t>(100 + kPlanes * round) + i);
      std::copy(fresh.begin(), fresh.end(), from[i]->bytes.begin());
    }
    if (round > 0)
      for (int i = 0; i < 2; ++i)
        pair.engines.fabric().inject("a" + std::to_string(random() % 2), random() % 60, GetParam());
    ASSERT_TRUE(is_ok(wait(pair.a->write_pages(planes, list, under(5)))));
    ASSERT_EQ(pair.b->count(5), (round + 1) * kPlanes * kPages);
    for (size_t plane = 0; plane < kPlanes; ++plane)
      for (uint64_t i = 0; i < kPages; ++i)
        ASSERT_TRUE(std::equal(from[plane]->region->base + i * kPage,
                               from[plane]->region->base + (i + 1) * kPage,
                               to[plane]->region->base + places[i] * kPage));
  }
}

TEST(Rails, PlanesWhoseDeadlinePassesAreFreeAgain) {
  Pair pair(rails(1), 10 * kSecond);
  constexpr uint64_t kPage = 4096, kPages = 64;
  std::vector<std::unique_ptr<Memory>> from, to;
  std::vector<PagePlane> planes;
  for (uint32_t i = 0; i < 5; ++i) {
    from.push_back(std::make_unique<Memory>(*pair.a, kPage * kPages, i));
    to.push_back(std::make_unique<Memory>(*pair.b, kPage * kPages, 9));
    planes.push_back({from[i]->region, import(*pair.a, *to[i])});
  }
  std::vector<uint64_t> ids(kPages);
  std::iota(ids.begin(), ids.end(), 0);
  PageList list;
  list.page_bytes = kPage;
  list.source_ids = list.target_ids = ids;
  ASSERT_TRUE(is_ok(wait(pair.a->write_pages(planes, list, under(1)))));
  pair.engines.fabric().stall("b0");
  const auto late = pair.a->write_pages(planes, list, under(2, kSecond / 10));
  ASSERT_TRUE(is_ok(late));
  EXPECT_TRUE(failed(pair.a->unregister(*from[3]->region, in_seconds(1)), Code::kInvalidArgument,
                     "transfers of ours use"));
  EXPECT_TRUE(failed(wait(late), Code::kTimeout, "write_pages of 320 pages of 4096 bytes"));
  EXPECT_EQ(pair.b->count(2), 0);
  for (const auto& memory : from)
    EXPECT_TRUE(is_ok(pair.a->unregister(*memory->region, in_seconds(1))));
  pair.engines.fabric().resume("b0");
  for (const auto& memory : to)
    EXPECT_TRUE(is_ok(pair.b->unregister(*memory->region, in_seconds(20))));
  EXPECT_EQ(pair.b->count(2), 0);
}

INSTANTIATE_TEST_SUITE_P(All, Faults,
                         testing::Values(sys::FakeFault::kDrop, sys::FakeFault::kReset,
                                         sys::FakeFault::kZombie, sys::FakeFault::kMute,
                                         sys::FakeFault::kFail, sys::FakeFault::kRepeat),
                         [](const auto& instance) { return name_of(instance.param); });

TEST(Rails, ASilentOneIsGivenUpAndUsedAgain) {
  Pair pair(rails(3));
  constexpr size_t kBytes = 6 << 20;
  Memory from(*pair.a, kBytes, 1), to(*pair.b, kBytes, 2);
  const RemoteRegion remote = import(*pair.a, to);
  ASSERT_TRUE(is_ok(wait(pair.a->write({from.region, 0}, {remote, 0}, kBytes))));
  pair.engines.fabric().stall("b1");
  std::fill(to.bytes.begin(), to.bytes.end(), std::byte{0});
  ASSERT_TRUE(is_ok(wait(pair.a->write({from.region, 0}, {remote, 0}, kBytes, under(1)))));
  EXPECT_EQ(from.bytes, to.bytes);
  EXPECT_GE(pair.a->stats().rails_fenced, 1);  // on a machine that others load, another one too
  pair.engines.fabric().resume("b1");
  const Deadline deadline = in_seconds(20);
  bool are_up = false;
  while (!are_up && !deadline.passed()) {
    std::fill(to.bytes.begin(), to.bytes.end(), std::byte{0});
    ASSERT_TRUE(is_ok(wait(pair.a->write({from.region, 0}, {remote, 0}, kBytes, under(1)))));
    ASSERT_EQ(from.bytes, to.bytes);
    for (const std::string& line : pair.a->health(in_seconds(5)))
      are_up |= line.find("'b'") != std::string::npos && line.find(" down") == std::string::npos &&
                line.find("probing") == std::string::npos &&
                line.find("called") == std::string::npos;
  }
  EXPECT_TRUE(are_up);
}

TEST(Rails, EachCarriesWhatItsRateAllows) {
  Pair pair(rails(3), 2 * kSecond);
  const double rates[] = {0.4, 0.2, 0.1};
  for (int i = 0; i < 3; ++i) pair.engines.fabric().set_rate("a" + std::to_string(i), rates[i]);
  constexpr uint64_t kPage = 65536, kPages = 1200;
  Memory from(*pair.a, kPage * kPages, 1), to(*pair.b, kPage * kPages, 2);
  std::vector<uint64_t> ids(kPages), places(kPages);
  std::iota(ids.begin(), ids.end(), 0);
  places = ids;
  std::shuffle(places.begin(), places.end(), std::mt19937(1));
  PageList list;
  list.page_bytes = kPage;
  list.source_ids = ids;
  list.target_ids = places;
  const RemoteRegion remote = import(*pair.a, to);
  ASSERT_TRUE(is_ok(wait(pair.a->write_pages(from.region, remote, list))));
  const int64_t began = now_ns();
  ASSERT_TRUE(is_ok(wait(pair.a->write_pages(from.region, remote, list))));
  const double gbps = static_cast<double>(kPage * kPages) / static_cast<double>(now_ns() - began);
  RecordProperty("GB_per_s", std::to_string(gbps));
  EXPECT_GT(gbps, 0.7 * 0.8);  // of the sum; the figure itself is `braid bench engine`'s
}

TEST(Rails, AReadThatHearsNothingNudgesWhereAcknowledgementsComeLate) {
  for (const bool is_late : {false, true}) {
    sys::FakeRules rules;
    rules.delays_acknowledgements = is_late;
    Pair pair(rails(1, rules), 2 * kSecond);
    constexpr size_t kBytes = 1 << 20;
    Memory from(*pair.b, kBytes, 1), to(*pair.a, kBytes, 2);
    const RemoteRegion remote = import(*pair.a, from);
    ASSERT_TRUE(is_ok(wait(pair.a->read({to.region, 0}, {remote, 0}, 8))));
    const uint64_t before = pair.engines.fabric().num_landed();
    pair.engines.fabric().set_rate("b0", 0.02);  // so the read takes 50 ms
    ASSERT_TRUE(is_ok(wait(pair.a->read({to.region, 0}, {remote, 0}, kBytes))));
    EXPECT_EQ(to.bytes, from.bytes);
    const uint64_t nudges = pair.engines.fabric().num_landed() - before;
    EXPECT_EQ(nudges > 3, is_late) << nudges;
    EXPECT_EQ(nudges == 0, !is_late) << nudges;
  }
}

TEST(Rails, WhenAllAreSilentTheDeadlineEndsItAndNothingLandsLater) {
  Pair pair(rails(2), 5 * kSecond);
  constexpr size_t kBytes = 1 << 20;
  Memory from(*pair.a, kBytes, 1), to(*pair.b, kBytes, 2);
  const RemoteRegion remote = import(*pair.a, to);
  ASSERT_TRUE(is_ok(wait(pair.a->write({from.region, 0}, {remote, 0}, 8))));
  pair.engines.fabric().stall("b0");
  pair.engines.fabric().stall("b1");
  const Status ended =
      wait(pair.a->write({from.region, 0}, {remote, 0}, kBytes, under(1, 300'000'000)));
  EXPECT_TRUE(failed(ended, Code::kTimeout, "pieces on their way to 'b'"));
  std::fill(to.bytes.begin(), to.bytes.end(), std::byte{9});
  pair.engines.fabric().resume("b0");
  pair.engines.fabric().resume("b1");
  ASSERT_TRUE(is_ok(wait(pair.a->write({from.region, 0}, {remote, 0}, 0, under(2)))));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_TRUE(are_all(to.bytes, 9));
  EXPECT_EQ(pair.b->count(1), 0);
}

TEST(Rails, WithoutOneInCommonThereIsNoWay) {
  Engines engines(rails(1));
  EngineOptions of_a = engines.options("a"), of_b = engines.options("b");
  of_b.nics.clear();
  auto a = Engines::make(of_a), b = Engines::make(of_b);
  Memory from(*a, 100, 1), to(*b, 100, 2);
  EXPECT_TRUE(failed(wait(a->write({from.region, 0}, {import(*a, to), 0}, 100)), Code::kUnavailable,
                     "no way there"));
}

TEST(Rails, LiarsAreRefused) {
  sys::FakeRules rules;
  rules.is_truthful = false;
  Engines engines(Way{"fake", false, "fake", 1, rules});
  EXPECT_TRUE(
      failed(Engine::create(engines.options("a")).status(), Code::kUnsupported, "never landed"));
}

TEST(Limits, TooManyTransfersAndAFullMailbox) {
  Engines engines(Way{"local", true, "", 0, {}});
  EngineOptions of_a = engines.options("a"), of_b = engines.options("b");
  of_a.most_transfers = 4;
  of_b.mailbox_bytes = 1000;
  auto a = Engines::make(of_a), b = Engines::make(of_b);
  const Address peer = address_of(*a, *b);
  int num_exhausted = 0;
  std::vector<Result<TicketPtr>> sent;
  for (int i = 0; i < 200; ++i) {
    sent.push_back(a->send(peer, std::string(200, 'x')));
    num_exhausted += sent.back().status().code() == Code::kExhausted;
  }
  int num_full = 0;
  for (const auto& ticket : sent)
    if (ticket.ok()) num_full += failed(wait(ticket), Code::kExhausted, "mailbox is full") ? 1 : 0;
  EXPECT_GT(num_exhausted, 0);
  EXPECT_LE(num_full, 200 - num_exhausted);
  for (int i = 0; i < 4; ++i) (void)b->receive(in_seconds(0));
  EXPECT_TRUE(is_ok(wait(a->send(peer, "now there is room"))));
}

}  // namespace
}  // namespace braid::engine::test
