#include "comm/connect.h"

#include <gtest/gtest.h>

namespace braid::comm {
namespace {

// A rank without a descriptor left heard of links that nobody had asked it about; why not was in the
// log, at info.
TEST(NoLink, SaysWhatEachLinkMet) {
  const Status met = no_link(2, {exhausted("link shm: memfd_create: Too many open files"),
                                 unavailable("link staged: rank 1 has none")});
  EXPECT_EQ(met.code(), Code::kExhausted);
  EXPECT_EQ(met.message(),
            "the 2 ranks share no link that can be opened; link shm: memfd_create: Too many open "
            "files; link staged: rank 1 has none");
  EXPECT_EQ(no_link(2, {driver_error("link rdma: no")}).code(), Code::kUnavailable);
  EXPECT_EQ(no_link(3, {}).message(), "the 3 ranks share no link that can be opened");
}

}  // namespace
}  // namespace braid::comm
