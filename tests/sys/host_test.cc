#include "sys/host/api.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <set>
#include <thread>

#include "sys/fd.h"
#include "sys/host/cores.h"
#include "sys/host/thread.h"

namespace braid::sys {
namespace {

TEST(Host, IdIsStableAndShort) {
  const std::string id = host_id("").value();
  EXPECT_EQ(id.size(), 16u);
  for (const char c : id) EXPECT_TRUE(std::isxdigit(static_cast<unsigned char>(c)));
  EXPECT_EQ(id, host_id("").value());
}

// Another id would make this host another one, to which there is no shared memory.
TEST(Host, IdWithoutDescriptorsIsAnErrorAndNoOtherId) {
  const std::string id = host_id("").value();
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit none{0, 0};
    ::setrlimit(RLIMIT_NOFILE, &none);
    auto found = host_id("");
    ::_exit(found.status().code() == Code::kExhausted || (found.ok() && *found == id) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Host, EveryProcessHasAMarkOfItsOwn) {
  const auto mark = process_mark().value();
  EXPECT_EQ(mark, process_mark().value());
  const pid_t child = ::fork();
  if (child == 0) ::_exit(process_mark().value() == mark ? 1 : 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Host, AThreadThatCannotBeIsExhausted) {
  if (::geteuid() == 0) GTEST_SKIP() << "root's processes are not counted";
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit none{0, 0};
    ::setrlimit(RLIMIT_NPROC, &none);
    ::_exit(start_thread("one too many", [] {}).status().code() == Code::kExhausted ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// What it waits for may come of what is done behind it, and not before.
TEST(Host, ALimitedWaitEndsBeforeWorkThatHangs) {
  std::atomic<bool> is_free{false}, is_done{false};
  const auto begin = std::chrono::steady_clock::now();
  {
    const LimitedWait wait("a driver's call", 20'000'000, [&] {
      while (!is_free) std::this_thread::yield();
      is_done = true;
    });
    EXPECT_FALSE(is_done);
    EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(20));
    is_free = true;
  }
  EXPECT_TRUE(is_done);
}

TEST(Host, ALimitedWaitEndsWithItsWork) {
  bool is_done = false;
  const LimitedWait wait("a driver's call", 60'000'000'000, [&] { is_done = true; });
  EXPECT_TRUE(is_done);
}

TEST(Host, IdMayBeOverridden) { EXPECT_EQ(host_id("node-a").value(), "node-a"); }

TEST(Host, CoresAreThoseWeMayUse) {
  const int cores = usable_cores();
  EXPECT_GE(cores, 1);
  std::thread([&] {  // the mask is the thread's: the rest of the program keeps its own
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<size_t>(::sched_getcpu()), &one);
    if (::sched_setaffinity(0, sizeof one, &one) != 0) return;
    EXPECT_EQ(usable_cores(), 1);
  })
      .join();
  EXPECT_EQ(usable_cores(), cores);
}

TEST(Host, CoresAreWrittenAsInSysfs) {
  EXPECT_EQ(parse_cores("0-2,8, 10-11").value(), (CoreSet{0, 1, 2, 8, 10, 11}));
  EXPECT_EQ(text_of({0, 1, 2, 8, 10, 11}), "0-2,8,10-11");
  EXPECT_EQ(parse_cores("").value(), CoreSet());  // a node without cores
  EXPECT_EQ(text_of({}), "");
  for (const char* text : {"a", "-1", "1-", "3-2", "0,,1", "0-1x", "0-99999999", "0-3:1/2"})
    EXPECT_EQ(parse_cores(text).status().code(), Code::kInvalidArgument) << text;
}

TEST(Host, AThreadIsSetToSomeCoresAndBack) {
  std::thread([] {
    Cores& cores = real_cores();
    const CoreSet all = cores.usable();
    const CoreSet last = {*all.rbegin()};
    ASSERT_TRUE(cores.use(last).ok());
    EXPECT_EQ(cores.usable(), last);
    EXPECT_EQ(::sched_getcpu(), *all.rbegin());
    for (const CoreSet& none : {CoreSet(), CoreSet{(1 << 20) - 1}})
      EXPECT_EQ(cores.use(none).code(), Code::kDriver) << text_of(none);
    EXPECT_EQ(cores.usable(), last) << "a refusal changes nothing";
    ASSERT_TRUE(cores.use(all).ok());
    EXPECT_EQ(cores.usable(), all);
  }).join();
}

TEST(Host, RandomBytesDiffer) {
  std::set<std::array<std::byte, 16>> seen;
  for (int i = 0; i < 100; ++i) {
    std::array<std::byte, 16> bytes{};
    ASSERT_TRUE(random_bytes(bytes).ok());
    seen.insert(bytes);
  }
  EXPECT_EQ(seen.size(), 100u);
  EXPECT_TRUE(random_bytes({}).ok());
}

TEST(Host, RandomWordsAreHexAndDiffer) {
  const std::string word = random_hex(16).value();
  EXPECT_EQ(word.size(), 32u);
  EXPECT_EQ(word.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_NE(word, random_hex(16).value());
  EXPECT_EQ(random_hex(0).value(), "");
}

TEST(Host, KnowsWhatIsMapped) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  void* const at = ::mmap(nullptr, 4 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(at, MAP_FAILED);
  auto* const memory = static_cast<std::byte*>(at);
  EXPECT_TRUE(is_mapped(memory, 4 * page));
  ASSERT_EQ(::munmap(memory + page, page), 0);
  EXPECT_FALSE(is_mapped(memory, 4 * page));
  EXPECT_FALSE(is_mapped(memory + page - 1, 2));
  EXPECT_TRUE(is_mapped(memory + page - 1, 1));
  EXPECT_TRUE(is_mapped(memory + 2 * page, 2 * page));
  ::munmap(memory, 4 * page);
}

TEST(Host, KnowsWhatMayBeRead) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  void* const at = ::mmap(nullptr, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(at, MAP_FAILED);
  EXPECT_TRUE(is_readable(at));
  ASSERT_EQ(::mprotect(at, page, PROT_NONE), 0);
  EXPECT_TRUE(is_mapped(static_cast<std::byte*>(at), page));
  EXPECT_FALSE(is_readable(at));
  ::munmap(at, page);
  EXPECT_FALSE(is_readable(at));
}

TEST(Host, KnowsWhatMayBeWritten) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  void* const at =
      ::mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(at, MAP_FAILED);
  auto* const memory = static_cast<std::byte*>(at);
  for (size_t i = 0; i < page; ++i) memory[i] = static_cast<std::byte>(i * 7 + 1);
  for (const size_t place : {size_t{0}, size_t{1}, page - 1})
    EXPECT_TRUE(is_writable(memory + place)) << place;
  for (size_t i = 0; i < page; ++i) ASSERT_EQ(memory[i], static_cast<std::byte>(i * 7 + 1)) << i;
  ASSERT_EQ(::mprotect(at, page, PROT_READ), 0);
  EXPECT_FALSE(is_writable(memory));
  EXPECT_FALSE(is_writable(memory + page - 1));
  ::munmap(at, page);
  EXPECT_FALSE(is_writable(memory));
}

// Such a page is mapped, and who touches it is ended.
TEST(Host, KnowsWhatIsBehindTheEndOfItsFile) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const Fd file(::memfd_create("cut", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(file.get(), static_cast<off_t>(2 * page)), 0);
  void* const at = ::mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  ASSERT_NE(at, MAP_FAILED);
  auto* const second = static_cast<std::byte*>(at) + page;
  EXPECT_TRUE(is_readable(second) && is_writable(second));
  ASSERT_EQ(::ftruncate(file.get(), static_cast<off_t>(page)), 0);
  EXPECT_TRUE(is_mapped(second, page));
  EXPECT_FALSE(is_readable(second) || is_writable(second));
  EXPECT_TRUE(is_readable(at) && is_writable(at));
  ::munmap(at, 2 * page);
}

TEST(Host, KnowsItsNames) {
  EXPECT_EQ(process_id(), ::getpid());
  EXPECT_FALSE(host_name().empty());
}

TEST(Host, HomeComesFromTheEnvironmentOrThePasswordDatabase) {
  const char* before = std::getenv("HOME");
  const std::string home = before != nullptr ? before : "";
  ::setenv("HOME", "/somewhere", 1);
  EXPECT_EQ(home_directory(), "/somewhere");
  ::setenv("HOME", "not absolute", 1);
  EXPECT_NE(home_directory(), "not absolute");
  if (before != nullptr) ::setenv("HOME", home.c_str(), 1);
}

}  // namespace
}  // namespace braid::sys
