// Handing allocations over: every part comes to where it belongs, and what a rank of the job says
// that is out of order, cut, or about nothing is told and harms nobody. Rank 1 of most tests writes
// its letters by hand. Whole windows are tested in window_test.cc.
#include "transport/nvlink/handover.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "support/segmented_memory.h"
#include "support/thread_group.h"
#include "sys/cuda/fake.h"
#include "sys/fds/api.h"

namespace braid::nvlink {
namespace {

using test::SegmentedMemory;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kPart = SegmentedMemory::kSegmentBytes;
constexpr int64_t kShort_ns = 200'000'000;

class Handovers : public testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(cuda_.alive(), sys::FakeCudaCounts{}); }

  void run(int size, const std::function<void(group::Group&)>& body) {
    auto hub = std::make_shared<test::ThreadHub>(size);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank)
      threads.emplace_back([&, rank] {
        test::ThreadGroup group(hub, rank);
        EXPECT_TRUE(cuda_.use_device(rank).ok());
        body(group);
        (void)hub->exchange(rank, 1000, "end", "", test::test_deadline());  // boxes stay until then
      });
    for (std::thread& thread : threads) thread.join();
  }
  Result<std::vector<MappedParts>> give(group::Group& group, const Backing& own,
                                        const std::vector<std::vector<uint64_t>>& parts,
                                        int64_t timeout_ns = 20'000'000'000) {
    return hand_over(group, cuda_, {"memory", group.rank(), &own, parts},
                     Deadline::after_ns(timeout_ns));
  }
  /// Rank 0 gives nothing and is to get two parts from rank 1, who says what the test says.
  Status answer_to(const std::function<void(const sys::FdBox&, const std::string& address)>& say,
                   int64_t timeout_ns = kShort_ns) {
    Status answer;
    run(2, [&](group::Group& group) {
      if (group.rank() == 0) {
        answer = give(group, {}, {{}, {kPart, kPart}}, timeout_ns).status();
        return;
      }
      const auto box = sys::FdBox::open();
      ASSERT_TRUE(box.ok());
      const auto told =
          group.exchange("memory boxes", box.value().address(), test::test_deadline());
      ASSERT_TRUE(told.ok());
      say(box.value(), told.value()[0]);
    });
    return answer;
  }
  /// Rank 0 gives `num_parts`; what rank 1, whose box is full at first or not, finds in it.
  std::vector<std::string> letters_of(size_t num_parts, bool is_full) {
    std::vector<std::string> letters;
    run(2, [&](group::Group& group) {
      if (group.rank() == 0) {
        const SegmentedMemory memory(cuda_, 0, std::vector<uint64_t>(num_parts, 1));
        const Backing own = Backing::find(cuda_, memory.get(), memory.bytes()).value();
        (void)give(group, own, {std::vector<uint64_t>(num_parts, kPart), {}});
        EXPECT_TRUE(group.barrier("given", test::test_deadline()).ok());
        return;
      }
      const sys::FdBox box = sys::FdBox::open().value();
      size_t filled = 0;
      while (is_full && box.try_send(box.address(), "full", {}).value()) ++filled;
      ASSERT_TRUE(group.exchange("memory boxes", box.address(), test::test_deadline()).ok());
      std::this_thread::sleep_for(std::chrono::milliseconds(is_full ? 20 : 0));
      for (; filled > 0; --filled) EXPECT_EQ(box.try_receive().value()->text, "full");
      EXPECT_TRUE(group.barrier("given", test::test_deadline()).ok());
      while (const auto letter = box.try_receive().value()) letters.push_back(letter->text);
    });
    return letters;
  }
  /// Letters of which the first is wrong.
  Status answer_to_text(const std::string& text, bool has_rest = true) {
    return answer_to([&](const sys::FdBox& box, const std::string& to) {
      EXPECT_TRUE(box.try_send(to, text, {}).value());
      if (has_rest) {
        EXPECT_TRUE(box.try_send(to, "1 0 2 ", exported(2)).value());
      }
    });
  }
  std::vector<sys::Fd> exported(size_t count) {
    std::vector<sys::Fd> fds;
    for (size_t i = 0; i < count; ++i) {
      const sys::Allocation made = cuda_.create_allocation({1, kPart, false}).value();
      fds.push_back(cuda_.export_allocation(made).value());
      EXPECT_TRUE(cuda_.release_allocation(made).ok());
    }
    return fds;
  }

  sys::FakeCuda cuda_{3};
};

