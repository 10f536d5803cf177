#include "comm/observe/outputs.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "support/observed.h"

namespace braid::comm {
namespace {

std::shared_ptr<Journal> journal_with(size_t num_calls, size_t most_kept = 1 << 10) {
  auto journal = std::make_shared<Journal>(test::facts_of("c"), most_kept);
  for (size_t i = 0; i < num_calls; ++i)
    journal->end(journal->begin(test::host_note(plan::Op::kAllReduce, i)), CallState::kCompleted,
                 Code::kOk, "lanes", {});
  return journal;
}

TEST(Shelf, KeepsClosedCommsForAWhile) {
  Shelf shelf;
  const auto open = journal_with(1);
  shelf.add(open);
  for (int i = 0; i < 70; ++i) {
    const auto closed = journal_with(1);
    shelf.add(closed);
    shelf.retire(closed.get());
  }
  EXPECT_EQ(shelf.journals().size(), 65u);  // 64 of them
  EXPECT_EQ(shelf.journals().front(), open);
  EXPECT_TRUE(shelf.has_open());
  shelf.remove(open.get());
  EXPECT_FALSE(shelf.has_open());
  EXPECT_EQ(shelf.journals().size(), 64u);
}

TEST(Shelf, BoundsTheNotesOfClosedComms) {
  Shelf shelf(50);
  std::vector<std::shared_ptr<Journal>> large;
  for (int i = 0; i < 3; ++i) {
    large.push_back(journal_with(20));
    shelf.add(large.back());
  }
  EXPECT_EQ(shelf.journals().size(), 3u);  // open ones stay
  for (const auto& journal : large) shelf.retire(journal.get());
  ASSERT_EQ(shelf.journals().size(), 2u);
  EXPECT_EQ(shelf.journals().back(), large.back());
  const auto larger = journal_with(51);
  shelf.add(larger);
  shelf.retire(larger.get());
  EXPECT_EQ(shelf.journals(), (std::vector<std::shared_ptr<Journal>>{larger}));
}

TEST(TraceFile, IsOnePerPathAndSaysWhatItCannotWrite) {
  const std::string path = testing::TempDir() + "braid_outputs_trace.json";
  const auto file = TraceFile::at(path, "host");
  EXPECT_EQ(TraceFile::at(path, "host"), file);
  const auto journal = journal_with(3);
  file->shelf.add(journal);
  file->write();
  std::ifstream stream(path);
  const auto trace = nlohmann::json::parse(std::string{std::istreambuf_iterator(stream), {}});
  EXPECT_EQ(trace["otherData"]["calls"], 3);
  std::remove(path.c_str());
  file->shelf.remove(journal.get());
  log::configure("warn");  // whatever the tests before this one left
  testing::internal::CaptureStderr();
  TraceFile("/proc/nowhere/trace.json", "host").write();
  EXPECT_NE(testing::internal::GetCapturedStderr().find("BRAID_TRACE: /proc/nowhere/trace.json"),
            std::string::npos);
}

TEST(MetricsPort, IsServedWhileSomebodyHoldsIt) {
  const auto free = MetricsServer::start(0, [] { return std::string(); });
  ASSERT_TRUE(free.ok());
  const uint16_t taken = free.value()->port();
  log::configure("warn");  // whatever the tests before this one left
  testing::internal::CaptureStderr();
  EXPECT_EQ(MetricsPort::at(taken), nullptr);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("BRAID_METRICS_PORT: "), std::string::npos);
}

TEST(CommIndex, CountsPerRank) {
  EXPECT_EQ(next_comm_index(901), 0);
  EXPECT_EQ(next_comm_index(902), 0);
  EXPECT_EQ(next_comm_index(901), 1);
}

}  // namespace
}  // namespace braid::comm
