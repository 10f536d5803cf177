// Copying by threads, sixteen bytes at a time, from any address to any other. Nothing here is
// CUDA's but the word __device__, so that the CPU tests run the very same code.
#pragma once

#include <cstddef>
#include <cstdint>

#ifndef __CUDACC__
#define __device__
#endif

namespace braid::nvlink {

/// The threads that work on one copy, and which of them this is.
struct Threads {
  uint64_t thread = 0, num_threads = 1;
};

// Sixteen bytes, the unit in which threads move most.
struct alignas(16) Word {
  uint64_t low, high;
};
static_assert(sizeof(Word) == 16);

// The 64 bits that begin `shift_bits` (0..63) into low:high. Two shifts, for one by 64 says
// nothing.
inline __device__ uint64_t funnel(uint64_t low, uint64_t high, uint32_t shift_bits) {
  return (low >> shift_bits) | ((high << 1) << (63 - shift_bits));
}

// The sixteen bytes that begin `skew` (1..15) bytes into a.
inline __device__ Word spliced(Word a, Word b, uint32_t skew) {
  const bool is_far = skew >= 8;
  const uint64_t first = is_far ? a.high : a.low;
  const uint64_t second = is_far ? b.low : a.high;
  const uint64_t third = is_far ? b.high : b.low;
  const uint32_t shift_bits = (skew & 7) * 8;
  return {funnel(first, second, shift_bits), funnel(second, third, shift_bits)};
}

/// How the source is read. Another one is for memory that changes under us (pcie/host_ring.cu).
struct PlainLoads {
  static __device__ Word load(const Word* from) { return *from; }
  static __device__ std::byte load(const std::byte* from) { return *from; }
};

template <typename Loads>
struct Aligned {  // source and destination are equally far from a multiple of 16
  const Word* from;
  __device__ Word load(uint64_t i) const { return Loads::load(from + i); }
};

// Reads whole aligned words around the wanted bytes. Each of them holds at least one wanted byte,
// so none can be outside the source's pages, though up to 15 bytes beside the source are read.
template <typename Loads>
struct Skewed {
  const Word* from;  // rounded down to 16 bytes
  uint32_t skew;
  __device__ Word load(uint64_t i) const {
    return spliced(Loads::load(from + i), Loads::load(from + i + 1), skew);
  }
};

// Four loads are on their way before the first store: one would wait for memory every time.
template <typename Source>
__device__ void copy_words(Threads threads, Word* to, const Source& source, uint64_t num_words) {
  const uint64_t stride = threads.num_threads;
  uint64_t i = threads.thread;
  for (; i + 3 * stride < num_words; i += 4 * stride) {
    const Word a = source.load(i), b = source.load(i + stride);
    const Word c = source.load(i + 2 * stride), d = source.load(i + 3 * stride);
    to[i] = a;
    to[i + stride] = b;
    to[i + 2 * stride] = c;
    to[i + 3 * stride] = d;
  }
  for (; i < num_words; i += stride) to[i] = source.load(i);
}

template <typename Loads>
__device__ void copy_bytes(Threads threads, std::byte* to, const std::byte* from, uint64_t bytes) {
  for (uint64_t i = threads.thread; i < bytes; i += threads.num_threads)
    to[i] = Loads::load(from + i);
}

// Bytes up to the destination's first multiple of 16, whole words, and the bytes left over.
template <typename Loads = PlainLoads>
__device__ void copy_by_threads(Threads threads, std::byte* to_bytes, const std::byte* from_bytes,
                                uint64_t bytes) {
  const uint64_t to_boundary = (16 - reinterpret_cast<uint64_t>(to_bytes) % 16) % 16;
  const uint64_t head_bytes = to_boundary < bytes ? to_boundary : bytes;
  const uint64_t num_words = (bytes - head_bytes) / 16;
  const uint64_t done_bytes = head_bytes + 16 * num_words;
  copy_bytes<Loads>(threads, to_bytes, from_bytes, head_bytes);
  copy_bytes<Loads>(threads, to_bytes + done_bytes, from_bytes + done_bytes, bytes - done_bytes);

  auto* to = reinterpret_cast<Word*>(to_bytes + head_bytes);
  const std::byte* from = from_bytes + head_bytes;
  const auto skew = static_cast<uint32_t>(reinterpret_cast<uint64_t>(from) % 16);
  const auto* from_word = reinterpret_cast<const Word*>(from - skew);
  if (skew == 0)
    copy_words(threads, to, Aligned<Loads>{from_word}, num_words);
  else
    copy_words(threads, to, Skewed<Loads>{from_word, skew}, num_words);
}

}  // namespace braid::nvlink
