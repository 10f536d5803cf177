// Copying by threads: the kernels' own code, on the CPU.
#include "transport/nvlink/words.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace braid::nvlink {
namespace {

constexpr size_t kRoom = 1 << 12;
constexpr auto kUntouched = std::byte{0xee};
using Bytes = std::vector<std::byte>;

// No period of 16 or 256, so that a wrong offset shows.
Bytes patterned() {
  Bytes bytes(kRoom);
  for (size_t i = 0; i < kRoom; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 251);
  return bytes;
}

Bytes expected_of(const Bytes& from, size_t to_offset, size_t from_offset, size_t num_bytes) {
  Bytes to(kRoom, kUntouched);
  std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(from_offset), num_bytes,
              to.begin() + static_cast<std::ptrdiff_t>(to_offset));
  return to;
}

const size_t kSizes[] = {0, 1, 2, 15, 16, 17, 31, 33, 64, 100, 255, 256, 1000, 2047};

TEST(CopyWords, AnyOffsetAnySizeAnyThreads) {
  alignas(16) static std::byte from[kRoom], to[kRoom];
  const Bytes source = patterned();
  std::copy(source.begin(), source.end(), from);
  for (size_t to_offset = 16; to_offset < 32; ++to_offset)
    for (size_t from_offset = 16; from_offset < 32; ++from_offset)
      for (const size_t num_bytes : kSizes)
        for (const uint64_t num_threads : {1, 3, 32}) {
          std::fill_n(to, kRoom, kUntouched);
          for (uint64_t thread = 0; thread < num_threads; ++thread)
            copy_by_threads({thread, num_threads}, to + to_offset, from + from_offset, num_bytes);
          ASSERT_EQ(Bytes(to, to + kRoom), expected_of(source, to_offset, from_offset, num_bytes))
              << num_bytes << " bytes from " << from_offset << " to " << to_offset << " by "
              << num_threads;
        }
}

}  // namespace
}  // namespace braid::nvlink
