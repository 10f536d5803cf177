// Checks the reduce kernels on a GPU against the processor's (coll/reduce/kernels.h), bit for bit:
// every dtype and op, 1 to 16 sources, several destinations, in place, any alignment; then prints
// what 16 blocks read a second.
// scripts/device_checks compiles and runs it.
#include <algorithm>
#include <cstring>

#include "coll/reduce/kernels.h"
#include "coll/reduce/reduce_args.h"
#include "coll/reduce/reduce_names.h"
#include "device/gpu.h"

namespace braid::test {
namespace {

using Bytes = std::vector<uint8_t>;

constexpr uint64_t kMostElements = 40'000;
constexpr uint64_t kArrayBytes = kMostElements * 8 + 256;
constexpr int kMostArrays = coll::kMostReduceArrays;
constexpr uint8_t kUntouched = 0xee;

int passed = 0;
int failed = 0;

/// Special values of the float formats, as the top bytes of an element of any of them.
void make_edge(uint8_t* element, size_t bytes, uint64_t bits) {
  constexpr uint8_t kTops[][2] = {{0x7f, 0x80}, {0x7f, 0xc0}, {0x7c, 0x00}, {0x7e, 0x00},
                                  {0x00, 0x00}, {0x7f, 0xf0}, {0x7f, 0xf8}, {0x00, 0x80},
                                  {0x3f, 0x80}, {0x7b, 0xff}, {0x7f, 0x7f}, {0x04, 0x00}};
  const auto& top = kTops[bits % 12];
  std::memset(element, (bits & 256) != 0 ? 0x00 : 0xff, bytes);
  if (bytes == 1) {
    element[0] = static_cast<uint8_t>(bits >> 16);
    return;
  }
  element[bytes - 1] = static_cast<uint8_t>(top[0] | (bits & 512) >> 2);
  element[bytes - 2] = top[1];
  if (bytes > 2 && (bits & 1024) != 0) std::memset(element, 0, bytes - 2);
  if ((bits & 2048) != 0) element[0] ^= static_cast<uint8_t>(bits >> 16);
}

/// A third edges, a third any bits, a third near what the first source has, so that sums cancel.
Bytes random_array(Dtype dtype, int source) {
  const size_t bytes = dtype_bytes(dtype);
  Bytes out(kArrayBytes);
  for (uint64_t i = 0; i + bytes <= out.size(); i += bytes) {
    const uint64_t bits = random_bits(static_cast<uint64_t>(source), i);
    const uint64_t kind = random_bits(99, i) % 3;
    const uint64_t value = kind == 2 ? random_bits(7, i) ^ (bits & 0x8000'8000'8000'8003)
                                     : random_bits(static_cast<uint64_t>(source) + 50, i);
    std::memcpy(&out[i], &value, bytes);
    if (kind == 0 && bits % 2 == 0) make_edge(&out[i], bytes, bits >> 8);
  }
  return out;
}

struct Arrays {
  std::vector<Bytes> host;
  std::vector<uint8_t*> srcs;
  std::vector<uint8_t*> dsts;

  explicit Arrays(Dtype dtype) {
    for (int k = 0; k < kMostArrays; ++k) {
      host.push_back(random_array(dtype, k));
      srcs.push_back(nullptr);
      dsts.push_back(nullptr);
      CHECK_CUDA(cudaMalloc(&srcs.back(), kArrayBytes));
      CHECK_CUDA(cudaMalloc(&dsts.back(), kArrayBytes));
    }
    upload();
  }
  void upload() {
    for (int k = 0; k < kMostArrays; ++k) {
      const auto i = static_cast<size_t>(k);
      CHECK_CUDA(cudaMemcpy(srcs[i], host[i].data(), kArrayBytes, cudaMemcpyDefault));
      CHECK_CUDA(cudaMemset(dsts[i], kUntouched, kArrayBytes));
    }
  }
  ~Arrays() {
    for (uint8_t* p : srcs) CHECK_CUDA(cudaFree(p));
    for (uint8_t* p : dsts) CHECK_CUDA(cudaFree(p));
  }
};

struct Case {
  uint64_t count;
  int num_srcs;
  int num_dsts;
  uint64_t offset_bytes;  // of all arrays
  uint64_t skew_bytes;    // of the last source and the last destination, beyond that
  bool is_in_place;
};
const Case kCases[] = {
    {1, 2, 1, 0, 0, false},       {17, 3, 1, 0, 0, false},     {40'000, 2, 1, 0, 0, false},
    {40'000, 4, 1, 0, 0, false},  {39'999, 8, 2, 0, 0, false}, {39'998, 16, 1, 0, 0, false},
    {39'997, 1, 3, 0, 0, false},  {33'333, 5, 7, 8, 0, false}, {33'333, 4, 1, 8, 0, true},
    {39'999, 3, 1, 3, 0, false},  {39'999, 3, 2, 8, 8, false}, {9'999, 9, 16, 1, 2, false},
    {30'000, 13, 1, 16, 0, true}, {0, 2, 1, 0, 0, false}};

Bytes wanted(const Arrays& arrays, Dtype dtype, RedOp op, const Case& c) {
  const size_t bytes = dtype_bytes(dtype);
  Bytes out(c.count * bytes + 64);
  std::vector<const void*> srcs;
  for (int k = 0; k < c.num_srcs; ++k) srcs.push_back(arrays.host[static_cast<size_t>(k)].data());
  if (c.num_srcs == 1) {
    std::memcpy(out.data(), srcs[0], c.count * bytes);
  } else {
    coll::generic::find_kernel(dtype, op)(srcs.data(), srcs.size(), out.data(), c.count,
                                          srcs.size());
  }
  std::memset(out.data() + c.count * bytes, kUntouched, 64);
  return out;
}

/// Blocks and their dynamic shared memory: none, and rings (coll/reduce/ring_body.cuh) that go
/// round several times.
struct Shape {
  uint32_t blocks;
  int ring_width;
};
constexpr Shape kShapes[] = {{5, 0}, {1, 1}, {2, 2}, {1, 4}};
constexpr uint32_t kMostSharedBytes = 227 << 10;  // of one block on sm_90

uint32_t shared_bytes(const Shape& shape, int num_srcs) {
  const uint32_t bytes = coll::ring_bytes(shape.ring_width, num_srcs, coll::kReduceThreads);
  return bytes <= kMostSharedBytes ? bytes : 0;
}

/// Sources are moved to their offsets on the device; the bytes before and behind stay as they are.
bool is_right(Arrays& arrays, cudaKernel_t kernel, Dtype dtype, RedOp op, const Case& c,
              const Shape& shape) {
  const uint64_t used_bytes = c.count * dtype_bytes(dtype);
  const Bytes want = wanted(arrays, dtype, op, c);
  coll::ReduceArgs args{};
  args.count_elements = c.count;
  args.num_srcs = c.num_srcs;
  args.num_dsts = c.num_dsts;
  for (int k = 0; k < c.num_srcs; ++k) {
    const auto i = static_cast<size_t>(k);
    uint8_t* to = arrays.srcs[i] + c.offset_bytes + (k + 1 == c.num_srcs ? c.skew_bytes : 0);
    CHECK_CUDA(cudaMemcpy(to, arrays.host[i].data(), used_bytes, cudaMemcpyDefault));
    args.srcs[k] = to;
  }
  for (int d = 0; d < c.num_dsts; ++d) {
    uint8_t* base = arrays.dsts[static_cast<size_t>(d)];
    CHECK_CUDA(cudaMemset(base, kUntouched, kArrayBytes));
    args.dsts[d] = base + c.offset_bytes + (d > 0 && d + 1 == c.num_dsts ? c.skew_bytes : 0);
  }
  if (c.is_in_place) {
    args.dsts[0] = const_cast<void*>(args.srcs[1]);
    CHECK_CUDA(cudaMemset(static_cast<uint8_t*>(args.dsts[0]) + used_bytes, kUntouched, 64));
  }
  launch(kernel, shape.blocks, coll::kReduceThreads, args, nullptr,
         shared_bytes(shape, c.num_srcs));
  CHECK_CUDA(cudaDeviceSynchronize());
  for (int d = 0; d < c.num_dsts; ++d) {
    Bytes got(want.size());
    CHECK_CUDA(cudaMemcpy(got.data(), args.dsts[d], got.size(), cudaMemcpyDefault));
    const auto differs = std::mismatch(got.begin(), got.end(), want.begin());
    if (differs.first == got.end()) continue;
    std::printf("  destination %d differs at byte %ld of %lu: %02x, not %02x\n", d,
                static_cast<long>(differs.first - got.begin()),
                static_cast<unsigned long>(used_bytes), *differs.first, *differs.second);
    return false;
  }
  return true;
}

void check_kernels(const Kernels& kernels, Dtype dtype) {
  Arrays arrays(dtype);
  for (const RedOp op : kAllRedOps) {
    const cudaKernel_t kernel = kernels.find(coll::reduce_kernel_name(dtype, op));
    int wrong = 0;
    allow_shared_bytes(kernel, kMostSharedBytes);
    for (size_t k = 0; k < std::size(kCases) * std::size(kShapes); ++k) {
      const Case& c = kCases[k / std::size(kShapes)];
      const Shape& shape = kShapes[k % std::size(kShapes)];
      const bool right = is_right(arrays, kernel, dtype, op, c, shape);
      ++(right ? passed : failed);
      if (right) continue;
      ++wrong;
      std::printf("  %lu elements of %d sources to %d, ring %d, offset %lu, skew %lu%s\n",
                  static_cast<unsigned long>(c.count), c.num_srcs, c.num_dsts, shape.ring_width,
                  static_cast<unsigned long>(c.offset_bytes),
                  static_cast<unsigned long>(c.skew_bytes), c.is_in_place ? ", in place" : "");
    }
    std::printf("%s %s, %zu cases\n", wrong == 0 ? "ok  " : "FAIL",
                coll::reduce_kernel_name(dtype, op), std::size(kCases) * std::size(kShapes));
    std::fflush(stdout);
  }
}

void print_speed(const Kernels& kernels, const char* name, int num_srcs, const Shape& shape) {
  constexpr uint64_t kBytes = uint64_t{64} << 20;
  constexpr int kCalls = 20;
  const cudaKernel_t kernel = kernels.find(name);
  coll::ReduceArgs args{};
  args.count_elements = kBytes / 2;
  args.num_srcs = num_srcs;
  args.num_dsts = 1;
  std::vector<void*> memory;
  for (int k = 0; k <= num_srcs; ++k) {
    memory.push_back(nullptr);
    CHECK_CUDA(cudaMalloc(&memory.back(), kBytes));
    CHECK_CUDA(cudaMemset(memory.back(), 0, kBytes));
    (k < num_srcs ? const_cast<void*&>(args.srcs[k]) : args.dsts[0]) = memory.back();
  }
  cudaEvent_t begin, end;
  CHECK_CUDA(cudaEventCreate(&begin));
  CHECK_CUDA(cudaEventCreate(&end));
  const uint32_t shared = shared_bytes(shape, num_srcs);
  allow_shared_bytes(kernel, kMostSharedBytes);
  launch(kernel, shape.blocks, coll::kReduceThreads, args, nullptr, shared);
  CHECK_CUDA(cudaEventRecord(begin));
  for (int k = 0; k < kCalls; ++k)
    launch(kernel, shape.blocks, coll::kReduceThreads, args, nullptr, shared);
  CHECK_CUDA(cudaEventRecord(end));
  CHECK_CUDA(cudaDeviceSynchronize());
  float ms = 0;
  CHECK_CUDA(cudaEventElapsedTime(&ms, begin, end));
  std::printf("%s, %d sources of 64 MiB, %u blocks, ring %d: reads %.0f GB/s\n", name, num_srcs,
              shape.blocks, shared == 0 ? 0 : shape.ring_width,
              1e-6 * static_cast<double>(kBytes) * num_srcs * kCalls / ms);
  for (void* p : memory) CHECK_CUDA(cudaFree(p));
  CHECK_CUDA(cudaEventDestroy(begin));
  CHECK_CUDA(cudaEventDestroy(end));
}

}  // namespace
}  // namespace braid::test

int main(int argc, char** argv) {
  using namespace braid::test;
  const Kernels kernels(argc - 1, argv + 1);
  for (const braid::Dtype dtype : braid::kAllDtypes) check_kernels(kernels, dtype);
  for (const char* name : {"braid_reduce_bfloat16_sum", "braid_reduce_float16_avg"})
    for (const uint32_t blocks : {8, 16, 32, 132})
      for (const int num_srcs : {2, 4, 8})
        for (const int ring_width : {0, 1, 2, 4})
          print_speed(kernels, name, num_srcs, {blocks, ring_width});
  std::printf("reduce: %d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
