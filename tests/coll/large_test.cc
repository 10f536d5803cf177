// Messages over 4 GiB: offsets and counts must be 64 bits all the way. Needs about 9 GiB of memory
// and some seconds, so it runs only when asked: BRAID_TEST_LARGE=1.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdlib>

#include "coll/broadcast/broadcast.h"
#include "coll/ranks.h"

namespace braid {
namespace {

// What byte `i` holds: differs between places 2^32 apart.
std::byte value_at(uint64_t i) { return static_cast<std::byte>((i * 0x9e3779b97f4a7c15ULL) >> 56); }

TEST(Large, BroadcastOfMoreThanFourGibibytes) {
  const char* wanted = std::getenv("BRAID_TEST_LARGE");
  if (wanted == nullptr || *wanted != '1')
    GTEST_SKIP() << "skipped: needs 9 GiB of memory; set BRAID_TEST_LARGE=1";
  const uint64_t bytes = (uint64_t{4} << 30) + 12'345;
  test::run_comms(2, {{"BRAID_LINKS", "shm,staged"}}, [&](comm::Comm& comm) {
    ASSERT_TRUE(comm.force_shares({plan::kWhole / 2, plan::kWhole / 2}).ok());
    auto* buf = static_cast<std::byte*>(
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(static_cast<void*>(buf), MAP_FAILED);
    if (comm.rank() == 0)
      for (uint64_t i = 0; i < bytes; ++i) buf[i] = value_at(i);
    const Status status = coll::broadcast(comm, buf, bytes, Dtype::kUint8, 0);
    EXPECT_TRUE(status.ok()) << status.to_string();
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < bytes; ++i) wrong += buf[i] != value_at(i) ? 1 : 0;
    EXPECT_EQ(wrong, 0U);
    munmap(buf, bytes);
  });
}

}  // namespace
}  // namespace braid