// Different numbers and lengths of parts from each rank, none from one, and more than one letter.
TEST_F(Handovers, EveryPartLiesBehindTheOneBefore) {
  std::vector<uint64_t> lengths[] = {{1, 3, 2}, {}, std::vector<uint64_t>(70, 1)};
  lengths[2].back() = 2;
  std::vector<std::vector<uint64_t>> parts(3);
  for (size_t rank = 0; rank < 3; ++rank)
    for (const uint64_t length : lengths[rank]) parts[rank].push_back(length * kPart);
  run(3, [&](group::Group& group) {
    const auto self = static_cast<size_t>(group.rank());
    std::optional<SegmentedMemory> memory;
    Backing own;
    if (!lengths[self].empty()) {
      memory.emplace(cuda_, group.rank(), lengths[self]);
      for (uint64_t i = 0; i < memory->bytes() / kPart; ++i)
        memory->data()[i * kPart + 100 + i] = static_cast<std::byte>(100 * self + i + 1);
      own = Backing::find(cuda_, memory->get(), memory->bytes()).value();
    }
    const auto mapped = give(group, own, parts);
    ASSERT_TRUE(mapped.ok()) << mapped.status().to_string();
    ASSERT_EQ(mapped.value().size(), 3u);
    EXPECT_EQ(mapped.value()[self].base(), 0u) << "nothing of its own";
    EXPECT_EQ(mapped.value()[1].base(), 0u) << "nothing of a rank that gives nothing";
    for (size_t from = 0; from < 3; from += 2) {
      if (from == self) continue;
      const uint64_t units = from == 0 ? 6 : 71;
      const auto* bytes = sys::pointer_to<std::byte>(mapped.value()[from].base());
      for (uint64_t i = 0; i < units; ++i)
        EXPECT_EQ(bytes[i * kPart + 100 + i], static_cast<std::byte>(100 * from + i + 1))
            << "unit " << i << " of rank " << from;
    }
    EXPECT_TRUE(group.barrier("read", test::test_deadline()).ok());
  });
}

TEST_F(Handovers, ARankWithoutABoxIsNamedByAll) {
  run(3, [&](group::Group& group) {
    if (group.rank() == 1) {
      const auto told = group.exchange("memory boxes", "no socket: 24", test::test_deadline());
      ASSERT_TRUE(told.ok());
      return;
    }
    const Status status = give(group, {}, {{}, {}, {}}).status();
    EXPECT_EQ(status.to_string(), unavailable("memory: rank 1: socket: 24").to_string());
  });
}

// Its peers hear why, as far as a letter reaches, and do not wait.
TEST_F(Handovers, WhatCannotBeExportedIsToldInstead) {
  const std::string why = "broken " + std::string(1000, 'x');
  const std::vector<std::vector<uint64_t>> parts = {{kPart}, {kPart, kPart}};
  run(2, [&](group::Group& group) {
    const SegmentedMemory memory(cuda_, group.rank(),
                                 std::vector<uint64_t>(1 + static_cast<size_t>(group.rank()), 1));
    const Backing own = Backing::find(cuda_, memory.get(), memory.bytes()).value();
    EXPECT_TRUE(group.barrier("made", test::test_deadline()).ok());
    if (group.rank() == 1) cuda_.fail("export_allocation", 0, driver_error("{}", why));
    EXPECT_TRUE(group.barrier("failing", test::test_deadline()).ok());
    // One of the two meets the failure, whichever comes first; the other hears of it.
    const Status status = give(group, own, parts).status();
    EXPECT_EQ(status.code(), Code::kDriver);
    EXPECT_THAT(status.message(), HasSubstr("broken xxxx"));
    EXPECT_TRUE(group.barrier("heard", test::test_deadline()).ok());
  });
}

