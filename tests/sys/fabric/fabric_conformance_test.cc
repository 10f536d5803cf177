// One suite for every library behind sys/fabric: what its interface promises, on each of them.
// Ends are in one thread here; closing_test.cc has those that write while others close.
#include <cstring>
#include <set>

#include "sys/fabric/fabrics.h"

namespace braid::sys {
namespace {

constexpr size_t kMiB = 1 << 20;

TEST_P(FabricConformance, WritesOfEverySizeLandWholeBeforeTheirImmediate) {
  End a = make_end(64 * kMiB), b = make_end(64 * kMiB);
  const uint64_t peer = introduce(*a.endpoint, *b.endpoint);
  a.fill(1);
  uint32_t immediate = 0xFEDCBA90;
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{3}, size_t{191}, size_t{4095},
                             size_t{4096}, size_t{4097}, 64 * kMiB / 1024, kMiB + 1, 64 * kMiB}) {
    if (bytes > a.domain->limits().max_write_bytes) continue;
    b.poison(std::byte{0xEE});
    b.arrived.clear();
    FabricTransfer t = transfer(peer, a, b, 0, bytes);
    t.immediate = ++immediate;
    FabricOp op;
    ASSERT_TRUE(post_until_taken({&a, &b}, [&] { return a.endpoint->write(t, &op); }).ok());
    ASSERT_TRUE(poll_until({&b, &a}, [&] { return !b.arrived.empty(); })) << bytes;
    EXPECT_EQ(b.arrived, std::vector<uint32_t>{immediate});
    ASSERT_TRUE(are_equal(a, b, 0, bytes)) << bytes << " bytes";
    for (size_t i = bytes; i < std::min(bytes + 64, b.memory.size()); ++i)
      ASSERT_EQ(b.memory[i], std::byte{0xEE}) << bytes << " bytes, then byte " << i;
    ASSERT_TRUE(poll_until({&a, &b}, [&] { return a.completed[&op] > 0; })) << bytes;
    a.completed.clear();
  }
}

