// Rates of reduce() per element type, from cache and from memory. Not a test: built by hand,
//   cmake --build BUILD --target bench_reduce && BUILD/tests/bench_reduce [op] [instruction set]
// GB/s count the bytes read (sources x count x size) and are the best of several runs; memcpy
// counts its bytes read too.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "coll/reduce/kernels.h"

namespace {
using namespace braid;
using Buffer = std::vector<std::byte>;

constexpr uint64_t kCacheBytes = uint64_t{64} << 10;
constexpr uint64_t kMemoryBytes = uint64_t{64} << 20;
constexpr int kRuns = 7;

template <typename Call>
double best_ns(uint64_t repeats, Call call) {
  double best = 1e300;
  for (int run = 0; run < kRuns; ++run) {
    const auto start = std::chrono::steady_clock::now();
    for (uint64_t k = 0; k < repeats; ++k) call();
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count() / static_cast<double>(repeats));
  }
  return best;
}

/// Small positive integers are numbers, and not subnormal ones, in no float type; 0x38 repeated is
/// one in all.
std::vector<Buffer> make_sources(size_t n, uint64_t bytes) {
  std::vector<Buffer> sources(n, Buffer(bytes));
  for (size_t r = 0; r < n; ++r)
    std::memset(sources[r].data(), 0x38 + static_cast<int>(r % 4), bytes);
  return sources;
}

double reduce_gbps(coll::Isa isa, Dtype dtype, RedOp op, size_t n, uint64_t bytes) {
  const std::vector<Buffer> sources = make_sources(n, bytes);
  std::vector<const void*> srcs;
  for (const Buffer& source : sources) srcs.push_back(source.data());
  Buffer dst(bytes);
  const coll::Kernel kernel = coll::find_kernel(isa, dtype, op);
  const uint64_t repeats = bytes < (1u << 20) ? 200 : 1;
  const double ns =
      best_ns(repeats, [&] { kernel(srcs.data(), n, dst.data(), bytes / dtype_bytes(dtype), n); });
  return static_cast<double>(n * bytes) / ns;
}

double memcpy_gbps(uint64_t bytes) {
  const Buffer from(bytes, std::byte{1});
  Buffer to(bytes);
  const double ns = best_ns(bytes < (1u << 20) ? 200 : 1, [&] {
    std::memcpy(to.data(), from.data(), bytes);
    asm volatile("" : : "r"(to.data()) : "memory");
  });
  return static_cast<double>(bytes) / ns;
}

void print_table(coll::Isa isa, RedOp op) {
  std::printf("%s, %s; memcpy %.1f and %.1f\n", coll::isa_name(isa), redop_name(op),
              memcpy_gbps(kCacheBytes), memcpy_gbps(kMemoryBytes));
  std::printf("%-14s %10s %10s %10s %10s\n", "GB/s read", "2 x 64 KiB", "4 x 64 KiB", "2 x 64 MiB",
              "4 x 64 MiB");
  for (const Dtype dtype : kAllDtypes) {
    std::printf("%-14s", dtype_name(dtype));
    for (const uint64_t bytes : {kCacheBytes, kMemoryBytes})
      for (const size_t n : {2, 4}) std::printf(" %10.1f", reduce_gbps(isa, dtype, op, n, bytes));
    std::printf("\n");
  }
}
}  // namespace

int main(int argc, char** argv) {
  const auto op = parse_redop(argc > 1 ? argv[1] : "sum");
  if (!op.ok()) return std::fprintf(stderr, "%s\n", op.status().to_string().c_str()), 1;
  for (const coll::Isa isa : coll::kAllIsas) {
    const bool wanted = argc <= 2 || std::string_view(argv[2]) == coll::isa_name(isa);
    if (coll::has_isa(isa) && wanted) print_table(isa, op.value());
  }
  return 0;
}