TEST_F(Handovers, AReasonIsSaidOnce) {
  cuda_.fail("export_allocation", 0, driver_error("304"));
  EXPECT_THAT(letters_of(3, false), ElementsAre("0 0 0 304"));
}

// As many parts to a letter as it takes; what a full box refused goes again.
TEST_F(Handovers, LettersGoOnceThoughABoxIsFull) {
  EXPECT_THAT(letters_of(70, true), ElementsAre("0 0 64 ", "0 64 6 "));
}

TEST_F(Handovers, ALetterOfAReasonEndsTheWait) {
  const int64_t start_ns = now_ns();
  const Status status = answer_to(
      [](const sys::FdBox& box, const std::string& to) {
        EXPECT_TRUE(box.try_send(to, "1 0 0 the driver said 304", {}).value());
      },
      20'000'000'000);
  EXPECT_LT(now_ns() - start_ns, 5'000'000'000);
  EXPECT_EQ(status.to_string(),
            driver_error("rank 1 could not export its memory: the driver said 304").to_string());
}

// The second letter's reason, after a first part that was fine.
TEST_F(Handovers, AReasonMayComeLate) {
  const Status status = answer_to([&](const sys::FdBox& box, const std::string& to) {
    EXPECT_TRUE(box.try_send(to, "1 0 1 ", exported(1)).value());
    EXPECT_TRUE(box.try_send(to, "1 1 0 late", {}).value());
  });
  EXPECT_EQ(status.message(), "rank 1 could not export its memory: late");
}

TEST_F(Handovers, LettersThatSayNothingAreRefused) {
  for (const char* text : {"", "x", "1", "1 0", "one 0 2", "1 0 x", "-1 0 2 ", "2 0 2 ",
                           "99999999999999 0 2 ", "1 0 99999999999999999999999 "}) {
    const Status status = answer_to_text(text);
    EXPECT_EQ(status.code(), Code::kInternal) << text;
    EXPECT_EQ(status.message(), fmt::format("handover of memory: a letter says '{}'", text));
  }
}

TEST_F(Handovers, PartsOutOfTheirOrderAreRefused) {
  for (const char* text : {"1 1 1 ", "1 2 1 ", "1 0 3 ", "1 0 18446744073709551615 ",
                           "1 18446744073709551615 1 ", "1 -1 1 "}) {
    const Status status = answer_to_text(text);
    EXPECT_EQ(status.code(), Code::kInternal) << text;
    EXPECT_THAT(status.message(), HasSubstr("handover of memory: rank 1 sent parts")) << text;
    EXPECT_THAT(status.message(), HasSubstr("of 2, 0 were here")) << text;
  }
}

TEST_F(Handovers, MorePartsThanAreLeftAreRefused) {
  for (const char* text : {"1 1 2 ", "1 1 18446744073709551615 "}) {
    const Status status = answer_to([&](const sys::FdBox& box, const std::string& to) {
      EXPECT_TRUE(box.try_send(to, "1 0 1 ", exported(1)).value());
      EXPECT_TRUE(box.try_send(to, text, {}).value());
      EXPECT_TRUE(box.try_send(to, "1 1 1 ", exported(1)).value());
    });
    EXPECT_EQ(status.code(), Code::kInternal) << text;
    EXPECT_THAT(status.message(), HasSubstr("of 2, 1 were here")) << text;
  }
}

// What comes of it later is told by others.
TEST_F(Handovers, OfTwoWrongLettersTheFirstIsTold) {
  const Status status = answer_to([&](const sys::FdBox& box, const std::string& to) {
    EXPECT_TRUE(box.try_send(to, "first", {}).value());
    EXPECT_TRUE(box.try_send(to, "second", {}).value());
    EXPECT_TRUE(box.try_send(to, "1 0 2 ", exported(2)).value());
  });
  EXPECT_EQ(status.message(), "handover of memory: a letter says 'first'");
}

// Nobody sends parts to itself.
TEST_F(Handovers, ALetterInOurOwnNameIsRefused) {
  Status answer;
  run(2, [&](group::Group& group) {
    const SegmentedMemory memory(cuda_, group.rank(), {1});
    const Backing own = Backing::find(cuda_, memory.get(), memory.bytes()).value();
    if (group.rank() == 0) {
      answer = give(group, own, {{kPart}, {kPart}}, kShort_ns).status();
      EXPECT_TRUE(group.barrier("told", test::test_deadline()).ok());
      return;
    }
    const auto box = sys::FdBox::open();
    ASSERT_TRUE(box.ok());
    const auto told = group.exchange("memory boxes", box.value().address(), test::test_deadline());
    EXPECT_TRUE(box.value().try_send(told.value()[0], "0 0 1 ", exported(1)).value());
    EXPECT_TRUE(box.value().try_send(told.value()[0], "1 0 1 ", exported(1)).value());
    EXPECT_TRUE(group.barrier("told", test::test_deadline()).ok());
  });
  EXPECT_EQ(answer.to_string(),
            internal_error("handover of memory: a letter says '0 0 1 '").to_string());
}

// What went wrong first is the answer, not that the rest did not come either.
TEST_F(Handovers, TheFirstTroubleIsToldAtTheDeadline) {
  const Status status = answer_to_text("x", false);
  EXPECT_EQ(status.to_string(),
            internal_error("handover of memory: a letter says 'x'").to_string());
}

TEST_F(Handovers, WhoeverDidNotWriteIsNamedAtTheDeadline) {
  const Status status = answer_to([](const sys::FdBox&, const std::string&) {});
  EXPECT_EQ(status.to_string(), timeout("memory: rank 1 did not come in time").to_string());
}

TEST_F(Handovers, FewerDescriptorsThanPartsAreTold) {
  for (const size_t count : {0, 1, 3}) {
    const Status status = answer_to([&](const sys::FdBox& box, const std::string& to) {
      EXPECT_TRUE(box.try_send(to, "1 0 2 ", exported(count)).value());
    });
    EXPECT_EQ(status.code(), Code::kExhausted) << count;
    EXPECT_THAT(status.message(), HasSubstr("2 parts of memory of rank 1"));
  }
}

TEST_F(Handovers, TheGroupsFateEndsTheWait) {
  Status answer;
  run(2, [&](group::Group& group) {
    if (group.rank() == 0) {
      answer = give(group, {}, {{}, {kPart}}).status();
      return;
    }
    ASSERT_TRUE(group.exchange("memory boxes", "nowhere", test::test_deadline()).ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    group.report(peer_lost("rank 1 is gone"));
  });
  EXPECT_EQ(answer.to_string(), peer_lost("rank 1 is gone").to_string());
}

// A peer whose box is gone is not waited for: there is no use in sending to it.
TEST_F(Handovers, ABoxThatIsGoneIsTold) {
  Status answer;
  run(2, [&](group::Group& group) {
    if (group.rank() == 1) {
      std::string address;
      {
        const auto box = sys::FdBox::open();
        address = box.value().address();
      }
      ASSERT_TRUE(group.exchange("memory boxes", address, test::test_deadline()).ok());
      return;
    }
    const SegmentedMemory memory(cuda_, 0, {1});
    const Backing own = Backing::find(cuda_, memory.get(), memory.bytes()).value();
    answer = give(group, own, {{kPart}, {}}).status();
  });
  EXPECT_EQ(answer.code(), Code::kUnavailable) << answer.to_string();
}

}  // namespace
}  // namespace braid::nvlink
