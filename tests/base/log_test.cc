#include "base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "base/file_name.h"

namespace braid::log {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

class Log : public ::testing::Test {
 protected:
  void TearDown() override {
    configure("warn");
    set_file("");
    set_rank(-1);
    set_job_rank(-1);
  }
};

template <typename F>
std::string stderr_of(F body) {
  ::testing::internal::CaptureStderr();
  body();
  return ::testing::internal::GetCapturedStderr();
}

TEST_F(Log, PrefixesRankFolderAndLevel) {
  set_rank(3);
  EXPECT_EQ(stderr_of([] { warn("plan", "share {} of {}", 2, "shm"); }),
            "braid rank 3 plan warn: share 2 of shm\n");
}

TEST_F(Log, ShowsAQuestionMarkBeforeTheRankIsKnown) {
  EXPECT_THAT(stderr_of([] { error("group", "no store"); }),
              HasSubstr("braid rank ? group error: no store"));
}

TEST_F(Log, RankBelongsToTheThread) {
  set_rank(1);
  const std::string text = stderr_of([] {
    std::thread([] {
      set_rank(2);
      warn("comm", "other");
    }).join();
    warn("comm", "mine");
  });
  EXPECT_THAT(text, HasSubstr("rank 2 comm warn: other"));
  EXPECT_THAT(text, HasSubstr("rank 1 comm warn: mine"));
}

// A process is another rank of each of its comms, and its log would change its name with each.
TEST_F(Log, TheRankInTheJobIsTheProcesss) {
  set_job_rank(3);
  set_rank(0);
  EXPECT_EQ(stderr_of([] { warn("comm", "of a part"); }), "braid rank 3 comm warn: of a part\n");
  set_job_rank(-1);
  EXPECT_EQ(stderr_of([] { warn("comm", "alone"); }), "braid rank 0 comm warn: alone\n");
}

TEST_F(Log, WarnIsTheDefault) {
  EXPECT_TRUE(enabled(Level::kError, "coll"));
  EXPECT_TRUE(enabled(Level::kWarn, "coll"));
  EXPECT_FALSE(enabled(Level::kInfo, "coll"));
  EXPECT_EQ(stderr_of([] { info("coll", "quiet"); }), "");
}

TEST_F(Log, SetsFoldersApart) {
  ASSERT_TRUE(configure("error, coll:trace ,plan:off"));
  EXPECT_TRUE(enabled(Level::kTrace, "coll"));
  EXPECT_FALSE(enabled(Level::kWarn, "comm"));
  EXPECT_TRUE(enabled(Level::kError, "comm"));
  EXPECT_FALSE(enabled(Level::kError, "plan"));
}

TEST_F(Log, OffSilencesEverything) {
  ASSERT_TRUE(configure("off"));
  EXPECT_FALSE(enabled(Level::kError, "coll"));
  EXPECT_FALSE(enabled(Level::kOff, "coll"));
  EXPECT_EQ(stderr_of([] { error("coll", "x"); }), "");
}

TEST_F(Log, AnUnknownWordChangesNothing) {
  ASSERT_TRUE(configure("info"));
  for (const char* spec : {"loud", "warn,coll:loud", "coll:", ":trace", "warn,,error", "WARN"})
    EXPECT_FALSE(configure(spec)) << spec;
  EXPECT_TRUE(enabled(Level::kInfo, "coll"));
}

TEST_F(Log, AnEmptySpecMeansTheDefault) {
  ASSERT_TRUE(configure("trace"));
  ASSERT_TRUE(configure(""));
  EXPECT_FALSE(enabled(Level::kInfo, "coll"));
}

TEST_F(Log, OneCallIsOneLineWhateverTheTextHolds) {
  const std::string text =
      stderr_of([] { warn("group", "peer said {}", "a\nbraid rank 0 fake error: b\x1b[2J"); });
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
}

TEST_F(Log, FormatsOnlyWhatWillBeWritten) {
  // A brace in the text itself must not be taken for a format.
  EXPECT_THAT(stderr_of([] { write(Level::kWarn, "coll", "{} {0} {x}"); }),
              HasSubstr("{} {0} {x}"));
}

TEST_F(Log, ConfigureAndWriteMayRunAtOnce) {
  const std::string text = stderr_of([] {
    std::thread writer([] {
      for (int i = 0; i < 200; ++i) warn("coll", "line {}", i);
    });
    for (int i = 0; i < 200; ++i) configure(i % 2 ? "warn" : "trace,coll:info");
    writer.join();
  });
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 200);
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_F(Log, GoesToAFilePerRankWithTheTime) {
  const std::string folder = ::testing::TempDir();
  const std::string pattern = folder + "braid_log_%p_%r.txt";
  const auto path = [&](int rank) { return expand_file_name(pattern, rank); };
  set_file(pattern);
  const std::string on_stderr = stderr_of([] {
    for (int rank = 0; rank < 2; ++rank) {
      set_rank(rank);
      warn("comm", "of {}", rank);
    }
    warn("comm", "again");
  });
  EXPECT_EQ(on_stderr, "");
  EXPECT_THAT(text_of(path(0)),
              MatchesRegex("20..-..-..T..:..:..\\.......Z braid rank 0 comm warn: of 0\n"));
  EXPECT_THAT(text_of(path(1)), HasSubstr("Z braid rank 1 comm warn: of 1\n"));
  EXPECT_THAT(text_of(path(1)), HasSubstr("Z braid rank 1 comm warn: again\n"));
  set_file("");
  EXPECT_THAT(stderr_of([] { warn("comm", "back"); }), HasSubstr("comm warn: back"));
  for (int rank = 0; rank < 2; ++rank) std::remove(path(rank).c_str());
}

TEST_F(Log, SaysOnceThatAFileCannotBeOpened) {
  set_file("/nowhere/braid.txt");
  const std::string text = stderr_of([] {
    warn("comm", "first");
    warn("comm", "second");
  });
  EXPECT_THAT(text, HasSubstr("BRAID_LOG_FILE /nowhere/braid.txt cannot be opened"));
  EXPECT_EQ(text.find("cannot be opened"), text.rfind("cannot be opened"));
  EXPECT_THAT(text, HasSubstr("comm warn: first"));
  EXPECT_THAT(text, HasSubstr("comm warn: second"));
}

}  // namespace
}  // namespace braid::log
