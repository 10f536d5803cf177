#include "base/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>

#include <cctype>
#include <cstdlib>
#include <filesystem>

#include "base/units.h"

namespace braid {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(Registry, IsSortedSoThatLookUpWorks) {
  const auto options = all_options();
  for (size_t i = 1; i < options.size(); ++i)
    EXPECT_LT(std::string_view(options[i - 1].name), std::string_view(options[i].name));
}

TEST(Registry, EveryOptionHasANameAndASentenceAndADefaultThatParses) {
  for (const Option& option : all_options()) {
    SCOPED_TRACE(option.name);
    EXPECT_TRUE(std::string_view(option.name).starts_with("BRAID_"));
    EXPECT_TRUE(std::string_view(option.help).ends_with("."));
    Config config;
    EXPECT_TRUE(config.set(option.name, option.default_value).ok());
  }
}

// What users must know of stays few: another option for them replaces one, or is of a tuning session.
TEST(Registry, HasFewOptionsForUsers) {
  EXPECT_LE(std::ranges::count(all_options(), OptionAudience::kUsers, &Option::audience), 25);
}

TEST(Config, GivesDefaultsUntilSet) {
  Config config;
  EXPECT_EQ(config.duration_ns("BRAID_TIMEOUT"), 30_s);
  EXPECT_EQ(config.bytes("BRAID_SLOT"), 64_KiB);
  EXPECT_EQ(config.integer("BRAID_DEPTH"), 16);
  EXPECT_TRUE(config.flag("BRAID_BALANCE"));
  EXPECT_EQ(config.text("BRAID_LINKS"), "auto");
  EXPECT_FALSE(config.is_set("BRAID_LINKS"));

  ASSERT_TRUE(config.set("BRAID_TIMEOUT", "2s").ok());
  ASSERT_TRUE(config.set("BRAID_BALANCE", "off").ok());
  ASSERT_TRUE(config.set("BRAID_LINKS", "shm,staged").ok());
  EXPECT_EQ(config.duration_ns("BRAID_TIMEOUT"), 2_s);
  EXPECT_FALSE(config.flag("BRAID_BALANCE"));
  EXPECT_EQ(config.text("BRAID_LINKS"), "shm,staged");
  EXPECT_TRUE(config.is_set("BRAID_LINKS"));
}

TEST(Config, CopiesAreIndependent) {
  Config first;
  ASSERT_TRUE(first.set("BRAID_DEPTH", "4").ok());
  Config second = first;
  ASSERT_TRUE(second.set("BRAID_DEPTH", "8").ok());
  EXPECT_EQ(first.integer("BRAID_DEPTH"), 4);
  EXPECT_EQ(second.integer("BRAID_DEPTH"), 8);
}

TEST(Config, ReadsEverySpellingOfASwitch) {
  Config config;
  for (const char* yes : {"on", "1", "true", "yes"}) {
    ASSERT_TRUE(config.set("BRAID_BALANCE", yes).ok());
    EXPECT_TRUE(config.flag("BRAID_BALANCE"));
  }
  for (const char* no : {"off", "0", "false", "no"}) {
    ASSERT_TRUE(config.set("BRAID_BALANCE", no).ok());
    EXPECT_FALSE(config.flag("BRAID_BALANCE"));
  }
}

TEST(Config, AMalformedValueNamesTheVariableTheTextAndTheForm) {
  const std::map<std::string, std::string> bad = {{"BRAID_TIMEOUT", "soon"},
                                                  {"BRAID_SLOT", "64MB"},
                                                  {"BRAID_DEPTH", "-1"},
                                                  {"BRAID_BALANCE", "maybe"}};
  for (const auto& [name, value] : bad) {
    const Status status = Config::from_pairs({{name, value}}).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(name));
    EXPECT_THAT(status.message(), HasSubstr("'" + value + "'"));
    EXPECT_TRUE(status.message().find("write") != std::string::npos ||
                status.message().find("from 0") != std::string::npos);
  }
}

TEST(Config, AnEmptyVariableIsNotSet) {
  for (const char* name :
       {"BRAID_TIMEOUT", "BRAID_TUNE", "BRAID_LINKS", "BRAID_DEPTH", "BRAID_LOG_FILE"}) {
    const Result<Config> config = Config::from_pairs({{name, ""}});
    ASSERT_TRUE(config.ok()) << name << ": " << config.status().message();
    EXPECT_FALSE(config.value().is_set(name));
  }
  std::vector<std::string> warnings;
  EXPECT_TRUE(Config::from_pairs({{"BRAID_TIMEOUTS", ""}}, &warnings).ok());
  EXPECT_EQ(warnings.size(), 1u);
}

TEST(Config, ADeadlineOfNoTimeIsRefusedByName) {
  for (const char* none : {"0", "0s", "0ns"}) {
    const Status status = Config::from_pairs({{"BRAID_TIMEOUT", none}}).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << none;
    EXPECT_THAT(status.message(),
                HasSubstr("BRAID_TIMEOUT: asked for '" + std::string(none) + "'"));
  }
  EXPECT_TRUE(Config::from_pairs({{"BRAID_TIMEOUT", "1ns"}}).ok());
  EXPECT_TRUE(Config::from_pairs({{"BRAID_TUNE_TIME", "0s"}}).ok());
}

