// What checksums cost beside copies from process to process, at best: as many processes as asked
// for, each of which copies as the engine does on one host (process_vm_readv) and sums both sides.
// No letters, no second process that has to be woken: no way of sending weights can be faster than
// the best of these.
//
//   sum_bench [processes [MiB]]     built and run by hand, on a quiet machine
//
// Prints one line of JSON: for each design the seconds of each round, of all processes together.
// "8 KiB of 16": what is copied is every other run of 8 KiB, as columns of a matrix lie.
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/crc64.h"

namespace braid {
namespace {

constexpr int kRounds = 7;             // the first one is not kept
constexpr size_t kCutBytes = 4 << 20;  // the engine looks at its sockets as often
constexpr size_t kRunBytes = 8 << 10;

std::byte* take(size_t bytes, int flags) {
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | flags, -1, 0);
  if (at == MAP_FAILED) std::abort();
  if (flags == MAP_PRIVATE) (void)::madvise(at, bytes, MADV_HUGEPAGE);
  return static_cast<std::byte*>(at);
}

struct Work {
  std::byte* source = nullptr;
  std::byte* target = nullptr;
  size_t bytes = 0;
  bool is_strided = false;

  size_t source_at(size_t at) const { return is_strided ? 2 * at : at; }

  void copy(size_t begin, size_t size) const {
    const size_t run = is_strided ? kRunBytes : kCutBytes;
    while (size != 0) {
      std::vector<iovec> there;
      const size_t cut = std::min(size, kCutBytes);
      for (size_t at = 0; at < cut; at += run)
        there.push_back({source + source_at(begin + at), std::min(run, cut - at)});
      const iovec here = {target + begin, cut};
      const auto moved = ::process_vm_readv(::getpid(), &here, 1, there.data(), there.size(), 0);
      if (moved != static_cast<ssize_t>(cut)) std::abort();
      begin += cut, size -= cut;
    }
  }
  uint64_t sum_source(size_t begin, size_t size) const {
    if (!is_strided) return crc64({source + begin, size});
    std::vector<uint64_t> begins;
    for (size_t at = 0; at < size; at += kRunBytes) begins.push_back(source_at(begin + at));
    return crc64_of_runs(source, begins, kRunBytes);
  }
  uint64_t sum_target(size_t begin, size_t size) const { return crc64({target + begin, size}); }
  void expect(bool is_right) const {
    if (!is_right) std::abort();
  }
};

using Round = std::function<void(const Work&)>;
struct Design {
  std::string name;
  Round round;
};

Round by_chunks(size_t chunk) {
  return [chunk](const Work& w) {
    for (size_t at = 0; at < w.bytes; at += chunk) {
      const size_t size = std::min(chunk, w.bytes - at);
      const uint64_t sum = w.sum_source(at, size);
      w.copy(at, size);
      w.expect(w.sum_target(at, size) == sum);
    }
  };
}

std::vector<Design> designs() {
  std::vector<Design> out = {
      {"copies", [](const Work& w) { w.copy(0, w.bytes); }},
      {"sums of the source alone", [](const Work& w) { (void)w.sum_source(0, w.bytes); }},
      {"sums of the target alone", [](const Work& w) { (void)w.sum_target(0, w.bytes); }},
      {"source's sum by chunks of 1 MiB, copies",
       [](const Work& w) {
         for (size_t at = 0; at < w.bytes; at += 1 << 20) {
           (void)w.sum_source(at, 1 << 20);
           w.copy(at, 1 << 20);
         }
       }},
      {"all summed, all copied, all summed", by_chunks(SIZE_MAX)},
  };
  for (const size_t kib : {64, 256, 1024, 4096, 16384})
    out.push_back({"chunks of " + std::to_string(kib) + " KiB", by_chunks(kib << 10)});
  return out;
}

/// All processes begin a round together; its time is that of the last one.
struct Shared {
  std::atomic<int> arrived[2048];
  std::atomic<int64_t> ended_ns[2048];
};

int measure(int processes, size_t bytes) {
  auto* shared = new (take(sizeof(Shared), MAP_SHARED)) Shared{};
  int rank = 0;
  std::vector<pid_t> children;
  for (int i = 1; i < processes && rank == 0; ++i) {
    const pid_t child = ::fork();
    if (child == 0) rank = i;
    if (child != 0) children.push_back(child);
  }
  Work work{take(2 * bytes, MAP_PRIVATE), take(bytes, MAP_PRIVATE), bytes};
  for (size_t at = 0; at < 2 * bytes; at += 8) std::memcpy(work.source + at, &at, sizeof at);
  int meeting = 0;
  const auto meet = [&] {
    ++shared->arrived[meeting];
    while (shared->arrived[meeting] != processes) {
    }
    return ++meeting;
  };
  if (rank == 0)
    std::printf("{\"processes\": %d, \"bytes\": %zu, \"seconds\": {", processes, bytes);
  bool is_first = true;
  for (const bool is_strided : {false, true})
    for (const Design& design : designs()) {
      work.is_strided = is_strided;
      if (rank == 0)
        std::printf("%s\n  \"%s%s\": [", is_first ? "" : ",", design.name.c_str(),
                    is_strided ? ", 8 KiB of 16" : "");
      is_first = false;
      for (int round = 0; round < kRounds; ++round) {
        meet();
        const int64_t began = now_ns();
        design.round(work);
        shared->ended_ns[meeting] = std::max(shared->ended_ns[meeting].load(), now_ns());
        const int at = meet() - 1;
        if (rank == 0 && round != 0)
          std::printf("%s%.6f", round == 1 ? "" : ", ",
                      static_cast<double>(shared->ended_ns[at] - began) / 1e9);
      }
      if (rank == 0) std::printf("]");
    }
  if (rank != 0) std::_Exit(0);
  std::printf("\n}}\n");
  for (const pid_t child : children) (void)::waitpid(child, nullptr, 0);
  return 0;
}

}  // namespace
}  // namespace braid

int main(int argc, char** argv) {
  const int processes = argc > 1 ? std::atoi(argv[1]) : 2;
  const size_t mib = argc > 2 ? static_cast<size_t>(std::atoi(argv[2])) : 512;
  return braid::measure(processes, mib << 20);
}
