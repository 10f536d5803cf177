// What ends a call that does not get on, and what does not end it.
#include <gtest/gtest.h>

#include <vector>

#include "coll/all_gather/all_gather.h"
#include "coll/broadcast/broadcast.h"
#include "coll/leaving.h"

namespace braid {
namespace {

using test::Goes;

class CallWatch : public testing::TestWithParam<const char*> {};

// Rank 1's entry lies in rank 0's lane unread when rank 0 hears that rank 1 is gone.
void gather_beside_one_who(Goes goes, const char* links) {
  std::vector<std::vector<int64_t>> got(2, std::vector<int64_t>(2, -1));
  const Status status = test::run_beside_one_who(
      goes, coll::PieceKind::kEntry, {{"BRAID_LINKS", links}}, [&](comm::Comm& comm) {
        const int64_t own = 7 + comm.rank();
        std::vector<int64_t>& all = got[static_cast<size_t>(comm.rank())];
        return coll::all_gather(comm, &own, all.data(), 1, Dtype::kInt64);
      });
  EXPECT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(got[0], (std::vector<int64_t>{7, 8}));
}

TEST_P(CallWatch, WhoEnteredAndLeftAtOnceHasEntered) {
  gather_beside_one_who(Goes::kLeaves, GetParam());
}

TEST_P(CallWatch, WhoDiedBehindItsPartOfACallDidItsPart) {
  gather_beside_one_who(Goes::kDies, GetParam());
}

TEST_P(CallWatch, WhoLeftWithoutEnteringWillNot) {
  const Status status = test::run_beside_one_who(
      Goes::kLeaves, coll::PieceKind::kEntry, {{"BRAID_LINKS", GetParam()}},
      [](comm::Comm& comm) { return comm.rank() == 1 ? Status() : coll::barrier(comm); });
  EXPECT_EQ(status.code(), Code::kPeerLost) << status.to_string();
  EXPECT_EQ(status.message(), "barrier (call 1): rank 1 has left and will not enter");
}

INSTANTIATE_TEST_SUITE_P(Links, CallWatch, testing::Values("shm", "staged", "shm,staged"));

}  // namespace
}  // namespace braid
