#include "coll/tuning_cache.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "coll/ranks.h"
#include "coll/tune/tune.h"
#include "support/alone.h"
#include "sys/host/api.h"
#include "sys/host/file.h"

namespace braid::coll {
namespace {

namespace fs = std::filesystem;

/// Makes this process one of a user whom nobody knows, as in a container that runs as any number.
void become_nobody_known() {
  constexpr uid_t kUnknown = 1'234'567;
  ::unsetenv("HOME");            // NOLINT(concurrency-mt-unsafe): no other thread here
  ::unsetenv("XDG_CACHE_HOME");  // NOLINT(concurrency-mt-unsafe)
  if (::setresuid(kUnknown, kUnknown, kUnknown) != 0 || !sys::home_directory().empty())
    _exit(test::kSkipExit);
}

// Not the working directory: what lies there may be anybody's.
TEST(TuningCache, DISABLED_WithoutAHome) {
  become_nobody_known();
  const Config config = test::make_config({{"BRAID_TUNE", "auto"}});
  EXPECT_EQ(tuning_path(config, "abc"), "");
  EXPECT_EQ(tuning_path(test::make_config({{"BRAID_CACHE_DIR", "/x"}}), "abc"),
            "/x/tuning-abc.json");
  test::end_alone();
}

TEST(TuningCache, IsNowhereWithoutAHome) { test::run_alone("TuningCache.DISABLED_WithoutAHome"); }

TEST(TuningCache, ThatIsNowhereIsNeitherReadNorKept) {
  const test::ScratchDirectory scratch;
  const fs::path before = fs::current_path();
  fs::current_path(scratch.path());
  bool is_asked = false;
  const auto check = [&](const std::string&) {
    is_asked = true;
    return Status();
  };
  testing::internal::CaptureStderr();
  EXPECT_EQ(find_tuning(test::make_config({{"BRAID_TUNE", "auto"}}), 0, "", check), "");
  keep_tuning("", "text", "this fabric");
  EXPECT_EQ(testing::internal::GetCapturedStderr().find("warn"), std::string::npos);
  EXPECT_FALSE(is_asked);
  EXPECT_TRUE(fs::is_empty(scratch.path()));
  fs::current_path(before);
}

/// Whether two ranks over `links` took their tuning from the cache in `folder`.
bool is_read(const fs::path& folder, const std::string& links, const std::string& budget,
             const std::string& mode = "auto") {
  bool is_read = false;
  const test::Options options = {{"BRAID_TUNE", mode},
                                 {"BRAID_LINKS", links},
                                 {"BRAID_TUNE_TIME", budget},
                                 {"BRAID_CACHE_DIR", folder}};
  test::run_comms(2, options, [&](comm::Comm& comm) {
    ASSERT_TRUE(ensure_tuned(comm, {}).ok());
    if (comm.rank() != 0) return;
    for (const std::string& line : comm.balance_log())
      is_read |= line == "tuning read from the cache";
  });
  return is_read;
}

// One that was cut off serves those who would not measure for longer.
TEST(TuningCache, ThatWasCutOffIsMadeAnewWithMoreTime) {
  const test::ScratchDirectory scratch;
  EXPECT_FALSE(is_read(scratch.path(), "shm,staged", "0s"));
  EXPECT_FALSE(is_read(scratch.path(), "shm,staged", "1ms"));
  EXPECT_TRUE(is_read(scratch.path(), "shm,staged", "1ms"));
  EXPECT_FALSE(is_read(scratch.path(), "shm,staged", "2ms"));
  EXPECT_TRUE(is_read(scratch.path(), "shm,staged", "1ms"));
}

// What a whole measurement found was lost to one that was forced and had no time.
TEST(TuningCache, ThatIsWholeStaysWhenAForcedOneIsCutOff) {
  const test::ScratchDirectory scratch;
  EXPECT_FALSE(is_read(scratch.path(), "shm,staged", "3ms"));
  const fs::path path = fs::directory_iterator(scratch.path())->path();
  const std::string part = sys::read_file(path, 1 << 20).value();
  std::string whole = part;
  const size_t at = whole.find("\"cut_off_ns\": 3000000");
  ASSERT_NE(at, std::string::npos);
  whole.replace(at, std::strlen("\"cut_off_ns\": 3000000"), "\"cut_off_ns\": 0");
  for (const std::string& kept : {whole, part}) {
    ASSERT_TRUE(sys::write_file(path, kept).ok());
    EXPECT_FALSE(is_read(scratch.path(), "shm,staged", "1ms", "force"));
    EXPECT_EQ(sys::read_file(path, 1 << 20).value(), kept);
    EXPECT_TRUE(is_read(scratch.path(), "shm,staged", "2ms"));
  }
  ASSERT_TRUE(sys::write_file(path, "no table").ok());
  EXPECT_FALSE(is_read(scratch.path(), "shm,staged", "1ms", "force"));
  EXPECT_TRUE(is_read(scratch.path(), "shm,staged", "1ms"));
}

// The fabric's hash counts links, so such a file was damaged or put there.
TEST(TuningCache, OfOtherLinksIsMadeAnew) {
  const test::ScratchDirectory scratch;
  EXPECT_FALSE(is_read(scratch.path(), "shm,staged", "1ms"));
  const fs::path path = fs::directory_iterator(scratch.path())->path();
  std::string text = sys::read_file(path, 1 << 20).value();
  text.replace(text.find("\"staged\""), 8, "\"others\"");
  ASSERT_TRUE(sys::write_file(path, text).ok());
  EXPECT_FALSE(is_read(scratch.path(), "shm,staged", "1ms"));
  EXPECT_TRUE(is_read(scratch.path(), "shm,staged", "1ms"));
}

}  // namespace
}  // namespace braid::coll
