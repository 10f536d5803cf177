// A packet's data in an array of any alignment and any number of bytes.
#pragma once

#include "coll/packets/packets.cuh"

namespace braid::coll::device {

static __device__ __noinline__ Words load_some(const uint8_t* from, int count_bytes) {
  uint64_t bits = 0;
#pragma unroll 1
  for (int k = 0; k < count_bytes; ++k) bits |= static_cast<uint64_t>(from[k]) << (8 * k);
  return {static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32)};
}

static __device__ __noinline__ void store_some(uint8_t* to, Words data, int count_bytes) {
  const uint64_t bits = data.low | static_cast<uint64_t>(data.high) << 32;
#pragma unroll 1
  for (int k = 0; k < count_bytes; ++k) to[k] = static_cast<uint8_t>(bits >> (8 * k));
}

/// Bytes of an array of `end_bytes` in the packet whose data begins at `offset_bytes`: 0 to 8.
__device__ __forceinline__ int bytes_at(uint64_t offset_bytes, uint64_t end_bytes) {
  if (offset_bytes >= end_bytes) return 0;
  const uint64_t left = end_bytes - offset_bytes;
  return left < kPacketDataBytes ? static_cast<int>(left) : static_cast<int>(kPacketDataBytes);
}

/// The array's bytes at `offset_bytes`, then zeros.
__device__ __forceinline__ Words load_words(const void* base, uint64_t offset_bytes,
                                            uint64_t end_bytes) {
  const uint8_t* from = static_cast<const uint8_t*>(base) + offset_bytes;
  const int count_bytes = bytes_at(offset_bytes, end_bytes);
  const uint64_t address = reinterpret_cast<uint64_t>(from);
  if (count_bytes == kPacketDataBytes && address % 4 == 0) {
    if (address % 8 == 0) {
      const uint2 both = *reinterpret_cast<const uint2*>(from);
      return {both.x, both.y};
    }
    const auto* word = reinterpret_cast<const uint32_t*>(from);
    return {word[0], word[1]};
  }
  return count_bytes == 0 ? Words{0, 0} : load_some(from, count_bytes);
}

/// Writes the array's bytes alone.
__device__ __forceinline__ void store_words(void* base, uint64_t offset_bytes, uint64_t end_bytes,
                                            const Words& data) {
  uint8_t* to = static_cast<uint8_t*>(base) + offset_bytes;
  const int count_bytes = bytes_at(offset_bytes, end_bytes);
  const uint64_t address = reinterpret_cast<uint64_t>(to);
  if (count_bytes == kPacketDataBytes && address % 4 == 0) {
    if (address % 8 == 0) {
      *reinterpret_cast<uint2*>(to) = make_uint2(data.low, data.high);
      return;
    }
    auto* word = reinterpret_cast<uint32_t*>(to);
    word[0] = data.low;
    word[1] = data.high;
    return;
  }
  if (count_bytes != 0) store_some(to, data, count_bytes);
}

/// Packets of a message; one at least, so that every peer hears of every call.
__device__ __forceinline__ uint64_t num_packets(uint64_t bytes) {
  return bytes == 0 ? 1 : (bytes + kPacketDataBytes - 1) / kPacketDataBytes;
}

// A thread's packets, of all the packets of a slot.
__device__ __forceinline__ uint64_t first_packet() {
  return uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ uint64_t packet_stride() { return uint64_t{gridDim.x} * blockDim.x; }

}  // namespace braid::coll::device
