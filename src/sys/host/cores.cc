#include "sys/host/cores.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <vector>

#include "base/text.h"
#include "sys/error_text.h"
#include "sys/host/api.h"

namespace braid::sys {
namespace {

constexpr int kMostCores = 1 << 20;

// A fixed cpu_set_t holds 1024 cores; a mask is as long as it must be.
class Mask {
 public:
  explicit Mask(int num_cores) : words_(CPU_ALLOC_SIZE(num_cores) / sizeof(unsigned long)) {}
  cpu_set_t* set() { return reinterpret_cast<cpu_set_t*>(words_.data()); }
  size_t bytes() const { return words_.size() * sizeof(unsigned long); }
  int num_cores() const { return static_cast<int>(bytes() * 8); }

 private:
  std::vector<unsigned long> words_;
};

class RealCores : public Cores {
 public:
  CoreSet usable() override {
    // Larger machines answer EINVAL until the mask is large enough.
    for (int cores = 1024; cores <= kMostCores; cores *= 4) {
      Mask mask(cores);
      if (::sched_getaffinity(0, mask.bytes(), mask.set()) == 0) return cores_of(mask);
      if (errno != EINVAL) break;
    }
    return {};
  }

  Status use(const CoreSet& cores) override {
    Mask mask(cores.empty() ? 1 : *cores.rbegin() + 1);
    for (const int core : cores) CPU_SET_S(static_cast<size_t>(core), mask.bytes(), mask.set());
    if (::sched_setaffinity(0, mask.bytes(), mask.set()) == 0) return {};
    return driver_error("sched_setaffinity to cores {}: {}", text_of(cores), error_text(errno));
  }

 private:
  static CoreSet cores_of(Mask& mask) {
    CoreSet out;
    for (int core = 0; core < mask.num_cores(); ++core)
      if (CPU_ISSET_S(static_cast<size_t>(core), mask.bytes(), mask.set())) out.insert(core);
    return out;
  }
};

}  // namespace

Result<CoreSet> parse_cores(std::string_view text) {
  CoreSet out;
  for (const std::string_view part : split(text, ',')) {
    const char* const end = part.data() + part.size();
    int first = -1;
    auto read = std::from_chars(part.data(), end, first);
    int last = first;
    if (read.ec == std::errc() && read.ptr != end && *read.ptr == '-')
      read = std::from_chars(read.ptr + 1, end, last);
    if (read.ec != std::errc() || read.ptr != end || first < 0 || last < first ||
        last >= kMostCores)
      return invalid_argument("'{}' is no list of cores", printable(text));
    for (int core = first; core <= last; ++core) out.insert(core);
  }
  return out;
}

std::string text_of(const CoreSet& cores) {
  std::string out;
  for (auto at = cores.begin(); at != cores.end();) {
    const int first = *at;
    int last = first;
    while (++at != cores.end() && *at == last + 1) ++last;
    if (!out.empty()) out += ',';
    out += first == last ? fmt::format("{}", first) : fmt::format("{}-{}", first, last);
  }
  return out;
}

Cores& real_cores() {
  static RealCores real;
  return real;
}

int usable_cores() { return std::max(1, static_cast<int>(real_cores().usable().size())); }

}  // namespace braid::sys
