// What a killed process leaves of its endpoints of provider shm, and who may remove it.
#include "sys/fabric/shm_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "support/shm_files.h"
#include "sys/fabric/api.h"
#include "sys/fd.h"

namespace braid::sys {
namespace {

std::string path_of(const std::string& file) { return "/dev/shm/" + file; }
std::string endpoint_of(const std::string& file) {
  return "fi_shm://" + file + std::string(1, '\0');
}
bool is_there(const std::string& file) { return std::filesystem::exists(path_of(file)); }

/// Other programs of tests have turns, too, and few processors.
bool remove_unused(const std::string& name) {
  const Deadline patience = Deadline::after_ns(10'000'000'000);
  while (true) {
    const ShmFilesTurn turn;
    if (turn.is_held() || patience.passed()) return remove_unused_shm_file(name, turn);
  }
}

/// As if of this process, but by another user: none that somebody removes who looks for dead ones.
std::string own_file(int index) { return fmt::format("{}:{}:{}", getpid(), getuid() + 1, index); }

void* map_file(const std::string& file) {
  const Fd fd(open(path_of(file).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (ftruncate(fd.get(), 4096) != 0) return MAP_FAILED;
  return mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
}

TEST(FabricShmFiles, WhatIsUsedStays) {
  const std::string file = own_file(0);
  {
    const Fd opened(open(path_of(file).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    EXPECT_FALSE(remove_unused(endpoint_of(file)));
  }
  void* const mapped = map_file(file);
  ASSERT_NE(mapped, MAP_FAILED);
  EXPECT_FALSE(remove_unused(endpoint_of(file))) << "no descriptor, but a mapping";
  EXPECT_TRUE(is_there(file));
  munmap(mapped, 4096);
  const Fd reader(open(path_of(file).c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_TRUE(remove_unused(endpoint_of(file))) << "others that only look, as this does";
  EXPECT_FALSE(is_there(file));
  EXPECT_TRUE(remove_unused(endpoint_of(file))) << "there is none";
}

// Between a look and a removal a living file may take a stale one's name.
TEST(FabricShmFiles, WhoHasNoTurnRemovesNothing) {
  const std::string file = own_file(4);
  std::ofstream(path_of(file)) << "x";
  {
    std::optional<ShmFilesTurn> mine;
    for (int i = 0; i < 50 && !(mine && mine->is_held()); ++i) mine.emplace();
    ASSERT_TRUE(mine->is_held());
    const ShmFilesTurn other;
    EXPECT_FALSE(other.is_held());
    EXPECT_FALSE(remove_unused_shm_file(endpoint_of(file), other));
    EXPECT_TRUE(is_there(file));
  }
  EXPECT_TRUE(remove_unused(endpoint_of(file))) << "a turn ends with its object";
  EXPECT_FALSE(is_there(file));
}

// A maker is seen at the lease, whenever it comes, unless it is kept from its processor just then. (20 to 66
// were lost where a lease that was granted was enough.)
TEST(FabricShmFiles, WhoOpensTheFileMeanwhileKeepsIt) {
  const std::string file = own_file(5);
  int num_lost = 0;
  for (int i = 0; i < 300; ++i) {
    std::ofstream(path_of(file)) << "x";
    std::atomic<bool> has_begun{false};
    std::thread maker([&] {
      has_begun = true;
      const Fd fd(open(path_of(file).c_str(), O_RDWR | O_CLOEXEC));
      struct stat opened{};
      if (fd.get() < 0) return;
      usleep(500);  // past the other's look
      num_lost += fstat(fd.get(), &opened) == 0 && opened.st_nlink == 0 ? 1 : 0;
    });
    while (!has_begun) std::this_thread::yield();
    remove_unused(endpoint_of(file));
    maker.join();
    unlink(path_of(file).c_str());
  }
  EXPECT_LE(num_lost, 6);
}

TEST(FabricShmFiles, OnlyNamesOfEndpointsMeanFiles) {
  const std::string file = own_file(1);
  std::ofstream(path_of(file)) << "x";
  for (const std::string& name : {file, "fi_shm://" + file + "/../x", "fi_shm:///dev/shm/" + file,
                                  "fi_shm://./" + file, "fi_shm://x" + file, std::string()})
    remove_unused(name);
  EXPECT_TRUE(is_there(file));
  const std::string number = std::to_string(getpid());
  std::ofstream(path_of(number)) << "x";
  remove_unused(endpoint_of(number));
  EXPECT_TRUE(is_there(number)) << "an endpoint's name has three parts";
  unlink(path_of(number).c_str());
  // Neither what a link leads to, nor a folder.
  const std::string link = own_file(2), folder = own_file(3);
  std::filesystem::create_symlink(path_of(file), path_of(link));
  std::filesystem::create_directory(path_of(folder));
  EXPECT_FALSE(remove_unused(endpoint_of(link)));
  EXPECT_FALSE(remove_unused(endpoint_of(folder)));
  EXPECT_TRUE(is_there(link) && is_there(folder) && is_there(file));
  for (const std::string& made : {file, link, folder}) std::filesystem::remove(path_of(made));
}

// A process that has a file mapped, and so much memory that its end takes the kernel a while.
class Owner {
 public:
  explicit Owner(int index) {
    int pipe_ends[2];
    if (pipe(pipe_ends) != 0) return;
    pid_ = fork();
    file_ = fmt::format("{}:{}:{}", pid_ == 0 ? getpid() : pid_, getuid(), index);
    if (pid_ == 0) live(pipe_ends[1]);
    ::close(pipe_ends[1]);
    heard_ = Fd(pipe_ends[0]);
    char byte = 0;
    EXPECT_EQ(read(heard_.get(), &byte, 1), 1);
  }
  ~Owner() {
    kill();
    int status = 0;
    while (waitpid(pid_, &status, 0) != pid_) continue;
  }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;
  const std::string& file() const { return file_; }
  void kill() const { ::kill(pid_, SIGKILL); }
  /// As a peer hears of it: what it held open is closed.
  void hear_of_its_end() const {
    char byte = 0;
    EXPECT_EQ(read(heard_.get(), &byte, 1), 0);
  }
  void wait_until_it_is_a_zombie() const {
    siginfo_t ended;
    while (waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOWAIT) != 0) continue;
  }

 private:
  [[noreturn]] void live(int tell) const {
    constexpr size_t kBytes = size_t{64} << 20;
    void* const more = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (map_file(file_) == MAP_FAILED || more == MAP_FAILED || write(tell, "x", 1) != 1) _exit(1);
    while (true) pause();
  }
  pid_t pid_ = -1;
  std::string file_;
  Fd heard_;
};

TEST(FabricShmFiles, ThoseOfTheKilledGoAndNoOthers) {
  for (int i = 0; i < 20; ++i) {
    const Owner killed(9), living(10);
    remove_dead_shm_files(0);
    EXPECT_TRUE(is_there(killed.file()) && is_there(living.file()));
    killed.kill();
    if (i % 2 == 0)
      killed.hear_of_its_end();
    else
      killed.wait_until_it_is_a_zombie();
    remove_dead_shm_files(2'000'000'000);
    EXPECT_FALSE(is_there(killed.file())) << i;
    EXPECT_TRUE(is_there(living.file()));
    unlink(path_of(living.file()).c_str());
  }
}

TEST(FabricShmFiles, OfAnotherUserAreLeft) {
  const std::string file = own_file(6);
  std::ofstream(path_of(file)) << "x";
  remove_dead_shm_files(0);
  EXPECT_TRUE(is_there(file));
  unlink(path_of(file).c_str());
}

TEST(FabricShmFiles, OneWhoseProcessIsGoneGoesToo) {
  std::string file;
  {
    const Owner owner(9);
    file = owner.file();
  }
  remove_dead_shm_files(0);
  EXPECT_FALSE(is_there(file));
}

// What a test counts as left behind by its ranks.
TEST(FabricShmFiles, WhatLayThereBeforeIsNobodysOfATest) {
  const std::string old = own_file(4), made = own_file(5);
  const std::vector<pid_t> pids = {getpid()};
  std::ofstream(path_of(old)) << "x";
  const test::ShmFiles files;
  EXPECT_TRUE(files.left_by(pids).empty());
  std::ofstream(path_of(made)) << "x";
  EXPECT_EQ(files.left_by(pids), std::vector<std::string>{path_of(made)});
  unlink(path_of(made).c_str());
  // Another one by the name of one that lay there.
  std::ofstream(path_of(made)) << "x";
  std::filesystem::rename(path_of(made), path_of(old));
  EXPECT_EQ(files.left_by(pids), std::vector<std::string>{path_of(old)});
  unlink(path_of(old).c_str());
}

class StaleShmFiles : public testing::Test {
 protected:
  void SetUp() override {
    const auto library = real_fabric();
    if (!library.ok()) GTEST_SKIP() << "skipped: " << library.status().message();
    DomainRequest request;
    request.provider = "shm";
    auto domain = library.value()->open(request);
    ASSERT_TRUE(domain.ok()) << domain.status().to_string();
    domain_ = std::move(domain).value();
  }
  std::string open() {
    auto endpoint = domain_->open_endpoint({});
    EXPECT_TRUE(endpoint.ok()) << endpoint.status().to_string();
    if (!endpoint.ok()) return {};
    ends_.push_back(std::move(endpoint).value());
    std::string name = ends_.back()->name();
    name = name.substr(name.rfind('/') + 1);
    return name.substr(0, name.find('\0'));
  }
  // The file of this process's next endpoint but `ahead`.
  static std::string next_after(const std::string& file, int ahead) {
    const size_t colon = file.rfind(':');
    return file.substr(0, colon + 1) + std::to_string(std::stoi(file.substr(colon + 1)) + ahead);
  }
  std::unique_ptr<FabricDomain> domain_;
  std::vector<std::unique_ptr<FabricEndpoint>> ends_;
};

// It had this process's number and was killed. libfabric answered "busy" to whoever came to its name.
TEST_F(StaleShmFiles, OfADeadProcessAreReplaced) {
  const std::string first = open();
  ASSERT_TRUE(is_there(first));
  const std::string whole = next_after(first, 1), empty = next_after(first, 2);
  std::filesystem::copy_file(path_of(first), path_of(whole));
  std::ofstream(path_of(empty)).flush();
  EXPECT_EQ(open(), whole);
  EXPECT_EQ(open(), empty);
  EXPECT_GT(std::filesystem::file_size(path_of(empty)), 0u);
  ends_.clear();
  for (const std::string& file : {first, whole, empty}) EXPECT_FALSE(is_there(file)) << file;
}

// Of a job whose processes were killed all at once, so that none of them could.
TEST_F(StaleShmFiles, GoWhenADomainIsOpened) {
  std::string file;
  {
    const Owner owner(11);
    file = owner.file();
  }
  SetUp();
  EXPECT_FALSE(is_there(file));
}

// It has this process's number in a pid namespace of its own, and peers may still want to find it.
TEST_F(StaleShmFiles, OfALivingOneIsLeftAlone) {
  const std::string first = open();
  const std::string others = next_after(first, 1);
  void* const mapped = map_file(others);
  ASSERT_NE(mapped, MAP_FAILED);
  EXPECT_EQ(open(), next_after(first, 2));
  EXPECT_TRUE(is_there(others));
  munmap(mapped, 4096);
  unlink(path_of(others).c_str());
}

}  // namespace
}  // namespace braid::sys
