// How long it takes from a watch's word to its callback. Built and run by hand, on a quiet machine:
//
//   watch_bench [GPU]     without a GPU's number the word is ordinary memory
//
// A thread of the host bumps the word, so that both ends are read from one clock. Prints a line of
// JSON: every sample, in us.
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "engine/watch.h"

namespace braid::engine {
namespace {

constexpr int kSamples = 20'000;
constexpr int kFirst = 1'000;  // not kept
constexpr int64_t kPauseNs = 20'000;

void spin_until(int64_t at_ns) {
  while (now_ns() < at_ns) {
  }
}

int measure(Gpu* gpu) {
  Watcher watcher(gpu);
  std::atomic<int64_t> called_ns = 0;
  auto watch = watcher.watch([&](uint64_t, uint64_t) {
    called_ns.store(now_ns(), std::memory_order_release);
    return true;
  });
  if (!watch.ok()) {
    std::fprintf(stderr, "%s\n", watch.status().to_string().c_str());
    return 1;
  }
  std::printf("{\"samples_us\": [");
  for (int i = 0; i < kFirst + kSamples; ++i) {
    called_ns = 0;
    spin_until(now_ns() + kPauseNs + i % 97 * 100);  // in no step with the watcher's rounds
    const int64_t bumped_ns = now_ns();
    (*watch)->word().store(static_cast<uint64_t>(i) + 1, std::memory_order_release);
    const Deadline deadline = Deadline::after_ns(1'000'000'000);
    while (called_ns.load(std::memory_order_acquire) == 0 && !deadline.passed()) {
    }
    if (called_ns == 0) {
      std::fprintf(stderr, "bump %d was not told within a second\n", i);
      return 1;
    }
    if (i < kFirst) continue;
    std::printf("%s%.3f", i == kFirst ? "" : ", ",
                static_cast<double>(called_ns - bumped_ns) / 1e3);
  }
  std::printf("]}\n");
  return 0;
}

}  // namespace
}  // namespace braid::engine

int main(int count, char** words) {
  using namespace braid;
  using namespace braid::engine;
  if (count < 2) return measure(nullptr);
  auto gpu = Gpu::open(sys::real_cuda(), std::atoi(words[1]));
  if (!gpu.ok()) {
    std::fprintf(stderr, "%s\n", gpu.status().to_string().c_str());
    return 1;
  }
  return measure(gpu.value().get());
}
