// A kernel's note on why it gave up, as users read it.
#include "comm/device/trouble.h"

#include <gtest/gtest.h>

#include <string>

namespace braid::comm {
namespace {

nvlink::Trouble note(nvlink::Wait wait, bool is_aborted = false) {
  nvlink::Trouble trouble{};
  trouble.code = 2;
  trouble.wait = wait;
  trouble.rank = 3;
  trouble.peer = 5;
  trouble.block = 7;
  trouble.aborted = is_aborted ? 1 : 0;
  trouble.expected = 41;
  trouble.seen = 40;
  return trouble;
}

TEST(Trouble, EveryWaitIsNamedWithWhoWaitedForWhomAndWhatWasSeen) {
  const std::pair<nvlink::Wait, const char*> waits[] = {
      {nvlink::Wait::kBarrier, "barrier"},
      {nvlink::Wait::kSlotFree, "free slot of the host ring"},
      {nvlink::Wait::kSlotFull, "full slot of the host ring"},
      {nvlink::Wait::kPacket, "packet"},
      {nvlink::Wait::kChunk, "chunk"},
      {nvlink::Wait::kNone, "nothing"}};
  for (const auto& [wait, name] : waits) {
    const Status status = in_words(note(wait));
    EXPECT_EQ(status.code(), Code::kTimeout);
    EXPECT_EQ(status.message(), std::string("gpu call: rank 3 block 7 waited for rank 5: ") + name +
                                    ": expected 41, seen 40");
  }
}

TEST(Trouble, AWaitThatTheHostEndedIsALostPeer) {
  const Status status = in_words(note(nvlink::Wait::kChunk, true));
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_NE(status.message().find("the comm had failed"), std::string::npos);
}

TEST(Trouble, ADisagreementIsTheCallersErrorAndNamesBoth) {
  const Status status = in_words(note(nvlink::Wait::kAgreement, true));
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "gpu call: rank 3 and rank 5 called different collectives or shapes (0x29 and 0x28)");
}

TEST(Trouble, SlotsOfWindowsAreToldFromThoseOfTheHostRing) {
  for (const auto& [wait, name] : {std::pair{nvlink::Wait::kSlotFree, "room in its window"},
                                   std::pair{nvlink::Wait::kSlotFull, "rows in our window"}}) {
    nvlink::Trouble trouble = note(wait);
    trouble.flag = 1;
    EXPECT_EQ(in_words(trouble).message(),
              std::string("gpu call: rank 3 block 7 waited for rank 5: ") + name +
                  ": expected 41, seen 40");
  }
}

TEST(Trouble, ADisagreementNamesTheWordWhereTheKernelSaysIt) {
  nvlink::Trouble trouble = note(nvlink::Wait::kAgreement);
  trouble.flag = 5;
  EXPECT_EQ(
      in_words(trouble).message(),
      "gpu call: ranks disagree: rank 3 has num_max_dispatch_tokens_per_rank 41, rank 5 has 40");
  trouble.flag = 99;
  EXPECT_EQ(in_words(trouble).message(),
            "gpu call: ranks disagree: rank 3 has word 41, rank 5 has 40");
}

TEST(Trouble, AnArgumentInDeviceMemoryIsNamedWithWhereItIs) {
  nvlink::Trouble trouble = note(nvlink::Wait::kArgument);
  trouble.flag = 1;
  trouble.tile = 12;
  trouble.seen = static_cast<uint64_t>(int64_t{-7});
  const Status status = in_words(trouble);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "gpu call: rank 3: argument topk_idx: expected at most 41, got -7 (at 12)");
}

}  // namespace
}  // namespace braid::comm
