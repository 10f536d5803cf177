// A kernel's note on why it gave up, as users read it.
#include "comm/device/fault_words.h"

#include <gtest/gtest.h>

#include <string>

namespace braid::comm {
namespace {

device::Fault note(nvlink::Wait wait, bool is_aborted = false) {
  device::Fault fault{};
  fault.code = 2;
  fault.wait = wait;
  fault.rank = 3;
  fault.peer = 5;
  fault.block = 7;
  fault.aborted = is_aborted ? 1 : 0;
  fault.expected = 41;
  fault.seen = 40;
  return fault;
}

TEST(Fault, EveryWaitIsNamedWithWhoWaitedForWhomAndWhatWasSeen) {
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

TEST(Fault, AWaitThatTheHostEndedIsALostPeer) {
  const Status status = in_words(note(nvlink::Wait::kChunk, true));
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_NE(status.message().find("the comm had failed"), std::string::npos);
}

TEST(Fault, ADisagreementIsTheCallersErrorAndNamesBoth) {
  const Status status = in_words(note(nvlink::Wait::kAgreement, true));
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "gpu call: rank 3 and rank 5 called different collectives or shapes (0x29 and 0x28)");
}

TEST(Fault, SlotsOfWindowsAreToldFromThoseOfTheHostRing) {
  for (const auto& [wait, name] : {std::pair{nvlink::Wait::kSlotFree, "room in its window"},
                                   std::pair{nvlink::Wait::kSlotFull, "rows in our window"}}) {
    device::Fault fault = note(wait);
    fault.flag = 1;
    EXPECT_EQ(in_words(fault).message(),
              std::string("gpu call: rank 3 block 7 waited for rank 5: ") + name +
                  ": expected 41, seen 40");
  }
}

TEST(Fault, ADisagreementNamesTheWordWhereTheKernelSaysIt) {
  device::Fault fault = note(nvlink::Wait::kAgreement);
  fault.flag = 5;
  EXPECT_EQ(
      in_words(fault).message(),
      "gpu call: ranks disagree: rank 3 has num_max_dispatch_tokens_per_rank 41, rank 5 has 40");
  fault.flag = 99;
  EXPECT_EQ(in_words(fault).message(),
            "gpu call: ranks disagree: rank 3 has word 41, rank 5 has 40");
}

TEST(Fault, AnArgumentInDeviceMemoryIsNamedWithWhereItIs) {
  device::Fault fault = note(nvlink::Wait::kArgument);
  fault.flag = 1;
  fault.tile = 12;
  fault.seen = static_cast<uint64_t>(int64_t{-7});
  const Status status = in_words(fault);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "gpu call: rank 3: argument topk_idx: expected at most 41, got -7 (at 12)");
}

}  // namespace
}  // namespace braid::comm
