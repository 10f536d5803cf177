#include <fcntl.h>
#include <linux/futex.h>
#include <pwd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/hash.h"
#include "sys/error_text.h"
#include "sys/fd.h"
#include "sys/host/api.h"

namespace braid::sys {

namespace {

// Empty for all processes of a machine without /proc.
Result<std::string> boot_id() {
  const Fd fd(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  if (!fd.is_open() && (errno == EMFILE || errno == ENFILE || errno == ENOMEM))
    return exhausted("which host this is: /proc/sys/kernel/random/boot_id: {}", error_text(errno));
  char text[64];
  const ssize_t got = fd.is_open() ? ::read(fd.get(), text, sizeof text) : 0;
  std::string_view id(text, static_cast<size_t>(std::max<ssize_t>(got, 0)));
  return std::string(id.substr(0, id.find('\n')));
}

// Namespaces are told apart by device and inode of their handle. One that cannot be read counts as
// 0, which is still equal for all processes of a machine without /proc.
std::string namespace_id(const char* path) {
  struct stat found{};
  if (::stat(path, &found) != 0) return "0";
  return fmt::format("{}:{}", found.st_dev, found.st_ino);
}

}  // namespace

Result<std::string> host_id(std::string_view override_id) {
  if (!override_id.empty()) return std::string(override_id);
  BRAID_ASSIGN_OR_RETURN(const std::string boot, boot_id());
  const std::string facts =
      boot + '|' + namespace_id("/proc/self/ns/pid") + '|' + namespace_id("/proc/self/ns/net");
  return fmt::format("{:016x}", fnv1a(facts));
}

std::string host_name() {
  char name[256] = "";
  if (::gethostname(name, sizeof name - 1) != 0) return "unknown";
  return name;
}

int process_id() { return ::getpid(); }

Result<std::array<std::byte, 16>> process_mark() {
  using Mark = std::array<std::byte, 16>;
  static const Result<Mark> kDrawn = []() -> Result<Mark> {
    Mark drawn{};
    BRAID_RETURN_IF_ERROR(random_bytes(drawn));
    return drawn;
  }();
  BRAID_ASSIGN_OR_RETURN(Mark mark, kDrawn);
  const int pid = ::getpid();  // tells a fork from its parent
  std::memcpy(mark.data(), &pid, sizeof pid);
  return mark;
}

Status random_bytes(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = ::getrandom(bytes.data(), bytes.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return driver_error("getrandom of {} bytes: {}", bytes.size(), error_text(errno));
    bytes = bytes.subspan(static_cast<size_t>(got));
  }
  return {};
}

Result<std::string> random_hex(size_t num_bytes) {
  std::vector<std::byte> bytes(num_bytes);
  BRAID_RETURN_IF_ERROR(random_bytes(bytes));
  std::string text;
  for (const std::byte b : bytes) text += fmt::format("{:02x}", static_cast<unsigned>(b));
  return text;
}

// MS_ASYNC does nothing to mapped memory since Linux 2.6.19.
bool is_mapped(const std::byte* base, uint64_t bytes) {
  static const auto kPage = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t before = reinterpret_cast<uint64_t>(base) % kPage;
  auto* const page = const_cast<std::byte*>(base - before);
  return ::msync(page, bytes + before, MS_ASYNC) == 0 || errno != ENOMEM;
}

// The kernel reads a new mask of 8 bytes before it finds that there is no such change of one. Memory
// that a driver has mapped, pinned memory of CUDA among it, is read like any other.
bool is_readable(const void* word) {
  constexpr int kNoChange = -1;
  return ::syscall(SYS_rt_sigprocmask, kNoChange, word, nullptr, sizeof(uint64_t)) == 0 ||
         errno != EFAULT;
}

// The kernel ORs 0 to the word, as one step. Nobody sleeps on `nobody`, nor on what is registered memory; who
// does all the same is woken for nothing, as by any futex. A kernel that refuses the call has said nothing.
bool is_writable(const void* byte) {
  static uint32_t nobody = 0;
  constexpr uint32_t kOrNothing = FUTEX_OP(FUTEX_OP_OR, 0, FUTEX_OP_CMP_EQ, 0);
  const uint64_t word = reinterpret_cast<uint64_t>(byte) & ~uint64_t{sizeof(uint32_t) - 1};
  return ::syscall(SYS_futex, &nobody, FUTEX_WAKE_OP | FUTEX_PRIVATE_FLAG, 0, nullptr, word,
                   kOrNothing) >= 0 ||
         errno != EFAULT;
}

std::string home_directory() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): braid never changes the environment
  if (const char* home = secure_getenv("HOME"); home != nullptr && *home == '/') return home;
  std::vector<char> buffer(16384);
  passwd entry{};
  passwd* found = nullptr;
  if (::getpwuid_r(::geteuid(), &entry, buffer.data(), buffer.size(), &found) != 0 ||
      found == nullptr)
    return "";
  return found->pw_dir;
}

}  // namespace braid::sys