TEST_P(FabricConformance, WritesWithoutAnImmediateLandInSilence) {
  End a = make_end(4 * kMiB), b = make_end(4 * kMiB);
  const uint64_t peer = introduce(*a.endpoint, *b.endpoint);
  a.fill(2);
  for (const size_t bytes : {size_t{1}, size_t{100}, size_t{4096}, size_t{70'001}, 4 * kMiB}) {
    b.poison(std::byte{0xEE});
    const FabricTransfer t = transfer(peer, a, b, 0, bytes);
    FabricOp op;
    ASSERT_TRUE(post_until_taken({&a, &b}, [&] { return a.endpoint->write(t, &op); }).ok());
    ASSERT_TRUE(poll_until({&a, &b}, [&] { return a.completed[&op] > 0; })) << bytes;
    ASSERT_TRUE(!a.domain->limits().is_truthful || are_equal(a, b, 0, bytes))
        << "confirmed, and not there: " << bytes << " bytes";
    EXPECT_TRUE(poll_until({&a, &b}, [&] { return are_equal(a, b, 0, bytes); })) << bytes;
    a.completed.clear();
  }
  EXPECT_TRUE(b.arrived.empty());
  EXPECT_TRUE(b.completed.empty());
}

// Slots of many sizes, each told by its immediate once, each completed once.
TEST_P(FabricConformance, ManyWritesLandOnceEach) {
  constexpr uint32_t kWrites = 2000, kSlot = 6000;
  End a = make_end(kWrites * kSlot), b = make_end(kWrites * kSlot);
  const uint64_t peer = introduce(*a.endpoint, *b.endpoint);
  a.fill(3);
  const auto bytes_of = [](uint32_t i) { return i * 37 % kSlot + 1; };
  std::vector<FabricOp> ops(kWrites);
  for (uint32_t i = 0; i < kWrites; ++i) {
    FabricTransfer t = transfer(peer, a, b, i * size_t{kSlot}, bytes_of(i));
    t.immediate = i;
    t.wants_delivery = i % 3 != 0;
    t.has_more = i % 5 != 4 && i + 1 < kWrites;
    ASSERT_TRUE(post_until_taken({&a, &b}, [&] { return a.endpoint->write(t, &ops[i]); }).ok());
  }
  ASSERT_TRUE(poll_until(
      {&a, &b}, [&] { return b.arrived.size() >= kWrites && a.completed.size() >= kWrites; }))
      << b.arrived.size() << " arrived, " << a.completed.size() << " completed; " << a.last_failure;
  const std::set<uint32_t> seen(b.arrived.begin(), b.arrived.end());
  EXPECT_EQ(seen.size(), kWrites);
  EXPECT_EQ(b.arrived.size(), kWrites);
  for (const auto& [op, times] : a.completed) EXPECT_EQ(times, 1);
  for (uint32_t i = 0; i < kWrites; ++i) {
    ASSERT_TRUE(are_equal(a, b, i * size_t{kSlot}, bytes_of(i))) << i;
    ASSERT_EQ(b.memory[i * size_t{kSlot} + bytes_of(i)], std::byte{0}) << i;
  }
}

// What was held back for more that never came leaves with a poll.
TEST_P(FabricConformance, BatchesOfAnyLengthLeave) {
  End a = make_end(4096), b = make_end(4096);
  const uint64_t peer = introduce(*a.endpoint, *b.endpoint);
  a.fill(4);
  std::vector<FabricOp> ops(8);
  size_t expected = 0;
  for (uint32_t length = 1; length <= 8; ++length)
    for (const bool is_ended : {true, false}) {
      for (uint32_t i = 0; i < length; ++i) {
        FabricTransfer t = transfer(peer, a, b, i * 64, 64);
        t.immediate = i;
        t.has_more = i + 1 < length || !is_ended;
        ASSERT_TRUE(post_until_taken({&a, &b}, [&] { return a.endpoint->write(t, &ops[i]); }).ok());
      }
      expected += length;
      ASSERT_TRUE(poll_until({&a, &b}, [&] { return b.arrived.size() == expected; }))
          << length << (is_ended ? "" : ", not ended") << ": " << b.arrived.size() << " of "
          << expected;
      ASSERT_TRUE(are_equal(a, b, 0, length * 64));
    }
}

TEST_P(FabricConformance, ReadsBringWhatThePeerHas) {
  End a = make_end(4 * kMiB), b = make_end(4 * kMiB);
  const uint64_t peer = introduce(*a.endpoint, *b.endpoint);
  b.fill(5);
  FabricOp op;
  if (!a.domain->limits().can_read) {
    const auto refused = a.endpoint->read(transfer(peer, a, b, 0, 1), &op);
    EXPECT_EQ(refused.status().code(), Code::kUnsupported);
    return;
  }
  for (const size_t bytes : {size_t{1}, size_t{4097}, size_t{70'001}, 4 * kMiB}) {
    a.poison(std::byte{0xEE});
    const FabricTransfer t = transfer(peer, a, b, 0, bytes);
    ASSERT_TRUE(post_until_taken({&a, &b}, [&] { return a.endpoint->read(t, &op); }).ok());
    ASSERT_TRUE(poll_until({&a, &b}, [&] { return a.completed[&op] > 0; })) << bytes;
    ASSERT_TRUE(are_equal(a, b, 0, bytes)) << bytes << " bytes";
    EXPECT_TRUE(bytes == a.memory.size() || a.memory[bytes] == std::byte{0xEE}) << bytes;
    a.completed.clear();
  }
  EXPECT_TRUE(b.arrived.empty());
}

TEST_P(FabricConformance, MessagesGoIntoTheMemoryOfferedForThem) {
  End a = make_end(kMiB), b = make_end(kMiB);
  const uint64_t peer = introduce(*a.endpoint, *b.endpoint);
  a.fill(6);
  for (const bool is_offered_first : {true, false})
    for (const size_t bytes : {size_t{1}, size_t{64}, size_t{5000}, size_t{65536}, kMiB}) {
      b.poison(std::byte{0xEE});
      FabricOp sent, received;
      const FabricMessage out{peer, a.region, a.memory.data(), bytes};
      const FabricMessage in{0, b.region, b.memory.data(), b.memory.size()};
      const std::function<Result<bool>()> offer = [&] {
        return b.endpoint->receive(in, &received);
      };
      const std::function<Result<bool>()> send = [&] { return a.endpoint->send(out, &sent); };
      ASSERT_TRUE(post_until_taken({&a, &b}, is_offered_first ? offer : send).ok());
      ASSERT_TRUE(post_until_taken({&a, &b}, is_offered_first ? send : offer).ok());
      ASSERT_TRUE(poll_until(
          {&a, &b}, [&] { return b.received.contains(&received) && a.completed[&sent] > 0; }))
          << bytes << " " << a.last_failure << b.last_failure;
      EXPECT_EQ(b.received[&received], bytes);
      ASSERT_TRUE(are_equal(a, b, 0, bytes)) << bytes;
      a.completed.clear();
      b.received.clear();
    }
  EXPECT_TRUE(b.arrived.empty());
}

// A region is source and target: bytes go round three ends.
TEST_P(FabricConformance, RegionsAreSourceAndTarget) {
  End ends[3] = {make_end(8192), make_end(8192), make_end(8192)};
  ends[0].fill(7);
  for (int i = 0; i < 3; ++i) {
    End &from = ends[i], &to = ends[(i + 1) % 3];
    End writer = another_endpoint(from);
    FabricTransfer t =
        transfer(introduce(*writer.endpoint, *to.endpoint), from, to, i * 2048u, 8192 - i * 2048u);
    if (i == 2) from.memory[5000] = std::byte{0x77};
    t.immediate = 1;
    FabricOp op;
    ASSERT_TRUE(
        post_until_taken({&writer, &to}, [&] { return writer.endpoint->write(t, &op); }).ok());
    ASSERT_TRUE(poll_until({&writer, &to}, [&] { return !to.arrived.empty(); }));
  }
  for (size_t i = 0; i < 8192; ++i)
    ASSERT_EQ(ends[0].memory[i], i == 5000 ? std::byte{0x77} : byte_at(i, 7)) << i;
}

/// The middle of the target's memory is its region; each bad write is tried on new ends.
class BadTransfers : public FabricConformance {
 protected:
  enum class Wrong { kKey, kPastTheEnd, kBeforeTheStart, kUnregistered, kAccess };

  static void spoil(FabricTransfer& t, End& b, Wrong wrong) {
    if (wrong == Wrong::kKey) t.remote_key ^= 0x5555;
    if (wrong == Wrong::kPastTheEnd) t.remote_address += 4096 - 63;
    if (wrong == Wrong::kBeforeTheStart) t.remote_address -= 1;
    if (wrong == Wrong::kUnregistered) b.domain->unregister(b.region);
  }
  void expect_refused(Wrong wrong, bool is_read) {
    SCOPED_TRACE(testing::Message() << "wrong " << static_cast<int>(wrong) << " read " << is_read);
    End a = make_end(64), b = make_end(3 * 4096);
    const Access access = wrong == Wrong::kAccess ? Access::kLocalSource : Access::kBoth;
    b.domain->unregister(b.region);
    b.region = register_in(b, b.memory.data() + 4096, 4096, access);
    const uint64_t peer = introduce(*a.endpoint, *b.endpoint);
    b.poison(std::byte{0xEE});
    a.fill(8);
    FabricTransfer t = transfer(peer, a, b, 0, 64);
    spoil(t, b, wrong);
    if (!is_read) t.immediate = 9;
    FabricOp op;
    const Status posted = post_until_taken(
        {&a, &b}, [&] { return is_read ? a.endpoint->read(t, &op) : a.endpoint->write(t, &op); });
    poll_until({&a, &b}, [&] { return a.failed[&op] > 0 || !posted.ok(); }, 300'000'000);
    EXPECT_TRUE(holds_only(b.memory, std::byte{0xEE}));
    EXPECT_TRUE(b.arrived.empty());
    EXPECT_EQ(a.memory[0], byte_at(0, 8));
    const bool may_lie = !is_read && !a.domain->limits().is_truthful;
    EXPECT_TRUE(may_lie || a.completed[&op] == 0) << "it was refused, and is told to have landed";
  }
};

TEST_P(BadTransfers, WritesAreRefusedAndNeverConfirmed) {
  for (const Wrong wrong : {Wrong::kKey, Wrong::kPastTheEnd, Wrong::kBeforeTheStart,
                            Wrong::kUnregistered, Wrong::kAccess})
    expect_refused(wrong, false);
}

// Of a region that is no target: ofi_rxm lets who has its key read it, for that is how it moves
// large messages.
TEST_P(BadTransfers, ReadsAreRefused) {
  if (!open_domain()->limits().can_read) GTEST_SKIP() << "skipped: it cannot read";
  for (const Wrong wrong : {Wrong::kKey, Wrong::kPastTheEnd, Wrong::kUnregistered})
    expect_refused(wrong, true);
}

TEST_P(FabricConformance, MemoryMayBeRegisteredOnTwoDomains) {
  End a = make_end(8192), b = make_end(8192), second = make_end(64);
  a.fill(10);
  second.region = register_in(second, b.memory.data(), b.memory.size(), Access::kBoth);
  End more = another_endpoint(a);
  End* sources[2] = {&a, &more};
  End* targets[2] = {&b, &second};
  FabricOp ops[2];
  for (uint32_t i = 0; i < 2; ++i) {
    const uint64_t peer = introduce(*sources[i]->endpoint, *targets[i]->endpoint);
    FabricTransfer t = transfer(peer, a, *targets[i], i * 4096, 4096);
    t.immediate = i;
    ASSERT_TRUE(post_until_taken({&a, &more, &b, &second}, [&] {
                  return sources[i]->endpoint->write(t, &ops[i]);
                }).ok());
  }
  ASSERT_TRUE(poll_until({&a, &more, &b, &second},
                         [&] { return b.arrived.size() + second.arrived.size() == 2; }));
  EXPECT_EQ(b.arrived, std::vector<uint32_t>{0});
  EXPECT_EQ(second.arrived, std::vector<uint32_t>{1});
  EXPECT_EQ(a.memory, b.memory);
}

// One domain's endpoints share its registrations and nothing else.
TEST_P(FabricConformance, EndpointsOfOneDomainAreApart) {
  End a = make_end(8192), b = make_end(8192);
  a.fill(11);
  End other = another_endpoint(b), more = another_endpoint(a);
  End* sources[2] = {&a, &more};
  End* targets[2] = {&b, &other};
  FabricOp ops[2];
  for (uint32_t i = 0; i < 2; ++i) {
    const uint64_t peer = introduce(*sources[i]->endpoint, *targets[i]->endpoint);
    FabricTransfer t = transfer(peer, a, b, i * 4096, 4096);
    t.immediate = i;
    ASSERT_TRUE(post_until_taken({&a, &more, &b, &other}, [&] {
                  return sources[i]->endpoint->write(t, &ops[i]);
                }).ok());
  }
  ASSERT_TRUE(poll_until({&a, &more, &b, &other},
                         [&] { return b.arrived.size() + other.arrived.size() == 2; }));
  EXPECT_EQ(b.arrived, std::vector<uint32_t>{0});
  EXPECT_EQ(other.arrived, std::vector<uint32_t>{1});
  EXPECT_EQ(a.memory, b.memory);
}

// Where one may: a connection's queue pair has one peer.
TEST_P(FabricConformance, AnEndpointWritesToSeveralPeers) {
  End a = make_end(8192), b = make_end(8192), c = make_end(8192);
  a.fill(12);
  End wide;
  auto opened = a.domain->open_endpoint({.num_peers = 2});
  if (opened.status().code() == Code::kUnsupported) GTEST_SKIP() << "skipped: it has one peer";
  wide.endpoint = std::move(opened).value();
  End* targets[2] = {&b, &c};
  FabricOp ops[2];
  for (uint32_t i = 0; i < 2; ++i) {
    FabricTransfer t =
        transfer(introduce(*wide.endpoint, *targets[i]->endpoint), a, *targets[i], i * 4096, 4096);
    t.immediate = i;
    ASSERT_TRUE(
        post_until_taken({&wide, &b, &c}, [&] { return wide.endpoint->write(t, &ops[i]); }).ok());
  }
  ASSERT_TRUE(
      poll_until({&wide, &b, &c}, [&] { return b.arrived.size() + c.arrived.size() == 2; }));
  EXPECT_EQ(b.arrived, std::vector<uint32_t>{0});
  EXPECT_EQ(c.arrived, std::vector<uint32_t>{1});
  EXPECT_TRUE(are_equal(a, b, 0, 4096));
  EXPECT_TRUE(are_equal(a, c, 4096, 4096));
  wide.close();
}

TEST_P(FabricConformance, MemoryOfGpusIsRefusedWithAReason) {
  const auto domain = open_domain();
  std::vector<std::byte> memory(4096);
  FabricMemory request{memory.data(), memory.size()};
  request.cuda_device = 0;
  const auto region = domain->register_memory(request, random_key());
  ASSERT_FALSE(region.ok());
  EXPECT_NE(region.status().message().find("GPU 0"), std::string::npos)
      << region.status().message();
}

TEST_P(FabricConformance, TooLargeAWriteIsRefusedWhenTheDomainIsOpened) {
  const uint64_t limit = open_domain()->limits().max_write_bytes;
  if (limit == UINT64_MAX) GTEST_SKIP() << "skipped: it has no limit";
  const auto domain = library_->open({GetParam().provider, GetParam().address, limit + 1});
  EXPECT_EQ(domain.status().code(), Code::kUnsupported) << domain.status().to_string();
}

INSTANTIATE_TEST_SUITE_P(Fabrics, FabricConformance, testing::ValuesIn(fabrics_under_test()),
                         name_of_fabric);
INSTANTIATE_TEST_SUITE_P(Fabrics, BadTransfers, testing::ValuesIn(fabrics_under_test()),
                         name_of_fabric);

}  // namespace
}  // namespace braid::sys
