// The device's element functions, compiled for the host, against reduce(): bit for bit, one element
// and one 16-byte vector at a time.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/sanitizer.h"
#include "coll/reduce/reduce.h"
#include "coll/reduce/reduce_names.h"
#include "coll/reduce/words.cuh"

namespace braid::coll {
namespace {

using device::Op;
constexpr int kWords = 4;
using Words = std::vector<uint32_t>;

template <typename R>
Words by_vectors(const std::vector<Words>& srcs) {
  const int n = static_cast<int>(srcs.size());
  Words out(srcs[0].size());
  for (size_t i = 0; i < out.size(); i += kWords) {
    typename R::Acc acc[device::kElementsIn<R, kWords>];
    device::unpack<R, kWords>(&srcs[0][i], acc);
    for (int r = 1; r < n; ++r) device::combine<R, kWords>(&srcs[static_cast<size_t>(r)][i], acc);
    device::pack<R, kWords>(acc, n, &out[i]);
  }
  return out;
}

template <typename R>
Words by_elements(const std::vector<Words>& srcs) {
  const size_t count = srcs[0].size() * 4 / R::kBytes;
  Words out(srcs[0].size());
  const auto load = [&](size_t r, size_t i) {
    typename R::Bits bits = 0;
    std::memcpy(&bits, reinterpret_cast<const char*>(srcs[r].data()) + i * R::kBytes, R::kBytes);
    return R::load(bits);
  };
  for (size_t i = 0; i < count; ++i) {
    auto acc = load(0, i);
    for (size_t r = 1; r < srcs.size(); ++r) acc = R::apply(acc, load(r, i));
    const typename R::Bits bits = R::store(acc, static_cast<int>(srcs.size()));
    std::memcpy(reinterpret_cast<char*>(out.data()) + i * R::kBytes, &bits, R::kBytes);
  }
  return out;
}

using Function = Words (*)(const std::vector<Words>&);
struct Functions {
  Function vectors;
  Function elements;
};

template <typename F, Op kOp>
Functions functions() {
  using R = device::Reduction<F, kOp>;
  return {by_vectors<R>, by_elements<R>};
}

template <typename F>
Functions functions_of(RedOp op) {
  switch (op) {
    case RedOp::kSum: return functions<F, Op::kSum>();
    case RedOp::kProd: return functions<F, Op::kProd>();
    case RedOp::kMax: return functions<F, Op::kMax>();
    case RedOp::kMin: return functions<F, Op::kMin>();
    case RedOp::kAvg: return functions<F, Op::kAvg>();
  }
  return {};
}

Functions functions_of(Dtype dtype, RedOp op) {
  switch (dtype) {
    case Dtype::kInt8: return functions_of<device::Whole<int8_t>>(op);
    case Dtype::kUint8: return functions_of<device::Whole<uint8_t>>(op);
    case Dtype::kInt16: return functions_of<device::Whole<int16_t>>(op);
    case Dtype::kUint16: return functions_of<device::Whole<uint16_t>>(op);
    case Dtype::kInt32: return functions_of<device::Whole<int32_t>>(op);
    case Dtype::kUint32: return functions_of<device::Whole<uint32_t>>(op);
    case Dtype::kInt64: return functions_of<device::Whole<int64_t>>(op);
    case Dtype::kUint64: return functions_of<device::Whole<uint64_t>>(op);
    case Dtype::kFloat16: return functions_of<device::Fp16>(op);
    case Dtype::kBfloat16: return functions_of<device::Bf16>(op);
    case Dtype::kFloat32: return functions_of<device::Fp32>(op);
    case Dtype::kFloat64: return functions_of<device::Fp64>(op);
    case Dtype::kFloat8E4m3: return functions_of<device::E4m3>(op);
    case Dtype::kFloat8E5m2: return functions_of<device::E5m2>(op);
  }
  return {};
}

/// Both signs of the zeros, the least and largest numbers, infinity and several NaN, of every float
/// of `bytes`; for integers they are as good as any.
std::vector<uint64_t> edges(size_t bytes) {
  std::vector<uint64_t> tops;
  if (bytes == 1) {
    for (uint64_t bits = 0; bits < 256; ++bits) tops.push_back(bits);
    return tops;
  }
  if (bytes == 2) tops = {0x7c00, 0x7f80, 0x3c00, 0x3f80, 0x0400, 0x0080, 0x7bff, 0x7e00, 0x7fc0};
  if (bytes == 4) tops = {0x7f800000, 0x3f800000, 0x00800000, 0x7fc00000, 0x34000000};
  if (bytes == 8) tops = {0x7ff0000000000000, 0x3ff0000000000000, 0x0010000000000000};
  tops.push_back(0);
  std::vector<uint64_t> out;
  const uint64_t sign = uint64_t{1} << (8 * bytes - 1);
  for (const uint64_t top : tops)
    for (const uint64_t step : {0, 1, 2, 3, 0x55, -1, -2})
      for (const uint64_t s : {uint64_t{0}, sign}) out.push_back(((top + step) & (sign - 1)) | s);
  return out;
}

/// Half of the elements are edges, the others any bits.
Words random_words(size_t bytes, std::mt19937_64& rng) {
  static constexpr size_t kTotalWords = 4096;
  const std::vector<uint64_t> all = edges(bytes);
  Words words(kTotalWords);
  for (size_t i = 0; i < 4 * kTotalWords / bytes; ++i) {
    const uint64_t bits = rng() % 2 == 0 ? all[rng() % all.size()] : rng();
    std::memcpy(reinterpret_cast<char*>(words.data()) + i * bytes, &bits, bytes);
  }
  return words;
}

/// Alike exponents, so that sums tie and cancel instead of being their largest operand.
Words like(const Words& base, size_t bytes, std::mt19937_64& rng) {
  Words words = base;
  auto* p = reinterpret_cast<unsigned char*>(words.data());
  for (size_t i = 0; i < 4 * words.size(); i += bytes) {
    p[i] ^= static_cast<unsigned char>(rng() % 16);
    p[i + bytes - 1] ^= static_cast<unsigned char>(rng() % 2 * 128);
  }
  return words;
}

class Elements : public testing::TestWithParam<std::tuple<Dtype, RedOp>> {};

TEST_P(Elements, AreThoseOfReduce) {
  const auto [dtype, op] = GetParam();
  const size_t bytes = dtype_bytes(dtype);
  const Functions device_functions = functions_of(kernel_dtype(dtype, op), op);
  std::mt19937_64 rng(17);
  for (int round = 0; round < (kIsSanitized ? 1 : 4); ++round) {
    std::vector<Words> srcs = {random_words(bytes, rng)};
    for (size_t n = 2; n <= 16; n += n < 8 ? 1 : 8) {
      while (srcs.size() < n)
        srcs.push_back(rng() % 2 == 0 ? like(srcs[0], bytes, rng) : random_words(bytes, rng));
      std::vector<const void*> pointers;
      for (const Words& words : srcs) pointers.push_back(words.data());
      Words want(srcs[0].size());
      reduce(pointers, want.data(), 4 * want.size() / bytes, dtype, op);
      ASSERT_EQ(device_functions.vectors(srcs), want) << n << " sources";
      ASSERT_EQ(device_functions.elements(srcs), want) << n << " sources";
    }
  }
}

TEST_P(Elements, HaveAKernelOfTheirName) {
  const auto [dtype, op] = GetParam();
  const std::string suffix =
      std::string(dtype_name(kernel_dtype(dtype, op))) + "_" + redop_name(op);
  EXPECT_EQ(reduce_kernel_name(dtype, op), "braid_reduce_" + suffix);
  EXPECT_EQ(packet_reduce_kernel_name(dtype, op), "braid_packets_reduce_" + suffix);
}

// Whose kernels serve another dtype: only where the bits are the same, which AreThoseOfReduce
// shows.
TEST(KernelNames, SumsAndProductsOfSignedIntegersAreUnsignedOnes) {
  EXPECT_EQ(kernel_dtype(Dtype::kInt8, RedOp::kSum), Dtype::kUint8);
  EXPECT_EQ(kernel_dtype(Dtype::kInt64, RedOp::kProd), Dtype::kUint64);
  for (const RedOp op : {RedOp::kMin, RedOp::kMax, RedOp::kAvg})
    EXPECT_EQ(kernel_dtype(Dtype::kInt16, op), Dtype::kInt16);
  for (const RedOp op : kAllRedOps) EXPECT_EQ(kernel_dtype(Dtype::kFloat32, op), Dtype::kFloat32);
}

INSTANTIATE_TEST_SUITE_P(All, Elements,
                         testing::Combine(testing::ValuesIn(kAllDtypes),
                                          testing::ValuesIn(kAllRedOps)),
                         [](const auto& param) {
                           return std::string(dtype_name(std::get<0>(param.param))) + "_" +
                                  redop_name(std::get<1>(param.param));
                         });

TEST(ReduceNames, NothingOutsideTheEnums) {
  EXPECT_EQ(reduce_kernel_name(static_cast<Dtype>(30), RedOp::kSum), nullptr);
  EXPECT_EQ(packet_reduce_kernel_name(Dtype::kInt8, static_cast<RedOp>(9)), nullptr);
}

}  // namespace
}  // namespace braid::coll
