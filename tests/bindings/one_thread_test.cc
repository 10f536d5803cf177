// A braid_comm takes one thread at a time, to close it, too; its texts may be had by any.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

#include "bindings/c/handle.h"
#include "coll/ranks.h"
#include "comm/state.h"

namespace braid {
namespace {

using test::ThreadGroup;
using test::ThreadHub;

void expect_ok(braid_code code) { EXPECT_EQ(code, BRAID_OK) << braid_last_error(); }

braid_comm* handle_of(const std::shared_ptr<ThreadHub>& hub, int rank) {
  const Config config = test::make_config({{"BRAID_LINKS", "shm"}, {"BRAID_TIMEOUT", "5s"}});
  auto comm = comm::Comm::create(std::make_unique<ThreadGroup>(hub, rank), config);
  EXPECT_TRUE(comm.ok()) << comm.status().to_string();
  auto* const handle = new braid_comm;
  handle->comm = std::move(comm).value();
  return handle;
}

// It used to wait for the call, and to free what the caller was still in.
TEST(OneThread, AnotherCannotCloseWhatACallIsIn) {
  const auto hub = std::make_shared<ThreadHub>(2);
  std::atomic<bool> may_come{false};
  std::thread peer([&] {
    braid_comm* const comm = handle_of(hub, 1);
    while (!may_come) std::this_thread::yield();
    expect_ok(braid_barrier(comm));
    expect_ok(braid_close(comm));
  });
  braid_comm* const comm = handle_of(hub, 0);
  std::thread caller([&] { expect_ok(braid_barrier(comm)); });
  while (!comm->comm->state().in_call) std::this_thread::yield();
  EXPECT_EQ(braid_close(comm), BRAID_INVALID_ARGUMENT);
  EXPECT_NE(std::string(braid_last_error()).find("another thread"), std::string::npos)
      << braid_last_error();
  EXPECT_EQ(braid_barrier(comm), BRAID_INVALID_ARGUMENT);
  EXPECT_NE(braid_health(comm), nullptr);
  EXPECT_NE(braid_links(comm, 0), nullptr);
  may_come = true;
  caller.join();
  expect_ok(braid_close(comm));
  peer.join();
}

TEST(OneThread, KeepsItsTextsWhileOthersAsk) {
  braid_comm* const comm = handle_of(std::make_shared<ThreadHub>(1), 0);
  const char* const mine = braid_explain(comm, "all_gather", 1 << 20);
  ASSERT_NE(mine, nullptr);
  const std::string before = mine;
  std::thread([&] {
    const char* const theirs = braid_explain(comm, "all_reduce", 64);
    ASSERT_NE(theirs, nullptr);
    EXPECT_NE(std::string(theirs), before);
  }).join();
  EXPECT_EQ(std::string(mine), before);
  expect_ok(braid_close(comm));
}

}  // namespace
}  // namespace braid
