// What every way between two engines must do, whatever carries the bytes.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <thread>

#include "base/sanitizer.h"
#include "engine/engine.h"
#include "engines.h"

namespace braid::engine::test {
namespace {

class Ways : public testing::TestWithParam<Way> {
 protected:
  Ways() : engines(GetParam()), a(engines.make("a")), b(engines.make("b")) {}
  Engines engines;
  std::unique_ptr<Engine> a, b;
};

std::vector<uint64_t> shuffled(size_t count, size_t out_of, std::mt19937& random) {
  std::vector<uint64_t> ids(out_of);
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), random);
  ids.resize(count);
  return ids;
}

TEST_P(Ways, AWriteLandsAndIsCounted) {
  Memory from(*a, 300'000, 1), to(*b, 400'000, 2);
  const std::vector<std::byte> before = to.bytes;
  auto arrived = b->expect(7, 1);
  ASSERT_TRUE(
      is_ok(wait(a->write({from.region, 1000}, {import(*a, to), 50'001}, 200'000, under(7)))));
  ASSERT_TRUE(is_ok(wait(arrived)));
  EXPECT_TRUE(std::equal(from.bytes.begin() + 1000, from.bytes.begin() + 201'000,
                         to.bytes.begin() + 50'001));
  EXPECT_TRUE(std::equal(before.begin(), before.begin() + 50'001, to.bytes.begin()));
  EXPECT_TRUE(std::equal(before.begin() + 250'001, before.end(), to.bytes.begin() + 250'001));
}

TEST_P(Ways, SizesAroundEveryLimit) {
  constexpr size_t kMost = (3 << 20) + 5;
  Memory from(*a, kMost, 3), to(*b, kMost, 4);
  const RemoteRegion remote = import(*a, to);
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{8}, size_t{4095}, size_t{65536},
                             size_t{131073}, size_t{(1 << 20) + 1}, kMost}) {
    std::fill(to.bytes.begin(), to.bytes.end(), std::byte{0xee});
    auto arrived = b->expect(1, 1);
    ASSERT_TRUE(is_ok(wait(a->write({from.region, 0}, {remote, 0}, bytes, under(1)))));
    ASSERT_TRUE(is_ok(wait(arrived)));
    EXPECT_TRUE(std::equal(from.bytes.begin(), from.bytes.begin() + static_cast<long>(bytes),
                           to.bytes.begin()));
    EXPECT_TRUE(std::all_of(to.bytes.begin() + static_cast<long>(bytes), to.bytes.end(),
                            [](std::byte x) { return x == std::byte{0xee}; }));
  }
}

TEST_P(Ways, PagesGoWhereTheirNumbersSay) {
  std::mt19937 random(11);
  constexpr uint64_t kPage = 4096, kStride = 5000, kPages = 200;
  Memory from(*a, kPages * kPage + 64, 5), to(*b, kPages * kStride + 128, 6);
  std::vector<std::byte> expected = to.bytes;
  const std::vector<uint64_t> sources = shuffled(150, kPages, random);
  const std::vector<uint64_t> targets = shuffled(150, kPages, random);
  PageList list;
  list.page_bytes = kPage;
  list.source_ids = sources;
  list.target_ids = targets;
  list.source_offset = 64;
  list.target_stride = kStride;
  list.target_offset = 100;
  for (size_t i = 0; i < sources.size(); ++i)
    std::copy_n(from.bytes.begin() + static_cast<long>(64 + sources[i] * kPage), kPage,
                expected.begin() + static_cast<long>(100 + targets[i] * kStride));
  auto arrived = b->expect(9, 150);
  ASSERT_TRUE(is_ok(wait(a->write_pages(from.region, import(*a, to), list, under(9)))));
  ASSERT_TRUE(is_ok(wait(arrived)));
  EXPECT_EQ(to.bytes, expected);
  EXPECT_EQ(b->count(9), 0);
}

/// Regions of two engines, and what a call of all of them is to make of the second one's.
struct Layers {
  static constexpr uint64_t kPage = 2048, kPages = 40, kPadding = 64;
  Layers(Engine& ours, Engine& theirs, size_t count, uint32_t salt) {
    for (uint32_t i = 0; i < count; ++i) {
      here.push_back(std::make_unique<Memory>(ours, kPage * kPages + i * kPadding, salt + 2 * i));
      there.push_back(std::make_unique<Memory>(theirs, 2 * kPage * kPages, salt + 2 * i + 1));
      planes.push_back(
          {here[i]->region, import(ours, *there[i]), i * kPadding, (count - i) * kPadding});
    }
  }
  PageList list(const std::vector<uint64_t>& sources, const std::vector<uint64_t>& targets) const {
    PageList out;
    out.page_bytes = kPage;
    out.source_ids = sources;
    out.target_ids = targets;
    return out;
  }
  /// Copies as a call does, in planes from .. to.
  static void copy(std::vector<std::byte>& to, uint64_t to_offset,
                   const std::vector<std::byte>& from, uint64_t from_offset,
                   const std::vector<uint64_t>& to_ids, const std::vector<uint64_t>& from_ids) {
    for (size_t i = 0; i < to_ids.size(); ++i)
      std::copy_n(from.begin() + static_cast<long>(from_offset + from_ids[i] * kPage), kPage,
                  to.begin() + static_cast<long>(to_offset + to_ids[i] * kPage));
  }
  std::vector<std::unique_ptr<Memory>> here, there;
  std::vector<PagePlane> planes;
};

// The first time as stretches, then, on one host, by a list.
TEST_P(Ways, PagesOfManyPlanesAreOneTransfer) {
  constexpr size_t kPlanes = 7;
  std::mt19937 random(13);
  Layers layers(*a, *b, kPlanes, 50);
  for (int round = 0; round < 3; ++round) {
    const std::vector<uint64_t> sources = shuffled(25, Layers::kPages, random);
    const std::vector<uint64_t> targets = shuffled(25, Layers::kPages, random);
    std::vector<std::vector<std::byte>> expected;
    for (size_t i = 0; i < kPlanes; ++i) {
      expected.push_back(layers.there[i]->bytes);
      Layers::copy(expected[i], layers.planes[i].their_offset, layers.here[i]->bytes,
                   layers.planes[i].our_offset, targets, sources);
    }
    TransferOptions options = under(9);
    options.notification = "all of them";
    auto arrived = b->expect(9, 25 * kPlanes);
    ASSERT_TRUE(is_ok(
        wait(a->write_pages(layers.planes, layers.list(sources, targets), std::move(options)))));
    ASSERT_TRUE(is_ok(wait(arrived)));
    for (size_t i = 0; i < kPlanes; ++i) ASSERT_EQ(layers.there[i]->bytes, expected[i]) << i;
    EXPECT_EQ(b->count(9), 0);
    EXPECT_EQ(b->take_notification(in_seconds(20))->bytes, "all of them");
    EXPECT_FALSE(b->take_notification(Deadline::at_ns(0)).has_value());
  }
  EXPECT_EQ(a->stats().transfers_done, 3);
  EXPECT_EQ(a->stats().bytes_written, 3 * 25 * kPlanes * Layers::kPage);
  EXPECT_EQ(a->stats().pages_listed, GetParam().is_local ? 2 * 25 * kPlanes : 0);
}

TEST_P(Ways, PagesOfManyPlanesAreRead) {
  constexpr size_t kPlanes = 5;
  std::mt19937 random(14);
  Layers layers(*a, *b, kPlanes, 90);
  for (int round = 0; round < 2; ++round) {
    const std::vector<uint64_t> sources = shuffled(30, Layers::kPages, random);
    const std::vector<uint64_t> targets = shuffled(30, Layers::kPages, random);
    std::vector<std::vector<std::byte>> expected;
    for (size_t i = 0; i < kPlanes; ++i) {
      expected.push_back(layers.here[i]->bytes);
      Layers::copy(expected[i], layers.planes[i].our_offset, layers.there[i]->bytes,
                   layers.planes[i].their_offset, targets, sources);
    }
    TransferOptions options;
    options.notification = "were read";
    ASSERT_TRUE(is_ok(
        wait(a->read_pages(layers.planes, layers.list(sources, targets), std::move(options)))));
    // Its lock also orders our look behind its copy.
    EXPECT_EQ(b->take_notification(in_seconds(20))->bytes, "were read");
    for (size_t i = 0; i < kPlanes; ++i) ASSERT_EQ(layers.here[i]->bytes, expected[i]) << i;
  }
}

// Planes with fewer pages than a list is worth, as many planes as there may be, and no page at all.
TEST_P(Ways, FewPagesOfAsManyPlanesAsThereMayBe) {
  Layers layers(*a, *b, kMostPlanes, 200);
  for (const std::vector<uint64_t>& ids :
       {std::vector<uint64_t>{3, 2}, std::vector<uint64_t>{7}, std::vector<uint64_t>{}}) {
    ASSERT_TRUE(is_ok(wait(a->write_pages(layers.planes, layers.list(ids, ids), under(4)))));
    EXPECT_EQ(b->count(4), kMostPlanes * ids.size());
    b->discard(4);
    for (size_t i = 0; i < kMostPlanes; ++i) {
      std::vector<std::byte> expected = layers.there[i]->bytes;
      Layers::copy(expected, layers.planes[i].their_offset, layers.here[i]->bytes,
                   layers.planes[i].our_offset, ids, ids);
      ASSERT_EQ(layers.there[i]->bytes, expected) << i;
    }
  }
}

TEST_P(Ways, APlaneThatIsWrongIsNamed) {
  Layers layers(*a, *b, 5, 20);
  auto c = engines.make("c");
  Memory stranger(*c, 100'000, 9), foreign(*b, 100'000, 10);
  const std::vector<uint64_t> ids = {0, Layers::kPages - 1};
  std::vector<std::vector<std::byte>> before;
  for (const auto& memory : layers.there) before.push_back(memory->bytes);
  const auto refusal = [&](const auto& spoil) {
    std::vector<PagePlane> planes = layers.planes;
    spoil(planes);
    const auto begun = a->write_pages(planes, layers.list(ids, ids), under(1));
    EXPECT_FALSE(begun.ok());
    return begun.status();
  };
  EXPECT_TRUE(failed(refusal([](auto& planes) { planes[3].our_offset += 1; }),
                     Code::kInvalidArgument,
                     "write_pages: plane 3: page 1 of the list, number 39, lies outside of our "
                     "region"));
  EXPECT_TRUE(failed(refusal([](auto& planes) { planes[2].their_offset = UINT64_MAX; }),
                     Code::kInvalidArgument, "write_pages: plane 2: page 0 of the list"));
  EXPECT_TRUE(failed(refusal([](auto& planes) { planes[4].ours = nullptr; }),
                     Code::kInvalidArgument, "plane 4: it has no region of ours"));
  EXPECT_TRUE(failed(refusal([](auto& planes) { planes[1].theirs = nullptr; }),
                     Code::kInvalidArgument, "plane 1: it has no region of a peer"));
  EXPECT_TRUE(failed(refusal([&](auto& planes) { planes[1].theirs = import(*a, stranger); }),
                     Code::kInvalidArgument, "plane 1: region 1 of 'c' is not of the peer"));
  EXPECT_TRUE(failed(refusal([&](auto& planes) { planes[1].ours = foreign.region; }),
                     Code::kInvalidArgument, "is another engine's"));
  EXPECT_TRUE(failed(refusal([](auto& planes) { planes.clear(); }), Code::kInvalidArgument,
                     "asked for 1 to 192 planes, found 0"));
  EXPECT_TRUE(failed(refusal([](auto& planes) { planes.resize(193, planes[0]); }),
                     Code::kInvalidArgument, "asked for 1 to 192 planes, found 193"));
  ASSERT_TRUE(is_ok(wait(a->write_pages(layers.planes, layers.list({}, {}), under(1)))));
  for (size_t i = 0; i < before.size(); ++i) EXPECT_EQ(layers.there[i]->bytes, before[i]);
  EXPECT_EQ(b->count(1), 0);
  for (const auto& memory : layers.here)  // none of them is in use
    EXPECT_TRUE(is_ok(a->unregister(*memory->region, in_seconds(20))));
}

// One in the middle: nothing is counted, the memory is not touched, and the others go on.
TEST_P(Ways, APlaneWhoseRegionIsGoneEndsTheTransfer) {
  Layers layers(*a, *b, 5, 30);
  std::vector<uint64_t> ids(Layers::kPages);
  std::iota(ids.begin(), ids.end(), 0);
  const PageList list = layers.list(ids, ids);
  for (int round = 0; round < 2; ++round)
    ASSERT_TRUE(is_ok(wait(a->write_pages(layers.planes, list, under(1)))));
  ASSERT_TRUE(is_ok(b->unregister(*layers.there[2]->region, in_seconds(20))));
  auto& gone = layers.there[2]->bytes;
  std::fill(gone.begin(), gone.end(), std::byte{0x77});
  EXPECT_TRUE(failed(wait(a->write_pages(layers.planes, list, under(2))), Code::kInvalidArgument,
                     "region 3 of 'b' was unregistered"));
  EXPECT_EQ(b->count(2), 0);
  EXPECT_TRUE(
      std::all_of(gone.begin(), gone.end(), [](std::byte x) { return x == std::byte{0x77}; }));
  layers.planes.erase(layers.planes.begin() + 2);
  EXPECT_TRUE(is_ok(wait(a->write_pages(layers.planes, list, under(3)))));
  EXPECT_EQ(b->count(3), 4 * Layers::kPages);
}

// The same while transfers are under way: each is whole and counted, or neither.
TEST_P(Ways, AMiddleRegionIsFreeWhenUnregisterReturns) {
  std::vector<uint64_t> ids(Layers::kPages);
  std::iota(ids.begin(), ids.end(), 0);
  for (int round = 0; round < 6; ++round) {
    Layers layers(*a, *b, 5, 40);
    const PageList list = layers.list(ids, ids);
    std::vector<Result<TicketPtr>> tickets;
    for (int i = 0; i < 20; ++i) tickets.push_back(a->write_pages(layers.planes, list, under(2)));
    std::this_thread::sleep_for(std::chrono::microseconds(300 * round));
    ASSERT_TRUE(is_ok(b->unregister(*layers.there[2]->region, in_seconds(20))));
    auto& gone = layers.there[2]->bytes;
    std::fill(gone.begin(), gone.end(), std::byte{0x55});
    uint64_t num_done = 0;
    for (const auto& ticket : tickets) {
      const Status ended = wait(ticket);
      num_done += ended.ok();
      EXPECT_TRUE(ended.ok() || ended.code() == Code::kInvalidArgument) << ended.to_string();
    }
    EXPECT_EQ(b->count(2), num_done * 5 * Layers::kPages);
    b->discard(2);
    EXPECT_TRUE(
        std::all_of(gone.begin(), gone.end(), [](std::byte x) { return x == std::byte{0x55}; }));
  }
}

TEST_P(Ways, ReadsBringWhatIsThere) {
  std::mt19937 random(12);
  Memory here(*a, 500'000, 7), there(*b, 600'000, 8);
  ASSERT_TRUE(is_ok(wait(a->read({here.region, 13}, {import(*a, there), 17}, 400'000))));
  EXPECT_TRUE(
      std::equal(here.bytes.begin() + 13, here.bytes.begin() + 400'013, there.bytes.begin() + 17));
  const std::vector<uint64_t> sources = shuffled(100, 140, random);
  const std::vector<uint64_t> targets = shuffled(100, 120, random);
  PageList list;
  list.page_bytes = 4000;
  list.source_ids = sources;
  list.target_ids = targets;
  std::vector<std::byte> expected = here.bytes;
  for (size_t i = 0; i < sources.size(); ++i)
    std::copy_n(there.bytes.begin() + static_cast<long>(sources[i] * 4000), 4000,
                expected.begin() + static_cast<long>(targets[i] * 4000));
  ASSERT_TRUE(is_ok(wait(a->read_pages(here.region, import(*a, there), list))));
  EXPECT_EQ(here.bytes, expected);
}

TEST_P(Ways, NoPagesAndNoBytesAreTransfersToo) {
  Memory from(*a, 100, 1), to(*b, 100, 2);
  PageList none;
  ASSERT_TRUE(is_ok(wait(a->write_pages(from.region, import(*a, to), none, under(3)))));
  EXPECT_EQ(b->count(3), 0);
  ASSERT_TRUE(is_ok(wait(a->write({from.region, 100}, {import(*a, to), 100}, 0, under(3)))));
  EXPECT_EQ(b->count(3), 1);
  ASSERT_TRUE(is_ok(wait(a->read({from.region, 0}, {import(*a, to), 0}, 0))));
}

TEST_P(Ways, CountsThatComeEarlyAreKept) {
  Memory from(*a, 64, 1), to(*b, 64, 2);
  const RemoteRegion remote = import(*a, to);
  for (int i = 0; i < 5; ++i)
    ASSERT_TRUE(is_ok(wait(a->write({from.region, 0}, {remote, 0}, 64, under(42)))));
  EXPECT_EQ(b->count(42), 5);
  ASSERT_TRUE(is_ok(wait(b->expect(42, 3))));
  EXPECT_EQ(b->count(42), 2);
  auto four = b->expect(42, 4);
  EXPECT_TRUE(failed(b->expect(42, 1).status(), Code::kInvalidArgument, "4 are expected already"));
  EXPECT_TRUE(failed(wait(four, 0), Code::kTimeout, "immediate 42"));
  b->forget(42);
  EXPECT_TRUE(failed(wait(four), Code::kCancelled, "nobody expects it"));
  EXPECT_EQ(b->count(42), 2);
}

TEST_P(Ways, AFlagIsSetWhenTheCountIsThere) {
  Memory from(*a, 64, 1), to(*b, 64, 2);
  std::atomic<uint64_t> flag = 0;
  auto arrived = b->expect(5, 2, {}, &flag);
  ASSERT_TRUE(is_ok(wait(a->write({from.region, 0}, {import(*a, to), 0}, 64, under(5)))));
  EXPECT_EQ(flag, 0);
  ASSERT_TRUE(is_ok(wait(a->write({from.region, 0}, {import(*a, to), 0}, 64, under(5)))));
  ASSERT_TRUE(is_ok(wait(arrived)));
  EXPECT_EQ(flag, 1);
}

TEST_P(Ways, MessagesKeepTheirOrder) {
  const Address peer = address_of(*a, *b);
  std::vector<Result<TicketPtr>> sent;
  for (int i = 0; i < 200; ++i) sent.push_back(a->send(peer, "message " + std::to_string(i)));
  for (int i = 0; i < 200; ++i) {
    const std::optional<Message> got = b->receive(in_seconds(20));
    ASSERT_TRUE(got.has_value());
    EXPECT_EQ(got->bytes, "message " + std::to_string(i));
    EXPECT_EQ(got->sender, "a");
  }
  for (const auto& ticket : sent) EXPECT_TRUE(is_ok(wait(ticket)));
  EXPECT_TRUE(failed(a->send(peer, std::string(65537, 'x')).status(), Code::kInvalidArgument,
                     "65537 bytes"));
}

TEST_P(Ways, ANotificationComesBehindItsBytes) {
  constexpr size_t kBytes = 2 << 20;
  Memory from(*a, kBytes, 1), to(*b, kBytes, 2);
  for (int round = 0; round < 5; ++round) {
    std::fill(from.bytes.begin(), from.bytes.end(), static_cast<std::byte>(round + 1));
    TransferOptions options;
    options.notification = "round " + std::to_string(round);
    auto ticket = a->write({from.region, 0}, {import(*a, to), 0}, kBytes, options);
    const std::optional<Message> got = b->take_notification(in_seconds(20));
    ASSERT_TRUE(got.has_value()) << wait(ticket).to_string();
    EXPECT_EQ(got->bytes, options.notification);
    EXPECT_TRUE(std::all_of(to.bytes.begin(), to.bytes.end(),
                            [&](std::byte x) { return x == static_cast<std::byte>(round + 1); }));
    ASSERT_TRUE(is_ok(wait(ticket)));
  }
  TransferOptions options;
  options.notification = "was read";
  ASSERT_TRUE(is_ok(wait(a->read({from.region, 0}, {import(*a, to), 0}, 100, options))));
  EXPECT_EQ(b->take_notification(in_seconds(20))->bytes, "was read");
}

TEST_P(Ways, RangesAreRefusedBeforeAnythingMoves) {
  Memory from(*a, 1000, 1), to(*b, 2000, 2);
  const std::vector<std::byte> before = to.bytes;
  const RemoteRegion remote = import(*a, to);
  EXPECT_TRUE(failed(a->write({from.region, 0}, {remote, 1001}, 1000).status(),
                     Code::kInvalidArgument, "1000 bytes at offset 1001 of region 1 of 'b'"));
  EXPECT_TRUE(failed(a->write({from.region, 1}, {remote, 0}, 1000).status(), Code::kInvalidArgument,
                     "of our region"));
  EXPECT_TRUE(failed(a->write({from.region, UINT64_MAX}, {remote, 0}, 2).status(),
                     Code::kInvalidArgument, "of our region"));
  EXPECT_TRUE(failed(a->write({from.region, 0}, {remote, 0}, uint64_t{1} << 33).status(),
                     Code::kInvalidArgument, "8589934592 bytes"));
  const std::vector<uint64_t> good = {0, 1}, bad = {0, UINT64_MAX / 2}, three = {0, 1, 2};
  PageList list;
  list.page_bytes = 100;
  list.source_ids = good;
  list.target_ids = bad;
  EXPECT_TRUE(failed(a->write_pages(from.region, remote, list).status(), Code::kInvalidArgument,
                     "page 1 of the list"));
  list.target_ids = three;
  EXPECT_TRUE(failed(a->write_pages(from.region, remote, list).status(), Code::kInvalidArgument,
                     "2 pages of the source, 3 of the target"));
  list.target_ids = good;
  list.target_stride = 99;
  EXPECT_TRUE(failed(a->write_pages(from.region, remote, list).status(), Code::kInvalidArgument,
                     "write_pages, region 1 of 'b': pages of 100 bytes overlap"));
  EXPECT_TRUE(failed(a->write({nullptr, 0}, {remote, 0}, 1).status(), Code::kInvalidArgument,
                     "no region of ours"));
  EXPECT_TRUE(failed(a->register_memory(nullptr, 10).status(), Code::kInvalidArgument, "10 bytes"));
  EXPECT_EQ(to.bytes, before);
}

TEST_P(Ways, AnUnregisteredRegionIsRefusedAndUntouched) {
  Memory from(*a, 100'000, 1), to(*b, 100'000, 2), other(*b, 100'000, 3);
  const RemoteRegion remote = import(*a, to), still = import(*a, other);
  ASSERT_TRUE(is_ok(wait(a->write({from.region, 0}, {remote, 0}, 10))));
  ASSERT_TRUE(is_ok(b->unregister(*to.region, in_seconds(20))));
  std::fill(to.bytes.begin(), to.bytes.end(), std::byte{0x77});
  EXPECT_TRUE(failed(wait(a->write({from.region, 0}, {remote, 0}, 100'000, under(1))),
                     Code::kInvalidArgument, "was unregistered"));
  ASSERT_TRUE(is_ok(wait(a->write({from.region, 0}, {still, 0}, 100'000, under(1)))));
  EXPECT_TRUE(std::all_of(to.bytes.begin(), to.bytes.end(),
                          [](std::byte x) { return x == std::byte{0x77}; }));
  EXPECT_EQ(b->count(1), 1);
  EXPECT_TRUE(failed(b->unregister(*to.region, in_seconds(1)), Code::kInvalidArgument,
                     "there is no region"));
}

TEST_P(Ways, MemoryIsFreeWhenUnregisterReturns) {
  Memory from(*a, 1 << 20, 1);
  for (int round = 0; round < 10; ++round) {
    Memory to(*b, 1 << 20, 2);
    const RemoteRegion remote = import(*a, to);
    std::vector<Result<TicketPtr>> tickets;
    for (int i = 0; i < 30; ++i)
      tickets.push_back(a->write({from.region, 0}, {remote, 0}, 1 << 20, under(2)));
    std::this_thread::sleep_for(std::chrono::microseconds(300 * round));
    ASSERT_TRUE(is_ok(b->unregister(*to.region, in_seconds(20))));
    std::fill(to.bytes.begin(), to.bytes.end(), std::byte{0x55});
    uint64_t num_done = 0;
    for (const auto& ticket : tickets) {
      const Status ended = wait(ticket);
      num_done += ended.ok();
      EXPECT_TRUE(ended.ok() || ended.code() == Code::kInvalidArgument) << ended.to_string();
    }
    EXPECT_EQ(b->count(2), num_done);
    ASSERT_TRUE(num_done == 0 || is_ok(wait(b->expect(2, num_done))));
    EXPECT_TRUE(std::all_of(to.bytes.begin(), to.bytes.end(),
                            [](std::byte x) { return x == std::byte{0x55}; }));
  }
}

TEST_P(Ways, ACancelledTransferWritesNothingAnyMore) {
  constexpr size_t kBytes = 8 << 20;
  Memory from(*a, kBytes, 1), to(*b, kBytes, 2);
  const RemoteRegion remote = import(*a, to);
  ASSERT_TRUE(is_ok(wait(a->write({from.region, 0}, {remote, 0}, 10))));
  for (int round = 0; round < 8; ++round) {
    auto ticket = a->write({from.region, 0}, {remote, 0}, kBytes, under(4));
    std::this_thread::sleep_for(std::chrono::microseconds(200 * round));
    a->cancel(*ticket);
    const Status ended = wait(ticket);
    std::fill(to.bytes.begin(), to.bytes.end(), std::byte{0x33});
    if (ended.ok()) {
      ASSERT_TRUE(is_ok(wait(b->expect(4, 1))));
    } else {
      EXPECT_TRUE(failed(ended, Code::kCancelled, "took it back"));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(b->count(4), 0);
    EXPECT_TRUE(std::all_of(to.bytes.begin(), to.bytes.end(),
                            [](std::byte x) { return x == std::byte{0x33}; }));
  }
}

TEST_P(Ways, RegionsInUseStay) {
  Memory from(*a, 8 << 20, 1), to(*b, 8 << 20, 2);
  auto ticket = a->write({from.region, 0}, {import(*a, to), 0}, 8 << 20);
  const Status refused = a->unregister(*from.region, in_seconds(20));
  EXPECT_TRUE(refused.ok() || failed(refused, Code::kInvalidArgument, "transfers of ours use"));
  ASSERT_TRUE(is_ok(wait(ticket)));
}

TEST_P(Ways, ScatterAndSignal) {
  auto c = engines.make("c");
  Memory from(*a, 1000, 1), to_b(*b, 1000, 2), to_c(*c, 1000, 3);
  const std::vector<ScatterPart> parts = {{300, 0, {import(*a, to_b), 10}},
                                          {400, 300, {import(*a, to_c), 20}},
                                          {100, 700, {import(*a, to_b), 500}}};
  auto tickets = a->scatter(from.region, parts, under(1));
  ASSERT_TRUE(is_ok(tickets));
  ASSERT_TRUE(is_ok(wait(b->expect(1, 2))));
  ASSERT_TRUE(is_ok(wait(c->expect(1, 1))));
  EXPECT_TRUE(std::equal(from.bytes.begin(), from.bytes.begin() + 300, to_b.bytes.begin() + 10));
  EXPECT_TRUE(
      std::equal(from.bytes.begin() + 300, from.bytes.begin() + 700, to_c.bytes.begin() + 20));
  EXPECT_TRUE(
      std::equal(from.bytes.begin() + 700, from.bytes.begin() + 800, to_b.bytes.begin() + 500));
  const std::vector<Address> peers = {address_of(*a, *b), address_of(*a, *c)};
  ASSERT_TRUE(is_ok(a->signal(peers, 2)));
  EXPECT_TRUE(is_ok(wait(b->expect(2, 1))));
  EXPECT_TRUE(is_ok(wait(c->expect(2, 1))));
}

TEST_P(Ways, AnEngineWritesToItself) {
  Memory from(*a, 100'000, 1), to(*a, 100'000, 2);
  ASSERT_TRUE(is_ok(wait(a->write({from.region, 0}, {import(*a, to), 0}, 100'000, under(6)))));
  EXPECT_TRUE(is_ok(wait(a->expect(6, 1))));
  EXPECT_EQ(from.bytes, to.bytes);
}

TEST_P(Ways, AClosedPeerIsLost) {
  Memory from(*a, 100'000, 1);
  auto to = std::make_unique<Memory>(*b, 100'000, 2);
  const RemoteRegion remote = import(*a, *to);
  ASSERT_TRUE(is_ok(wait(a->write({from.region, 0}, {remote, 0}, 10))));
  b.reset();
  EXPECT_TRUE(
      failed(wait(a->write({from.region, 0}, {remote, 0}, 100'000)), Code::kPeerLost, "'b'"));
  EXPECT_TRUE(
      failed(wait(a->write({from.region, 0}, {remote, 0}, 100'000)), Code::kPeerLost, "'b'"));
  b = engines.make("b");  // another incarnation, at another port
  Memory again(*b, 100'000, 3);
  EXPECT_TRUE(is_ok(wait(a->write({from.region, 0}, {import(*a, again), 0}, 100'000))));
}

TEST_P(Ways, ADisconnectedPeerCanBeReachedAgain) {
  Memory from(*a, 4 << 20, 1), to(*b, 4 << 20, 2);
  const RemoteRegion remote = import(*a, to);
  for (int i = 0; i < 4; ++i) {
    auto ticket = a->write({from.region, 0}, {remote, 0}, 4 << 20);
    if (i % 2 == 0) {
      a->disconnect(remote->owner);
      const Status ended = wait(ticket);
      EXPECT_TRUE(ended.ok() || ended.code() == Code::kCancelled) << ended.to_string();
    } else {
      EXPECT_TRUE(is_ok(wait(ticket)));
      EXPECT_EQ(from.bytes, to.bytes);
    }
  }
}

/// Begins a transfer, ends its engine's part in it by `leave` after a while, and overwrites `where` once
/// the ticket has ended: how many bytes of it are another's 30 ms later.
size_t num_late_bytes(const std::function<Result<TicketPtr>()>& begin,
                      const std::function<void()>& leave, int delay_us,
                      std::vector<std::byte>& where) {
  constexpr std::byte kOthers{0xee};
  const auto ticket = begin();
  std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
  leave();
  const Status ended = wait(ticket);
  EXPECT_TRUE(ended.ok() || ended.code() == Code::kCancelled) << ended.to_string();
  std::memset(where.data(), std::to_integer<int>(kOthers), where.size());
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  // Seconds sooner under a sanitizer than to count.
  if (where[0] == kOthers && std::memcmp(where.data(), where.data() + 1, where.size() - 1) == 0)
    return 0;
  return where.size() - static_cast<size_t>(std::count(where.begin(), where.end(), kOthers));
}

/// Under way for some milliseconds, also where a sanitizer looks at every byte.
constexpr uint64_t kLongBytes = kIsSanitized ? 8 << 20 : 32 << 20;

// The memory of a read's caller is somebody else's behind the end of its ticket.
TEST_P(Ways, NothingLandsBehindADisconnect) {
  constexpr uint64_t kBytes = kLongBytes;
  Memory mine(*a, kBytes, 1), theirs(*b, kBytes, 2);
  const RemoteRegion remote = import(*a, theirs);
  const auto leave = [&] { a->disconnect(remote->owner); };
  for (const int delay_us : {500, 1000, 2000, 4000, 8000}) {
    const auto read = [&] { return a->read({mine.region, 0}, {remote, 0}, kBytes); };
    const auto write = [&] { return a->write({mine.region, 0}, {remote, 0}, kBytes); };
    EXPECT_EQ(num_late_bytes(read, leave, delay_us, mine.bytes), 0u) << "read, " << delay_us;
    EXPECT_EQ(num_late_bytes(write, leave, delay_us, theirs.bytes), 0u) << "write, " << delay_us;
  }
}

// A list of pages that is begun while the connection is left is the next connection's.
TEST_P(Ways, PagesBegunBesideADisconnectGoByAnotherConnection) {
  constexpr uint64_t kBytes = 32 << 20, kPages = 64, kPage = 4096;
  Memory mine(*a, kBytes, 1), theirs(*b, kBytes, 2);
  const RemoteRegion remote = import(*a, theirs);
  std::vector<uint64_t> ids(kPages);
  std::iota(ids.begin(), ids.end(), 0);
  PageList list;
  list.page_bytes = kPage;
  list.source_ids = list.target_ids = ids;
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(is_ok(wait(a->write_pages(mine.region, remote, list))));
    ASSERT_TRUE(is_ok(wait(a->write_pages(mine.region, remote, list))));  // the board is there
    const auto read = a->read({mine.region, kPages * kPage}, {remote, kPages * kPage}, kBytes / 2);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    a->disconnect(remote->owner);
    EXPECT_TRUE(is_ok(wait(a->write_pages(mine.region, remote, list, under(9))))) << i;
    (void)wait(read);
  }
  EXPECT_TRUE(
      std::equal(mine.bytes.begin(), mine.bytes.begin() + kPages * kPage, theirs.bytes.begin()));
}

TEST_P(Ways, NothingLandsBehindAClose) {
  constexpr uint64_t kBytes = kLongBytes;
  Memory theirs(*b, kBytes, 2);
  for (const int delay_us : {500, 2000, 8000}) {
    auto reader = engines.make("reader");
    Memory mine(*reader, kBytes, 1);
    const RemoteRegion remote = import(*reader, theirs);
    const auto read = [&] { return reader->read({mine.region, 0}, {remote, 0}, kBytes); };
    const auto close = [&] { reader.reset(); };
    EXPECT_EQ(num_late_bytes(read, close, delay_us, mine.bytes), 0u) << delay_us;
  }
}

TEST_P(Ways, EnginesThatLeaveEachOtherAtOnceEnd) {
  constexpr uint64_t kBytes = 32 << 20;
  Memory ours(*a, kBytes, 1), theirs(*b, kBytes, 2);
  const RemoteRegion there = import(*a, theirs), here = import(*b, ours);
  auto out = a->read({ours.region, 0}, {there, 0}, kBytes);
  auto back = b->write({theirs.region, 0}, {here, 0}, kBytes);
  const int64_t start = now_ns();
  std::thread other([&] { b.reset(); });
  a.reset();
  other.join();
  EXPECT_LT(now_ns() - start, 5 * kSecond);
  EXPECT_TRUE((*out)->is_done());
  EXPECT_TRUE((*back)->is_done());
}

TEST_P(Ways, CallbacksRunOnceAndMayCallTheEngine) {
  Memory from(*a, 1000, 1), to(*b, 1000, 2);
  const RemoteRegion remote = import(*a, to);
  std::atomic<int> calls = 0;
  TransferOptions options;
  options.callback = [&](const Status& ended) {
    EXPECT_TRUE(is_ok(ended));
    if (++calls == 1) {
      EXPECT_TRUE(is_ok(a->write({from.region, 0}, {remote, 0}, 1000, under(8))));
      throw std::runtime_error("users' callbacks may throw");
    }
  };
  ASSERT_TRUE(is_ok(wait(a->write({from.region, 0}, {remote, 0}, 1000, options))));
  ASSERT_TRUE(is_ok(wait(b->expect(8, 1))));
  EXPECT_EQ(calls, 1);
}

// Mixed kinds and sizes from several threads, both ways at once; every byte is looked at.
TEST_P(Ways, Soak) {
  constexpr int kThreads = 3, kRounds = 60;
  constexpr uint64_t kPage = 2048, kPages = 64;
  auto run = [&](Engine& self, Engine& peer, uint32_t salt) {
    std::mt19937 random(salt);
    Memory from(self, kPage * kPages, salt), to(peer, kPage * kPages, salt + 1);
    const RemoteRegion remote = import(self, to);
    std::vector<std::byte> expected = to.bytes;
    uint64_t counts = 0;
    for (int round = 0; round < kRounds; ++round) {
      const size_t count = 1 + random() % kPages;
      const std::vector<uint64_t> sources = shuffled(count, kPages, random);
      const std::vector<uint64_t> targets = shuffled(count, kPages, random);
      PageList list;
      list.page_bytes = kPage;
      list.source_ids = sources;
      list.target_ids = targets;
      ASSERT_TRUE(is_ok(wait(self.write_pages(from.region, remote, list, under(salt)))));
      counts += count;
      ASSERT_GE(peer.count(salt), counts);  // its lock also orders our look behind its copy
      for (size_t i = 0; i < count; ++i)
        std::copy_n(from.bytes.begin() + static_cast<long>(sources[i] * kPage), kPage,
                    expected.begin() + static_cast<long>(targets[i] * kPage));
      ASSERT_TRUE(to.bytes == expected);
    }
    EXPECT_EQ(peer.count(salt), counts);
  };
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] { run(*a, *b, 100 + 10 * t); });
    threads.emplace_back([&, t] { run(*b, *a, 200 + 10 * t); });
  }
  for (std::thread& thread : threads) thread.join();
}

Way fake_way(const char* name, int nics, sys::FakeRules rules) {
  rules.is_truthful = true;
  return {name, false, "fake", nics, rules};
}
sys::FakeRules unruly() {
  sys::FakeRules rules;
  rules.seed = 5;
  rules.reorder_window = 16;
  rules.max_delay_polls = 8;
  rules.repeat_percent = 20;
  rules.busy_percent = 30;
  rules.max_write_bytes = 50'000;
  return rules;
}

// RDMA devices of this machine, where scripts/test_verbs has made some.
std::vector<Way> verbs_ways() {
  const char* devices = std::getenv("BRAID_VERBS_DEVICES");
  if (devices == nullptr) return {};
  std::vector<Way> ways = {Way{"verbs", false, "verbs", 1, {}}};
  if (std::string_view(devices).find("rxe2") != std::string_view::npos)
    ways.push_back(Way{"verbs3", false, "verbs", 3, {}});
  return ways;
}

INSTANTIATE_TEST_SUITE_P(Verbs, Ways, testing::ValuesIn(verbs_ways()),
                         [](const auto& instance) { return instance.param.name; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Ways);

INSTANTIATE_TEST_SUITE_P(All, Ways,
                         testing::Values(Way{"local", true, "", 0, {}},
                                         Way{"tcp", false, "tcp", 1, {}},
                                         Way{"tcp3", false, "tcp", 3, {}},
                                         Way{"net", false, "net", 1, {}}, fake_way("quiet", 1, {}),
                                         fake_way("unruly", 1, unruly()),
                                         fake_way("unruly3", 3, unruly())),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace braid::engine::test
