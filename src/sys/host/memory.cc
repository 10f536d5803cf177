#include "sys/host/memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>

#include "base/units.h"
#include "sys/fd.h"

namespace braid::sys {

namespace {

constexpr uint64_t kUnbounded = std::numeric_limits<uint64_t>::max();
// Left for page tables, and for what other ranks touch between their question and their pages.
constexpr uint64_t kMostLeftOver = 512_MiB;
constexpr uint64_t kLeftOverShare = 16;
constexpr uint64_t kLeastAsked = 16_MiB;

/// Files of the kernel have no size that could be asked; "" where there is none for us.
std::string text_of(const std::string& path) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.is_open()) return "";
  std::string text(16384, '\0');
  size_t at = 0;
  for (ssize_t got = 1; got > 0 && at < text.size(); at += static_cast<size_t>(got)) {
    got = ::read(fd.get(), text.data() + at, text.size() - at);
    if (got < 0) return "";
  }
  text.resize(at);
  return text;
}

std::optional<uint64_t> number_at(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  uint64_t number = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), number);
  if (end.ec != std::errc()) return std::nullopt;  // "max"
  return number;
}

/// Of the line that begins with `key`; 0 where there is none.
uint64_t number_of(std::string_view text, std::string_view key) {
  for (size_t at = 0; at < text.size(); at = std::min(text.find('\n', at), text.size() - 1) + 1)
    if (text.substr(at, key.size()) == key)
      return number_at(text.substr(at + key.size())).value_or(0);
  return 0;
}

uint64_t left_by_machine(const std::string& root) {
  const std::string info = text_of(root + "/proc/meminfo");
  if (info.find("MemAvailable:") == std::string::npos) return kUnbounded;
  return (number_of(info, "MemAvailable:") + number_of(info, "SwapFree:")) << 10;
}

/// What files the group's memory.stat tells of: limit, use, and which lines are page cache.
struct Form {
  const char *limit, *use, *inactive, *active;
};
constexpr Form kVersion1{"/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file ",
                         "total_active_file "};
constexpr Form kVersion2{"/memory.max", "/memory.current", "inactive_file ", "active_file "};

uint64_t left_by_group(const std::string& folder, const Form& form) {
  const auto limit = number_at(text_of(folder + form.limit));
  const auto use = number_at(text_of(folder + form.use));
  if (!limit || !use) return kUnbounded;
  const std::string stat = text_of(folder + "/memory.stat");
  const uint64_t cache = number_of(stat, form.inactive) + number_of(stat, form.active);
  const uint64_t kept = *use - std::min(*use, cache);
  return *limit - std::min(*limit, kept);
}

/// The group itself and all above it, which bound it as well. A container may see its own group as
/// the top one, while /proc names the path that it has outside: what is not there bounds nothing.
uint64_t left_by_groups(const std::string& mount, std::string_view path, const Form& form) {
  uint64_t left = left_by_group(mount, form);
  for (; path.size() > 1; path = path.substr(0, path.rfind('/')))
    left = std::min(left, left_by_group(mount + std::string(path), form));
  return left;
}

/// The group in a line of /proc/self/cgroup, "4:memory:/a/b" or "0::/a/b".
uint64_t left_by_line(const std::string& root, std::string_view line) {
  const size_t first = line.find(':'), second = line.find(':', first + 1);
  if (second == std::string_view::npos) return kUnbounded;
  const std::string_view controllers = line.substr(first + 1, second - first - 1);
  const std::string_view path = line.substr(second + 1);
  if (controllers.empty()) return left_by_groups(root + "/sys/fs/cgroup", path, kVersion2);
  if (controllers != "memory") return kUnbounded;
  return left_by_groups(root + "/sys/fs/cgroup/memory", path, kVersion1);
}

}  // namespace

uint64_t free_memory_bytes(const std::string& root) {
  uint64_t left = left_by_machine(root);
  const std::string groups = text_of(root + "/proc/self/cgroup");
  for (size_t at = 0; at < groups.size();) {
    const size_t end = std::min(groups.find('\n', at), groups.size());
    left = std::min(left, left_by_line(root, std::string_view(groups).substr(at, end - at)));
    at = end + 1;
  }
  return left;
}

Status expect_memory(std::string_view what, uint64_t bytes, uint64_t touched) {
  if (bytes < kLeastAsked) return {};
  const uint64_t free = free_memory_bytes();
  if (free == kUnbounded) return {};
  const uint64_t available = free + touched;
  const uint64_t left_over = std::min(bytes / kLeftOverShare, kMostLeftOver);
  if (bytes <= available && left_over <= available - bytes) return {};
  return exhausted("{}: {} asked, {} available", what, format_bytes(bytes),
                   format_bytes(available));
}

}  // namespace braid::sys