TEST(Config, AFailedSetKeepsTheOldValue) {
  Config config;
  ASSERT_TRUE(config.set("BRAID_DEPTH", "4").ok());
  EXPECT_FALSE(config.set("BRAID_DEPTH", "four").ok());
  EXPECT_EQ(config.integer("BRAID_DEPTH"), 4);
}

TEST(Config, RefusesIntegersThatOverflowOrTrail) {
  Config config;
  for (const char* text : {"", "9223372036854775808", "1 ", "1x", "0x1", "1.0"})
    EXPECT_FALSE(config.set("BRAID_DEPTH", text).ok()) << text;
}

TEST(Config, WarnsOfAnUnknownNameWithTheNearest) {
  std::vector<std::string> warnings;
  const auto config = Config::from_pairs(
      {{"BRAID_TIMOUT", "5s"}, {"BRAID_SLOT", "4KiB"}, {"PATH", "/bin"}}, &warnings);
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config.value().bytes("BRAID_SLOT"), 4_KiB);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr("BRAID_TIMOUT is no option of braid"));
  EXPECT_THAT(warnings[0], HasSubstr("nearest name is BRAID_TIMEOUT"));
}

TEST(Config, SetRefusesAnUnknownNameWithTheNearest) {
  Config config;
  const Status status = config.set("BRAID_LINK", "shm");
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("BRAID_LINKS"));
}

TEST(Config, NoWarningShowsAValue) {
  std::vector<std::string> warnings;
  ASSERT_TRUE(
      Config::from_pairs({{"BRAID_JOB_TOKN", "hunter2"}, {"BRAID_JOB_TOKEN", "hunter2"}}, &warnings)
          .ok());
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("BRAID_JOB_TOKEN")));
  EXPECT_THAT(warnings, Each(Not(HasSubstr("hunter2"))));
}

TEST(Config, AHostileNameStaysOnOneShortLine) {
  std::vector<std::string> warnings;
  ASSERT_TRUE(Config::from_pairs({{"BRAID_\n" + std::string(5000, 'x'), "1"}}, &warnings).ok());
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_LT(warnings[0].size(), 200u);
  EXPECT_THAT(warnings[0], Not(HasSubstr("\n")));
}

TEST(Config, ReadsTheEnvironment) {
  ASSERT_EQ(setenv("BRAID_DEPTH", "7", 1), 0);
  ASSERT_EQ(setenv("BRAID_DEPHT", "9", 1), 0);
  std::vector<std::string> warnings;
  const auto config = Config::from_environment(&warnings);
  unsetenv("BRAID_DEPTH");
  unsetenv("BRAID_DEPHT");
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config.value().integer("BRAID_DEPTH"), 7);
  EXPECT_THAT(warnings, ::testing::Contains(HasSubstr("BRAID_DEPHT")));
}

TEST(ConfigDeathTest, ReadingAnUnknownNameOrAWrongTypeIsOurBug) {
  const Config config;
  EXPECT_DEATH(config.text("BRAID_NOTHING"), "BRAID_NOTHING is not in the registry");
  EXPECT_DEATH(config.integer("BRAID_TIMEOUT"), "BRAID_TIMEOUT has type");
}

// ---- a program with rights that its caller has not ----

TEST(SetuidChild, DISABLED_HasNoOptions) {
  const auto config = Config::from_environment();
  ASSERT_TRUE(config.ok());
  ::_exit(config->is_set("BRAID_LOG_FILE") ? 3 : 0);
}

// A copy of this program that runs as another user than who starts it: whoever starts it must not
// say which files it writes.
TEST(Config, ASetuidProgramTakesNothingFromItsEnvironment) {
  if (::geteuid() != 0) GTEST_SKIP() << "skipped: only root can make a program setuid";
  std::string folder = "/tmp/braid-setuid-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string copy = folder + "/program";
  std::filesystem::copy_file("/proc/self/exe", copy);
  ASSERT_EQ(::chmod(folder.c_str(), 0755), 0);
  ASSERT_EQ(::chown(copy.c_str(), 65534, 65534), 0);
  const auto exit_of = [&](mode_t mode) {
    EXPECT_EQ(::chmod(copy.c_str(), mode), 0);
    const std::string run = "BRAID_LOG_FILE=/dev/null " + copy +
                            " --gtest_also_run_disabled_tests --gtest_filter=SetuidChild.* "
                            ">/dev/null 2>&1";
    return WEXITSTATUS(std::system(run.c_str()));
  };
  EXPECT_EQ(exit_of(0755), 3) << "as an ordinary program it has the option";
  const int as_setuid = exit_of(04755);
  std::filesystem::remove_all(folder);
  EXPECT_EQ(as_setuid, 0);
}

}  // namespace
}  // namespace braid
