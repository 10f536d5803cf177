#include "comm/observe/journal.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "support/observed.h"

namespace braid::comm {
namespace {

using plan::Op;
using test::facts_of;
using test::gpu_note;
using test::host_note;

void complete(Journal& journal, const CallNote& note, const std::vector<LinkNote>& links = {}) {
  journal.end(journal.begin(note), CallState::kCompleted, Code::kOk, "lanes", links);
}

TEST(Journal, KeepsTheLastCallsInOrder) {
  Journal journal(facts_of("c"), 4);
  for (uint64_t i = 1; i <= 11; ++i) complete(journal, host_note(Op::kAllReduce, i));
  const auto notes = journal.notes();
  ASSERT_EQ(notes.size(), 4u);
  for (size_t i = 0; i < notes.size(); ++i) {
    EXPECT_EQ(notes[i].number, 8 + i);
    EXPECT_EQ(notes[i].shape.count, 8 + i);
    EXPECT_GE(notes[i].end_ns, notes[i].begin_ns);
    EXPECT_EQ(notes[i].state, CallState::kCompleted);
    if (i > 0) {
      EXPECT_GE(notes[i].begin_ns, notes[i - 1].end_ns);
    }
  }
  EXPECT_EQ(journal.num_calls(), 11u);
  EXPECT_EQ(journal.num_notes(), 4u);
}

TEST(Journal, ACallUnderWayHasNoEnd) {
  Journal journal(facts_of("c"), 2);
  (void)journal.begin(host_note(Op::kBroadcast, 3));
  const auto notes = journal.notes();
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_EQ(notes[0].end_ns, 0);
  EXPECT_EQ(notes[0].state, CallState::kStarted);
  EXPECT_GT(notes[0].begin_ns, 0);
}

TEST(Journal, AGpuCallIsDoneWhenTheGpuIs) {
  Journal journal(facts_of("c"), 8);
  const uint64_t number = journal.begin(gpu_note(Op::kAllGather, 1 << 20));
  journal.end(number, CallState::kScheduled, Code::kOk, "direct", {});
  EXPECT_EQ(journal.notes()[0].state, CallState::kScheduled);
  journal.time_on_gpu(number, 5'000, 0);
  EXPECT_EQ(journal.notes()[0].state, CallState::kStarted);
  EXPECT_EQ(journal.tally().kinds[1][static_cast<size_t>(Op::kAllGather)].timed, 0u);
  journal.time_on_gpu(number, 5'000, 65'000);
  EXPECT_EQ(journal.notes()[0].state, CallState::kCompleted);
  EXPECT_EQ(journal.notes()[0].duration_ns(), 60'000);
  const Tally all = journal.tally();
  const KindTally& tally = all.kinds[1][static_cast<size_t>(Op::kAllGather)];
  EXPECT_EQ(tally.timed, 1u);
  EXPECT_EQ(tally.time_ns, 60'000);
  EXPECT_EQ(tally.within[3], 1u);  // above 50 us, up to 100
}

TEST(Journal, TimesOfCallsThatFellOutAreDropped) {
  Journal journal(facts_of("c"), 1);
  const uint64_t first = journal.begin(gpu_note(Op::kAllGather, 1));
  complete(journal, host_note(Op::kAllReduce, 1));
  journal.time_on_gpu(first, 1, 2);
  journal.end(first, CallState::kFailed, Code::kOk, "", {});
  ASSERT_EQ(journal.notes().size(), 1u);
  EXPECT_EQ(journal.notes()[0].number, 2u);
  EXPECT_EQ(journal.notes()[0].state, CallState::kCompleted);
}

TEST(Journal, AFailureIsExplainedOnce) {
  Journal journal(facts_of("c"), 8);
  complete(journal, host_note(Op::kAllReduce, 1));
  journal.note_failure(Code::kInvalidArgument);  // of no call: the last one was fine
  EXPECT_EQ(journal.notes()[0].code, Code::kOk);
  journal.end(journal.begin(host_note(Op::kAllReduce, 2)), CallState::kFailed, Code::kOk, "", {});
  journal.note_failure(Code::kTimeout);
  EXPECT_EQ(journal.notes()[1].code, Code::kTimeout);
  const Tally tally = journal.tally();
  EXPECT_EQ(tally.failures[static_cast<size_t>(Code::kTimeout)], 1u);
  EXPECT_EQ(tally.failures[static_cast<size_t>(Code::kInvalidArgument)], 1u);
  EXPECT_EQ(tally.kinds[0][static_cast<size_t>(Op::kAllReduce)].calls, 2u);
  EXPECT_EQ(tally.kinds[0][static_cast<size_t>(Op::kAllReduce)].timed, 1u);
}

TEST(Journal, AddsUpLinks) {
  Journal journal(facts_of("c"), 2);
  for (int i = 0; i < 3; ++i)
    complete(journal, host_note(Op::kAllGather, 8),
             {{0, 40'000, 100, 50, 7}, {1, 25'536, 9, 8, 6}});
  journal.note_link(1, false);
  journal.note_link(1, false);
  const Tally tally = journal.tally();
  EXPECT_EQ(tally.links[0].sent_bytes, 300u);
  EXPECT_EQ(tally.links[0].received_bytes, 150u);
  EXPECT_EQ(tally.links[0].parts, 40'000u);
  EXPECT_TRUE(tally.links[0].is_up);
  EXPECT_EQ(tally.links[1].sent_bytes, 27u);
  EXPECT_FALSE(tally.links[1].is_up);
  EXPECT_EQ(tally.links[1].losses, 1u);
  journal.note_link(1, true);
  EXPECT_TRUE(journal.tally().links[1].is_up);
}

TEST(Journal, SharesAreThoseOfTheLastCallInThatMemory) {
  Journal journal(facts_of("c"), 2);
  complete(journal, host_note(Op::kAllGather, 8), {{0, 50'000, 1, 1, 1}, {1, 15'536, 1, 1, 1}});
  complete(journal, gpu_note(Op::kAllGather, 8), {{2, 60'000, 1, 0, 0}, {3, 5'536, 1, 0, 0}});
  complete(journal, host_note(Op::kAllReduce, 8), {{1, plan::kWhole, 1, 1, 1}});
  complete(journal, host_note(Op::kBroadcast, 0));  // moved nothing
  std::vector<uint32_t> parts;
  for (const LinkTally& link : journal.tally().links) parts.push_back(link.parts);
  EXPECT_EQ(parts, (std::vector<uint32_t>{0, plan::kWhole, 60'000, 5'536, 0}));
}

// Closed comms stay on a shelf: one of a hundred calls must not hold what 65536 would take.
TEST(Journal, HasTheMemoryOfItsNotes) {
  Journal journal(facts_of("c"), 65'536);
  EXPECT_EQ(journal.memory_bytes(), 0u);
  for (uint64_t i = 1; i <= 100; ++i) complete(journal, host_note(Op::kAllReduce, i));
  EXPECT_GE(journal.memory_bytes(), 100 * sizeof(CallNote));
  EXPECT_LE(journal.memory_bytes(), 200 * sizeof(CallNote));
  EXPECT_EQ(journal.notes().size(), 100u);
}

// The ring's end need not be that of what it is made of.
TEST(Journal, KeepsAnyNumberOfCalls) {
  for (const uint64_t most : std::initializer_list<uint64_t>{1, 63, 64, 65, 130, 200}) {
    Journal journal(facts_of("c"), most);
    for (uint64_t i = 1; i <= 3 * most + 1; ++i) complete(journal, host_note(Op::kAllReduce, i));
    const auto notes = journal.notes();
    ASSERT_EQ(notes.size(), most);
    EXPECT_EQ(journal.num_notes(), most);
    EXPECT_LT(journal.memory_bytes(), (most + 64) * sizeof(CallNote));
    for (uint64_t i = 0; i < most; ++i) {
      EXPECT_EQ(notes[i].number, 2 * most + 2 + i);
      EXPECT_EQ(notes[i].shape.count, notes[i].number);
    }
  }
}

// A failure is noted, and times come, for calls that may not be there.
TEST(Journal, WhatNeverBeganIsNobodysNote) {
  Journal journal(facts_of("c"), 100);
  journal.note_failure(Code::kTimeout);
  journal.time_on_gpu(1, 5, 6);
  journal.end(70, CallState::kCompleted, Code::kOk, "lanes", {});
  EXPECT_TRUE(journal.notes().empty());
}

TEST(Journal, IsRenamed) {
  Journal journal(facts_of("c"), 2);
  journal.rename("tensor:cuda");
  EXPECT_EQ(journal.facts().name, "tensor:cuda");
}

// A long trace is read while calls go on: what is read is whole, and in order.
TEST(Journal, IsReadWhileCallsGoOn) {
  Journal journal(facts_of("c"), 500);
  std::atomic<bool> must_stop{false};
  std::thread caller([&] {
    for (uint64_t i = 1; !must_stop; ++i)
      complete(journal, host_note(Op::kAllReduce, i), {{0, 1, i, 2 * i, 1}});
  });
  while (journal.num_calls() < 600) std::this_thread::yield();
  for (int round = 0; round < 20; ++round) {
    uint64_t last = 0;
    for (const CallNote& note : journal.notes()) {
      EXPECT_GT(note.number, last);
      EXPECT_EQ(note.shape.count, note.number);
      if (note.state == CallState::kCompleted) {
        EXPECT_EQ(note.links[0].sent_bytes, note.number);
      }
      last = note.number;
    }
  }
  must_stop = true;
  caller.join();
}

}  // namespace
}  // namespace braid::comm
