#include <dirent.h>
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "sys/error_text.h"
#include "sys/fd.h"
#include "sys/sysfs/api.h"

namespace braid::sys {

int64_t Sysfs::read_integer(std::string_view path, int64_t fallback) const {
  auto text = read(path);
  if (!text.ok()) return fallback;
  std::string_view digits = *text;
  const bool is_hex = digits.starts_with("0x");
  if (is_hex) digits.remove_prefix(2);
  int64_t value = 0;
  const auto [at, error] = std::from_chars(digits.begin(), digits.end(), value, is_hex ? 16 : 10);
  return error == std::errc() && at == digits.end() ? value : fallback;
}

namespace {

// /proc/cpuinfo of a thousand cores is 1.5 MB; more is no text file.
constexpr size_t kMaxFileBytes = 16 << 20;

class RealSysfs : public Sysfs {
 public:
  Result<std::string> read(std::string_view path) const override {
    const Fd fd(::open(std::string(path).c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd.is_open()) return failed(path, errno);
    std::string text;
    char chunk[4096];
    while (text.size() < kMaxFileBytes) {
      const ssize_t got = ::read(fd.get(), chunk, sizeof chunk);
      if (got < 0) return failed(path, errno);
      if (got == 0) break;
      text.append(chunk, static_cast<size_t>(got));
    }
    text.erase(text.find_last_not_of(" \t\n") + 1);
    return text;
  }

  std::vector<std::string> list(std::string_view path) const override {
    std::vector<std::string> names;
    const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(std::string(path).c_str()),
                                                        &::closedir);
    if (!directory) return names;
    // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread has this stream
    while (const dirent* entry = ::readdir(directory.get()))
      if (std::strcmp(entry->d_name, ".") != 0 && std::strcmp(entry->d_name, "..") != 0)
        names.emplace_back(entry->d_name);
    std::sort(names.begin(), names.end());
    return names;
  }

  Result<std::string> resolve(std::string_view path) const override {
    const std::unique_ptr<char, void (*)(void*)> found(
        ::realpath(std::string(path).c_str(), nullptr), &std::free);
    if (!found) return failed(path, errno);
    return std::string(found.get());
  }

 private:
  static Status failed(std::string_view path, int error) {
    return unavailable("{}: {}", path, error_text(error));
  }
};

}  // namespace

const Sysfs& real_sysfs() {
  static const RealSysfs kReal;
  return kReal;
}

}  // namespace braid::sys
