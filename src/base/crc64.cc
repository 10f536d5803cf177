// A CRC is the remainder of a polynomial with coefficients of 0 and 1: byte by byte with tables, or
// by folding, for which processors multiply such polynomials (clmul, "without carries").
//
// Folding. Let X be 128 bits of state and D the bits that follow before it is needed again: then X
// can be put there as X * x^D, and modulo P that is two products of 64 bits each:
//
//   X * x^D = LO * x^(64 + D) + HI * x^D           LO: the half that comes first
//           = LO * (x^(64 + D) mod P) + HI * (x^D mod P)
//
// so one adds two products to the next 128 bits instead of dividing. Several states side by side
// hide the time of a multiplication. At the end states are folded into one, and that is divided.
//
// Bits are reflected: bit 0 of a word is its highest power. Of two reflected words clmul gives the
// product times x; a constant for x^n is therefore x^(n - 1) mod P.
#include "base/crc64.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace braid {
namespace {

constexpr uint64_t kPolynomial = 0x9a6c9329ac4bc9b5;  // 0xAD93D23594C93659, reflected

using Crc = uint64_t (*)(const std::byte* at, size_t bytes, uint64_t state);

/// `word` times x, modulo P.
constexpr uint64_t times_x(uint64_t word) { return (word >> 1) ^ ((word & 1) ? kPolynomial : 0); }

constexpr size_t kSlices = 8;
using Tables = std::array<std::array<uint64_t, 256>, kSlices>;

/// [k][b]: what byte b becomes when k more bytes follow it.
constexpr Tables make_tables() {
  Tables out{};
  for (uint64_t byte = 0; byte < 256; ++byte) {
    uint64_t word = byte;
    for (int bit = 0; bit < 8; ++bit) word = times_x(word);
    out[0][byte] = word;
  }
  for (size_t slice = 1; slice < kSlices; ++slice)
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint64_t before = out[slice - 1][byte];
      out[slice][byte] = (before >> 8) ^ out[0][before & 0xff];
    }
  return out;
}

constexpr Tables kTables = make_tables();

uint64_t step(uint64_t state, std::byte next) {
  return (state >> 8) ^ kTables[0][(state ^ static_cast<uint64_t>(next)) & 0xff];
}

/// 8 bytes of a text as a word of which byte 0 comes first, whatever the processor's order.
uint64_t load(const std::byte* at) {
  uint64_t word = 0;
  std::memcpy(&word, at, sizeof word);
  if constexpr (std::endian::native == std::endian::big) {
    uint64_t turned = 0;
    for (int i = 0; i < 8; ++i) turned = (turned << 8) | ((word >> (8 * i)) & 0xff);
    word = turned;
  }
  return word;
}

uint64_t by_tables(const std::byte* at, size_t bytes, uint64_t state) {
  for (; bytes >= kSlices; at += kSlices, bytes -= kSlices) {
    const uint64_t word = load(at) ^ state;
    state = 0;
    for (size_t i = 0; i < kSlices; ++i)
      state ^= kTables[kSlices - 1 - i][(word >> (8 * i)) & 0xff];
  }
  for (; bytes != 0; ++at, --bytes) state = step(state, *at);
  return state;
}

#if defined(__x86_64__)

/// x^power mod P, reflected.
constexpr uint64_t power_of_x(unsigned power) {
  uint64_t word = uint64_t{1} << 63;  // x^0
  for (unsigned i = 0; i < power; ++i) word = times_x(word);
  return word;
}

/// The two factors that put a state `bits` further on.
struct Fold {
  uint64_t lo, hi;
};
constexpr Fold fold_by(unsigned bits) { return {power_of_x(64 + bits - 1), power_of_x(bits - 1)}; }

/// floor(x^128 / P) without its x^64, reflected: division by P becomes multiplication.
constexpr uint64_t quotient() {
  uint64_t found = 0, rest = kPolynomial;  // of x^64
  for (int bit = 0; bit < 64; ++bit, rest = times_x(rest)) found |= (rest & 1) << bit;
  return found;
}

#define BRAID_CLMUL __attribute__((target("pclmul,sse4.1")))
#define BRAID_WIDE_CLMUL __attribute__((target("avx512f,avx512vl,avx512dq,vpclmulqdq,pclmul")))

BRAID_CLMUL inline __m128i pair(uint64_t lo, uint64_t hi) {
  return _mm_set_epi64x(static_cast<int64_t>(hi), static_cast<int64_t>(lo));
}

BRAID_CLMUL inline __m128i load128(const std::byte* at) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
}

BRAID_CLMUL inline __m128i folded(__m128i state, __m128i factors, __m128i next) {
  return _mm_xor_si128(next, _mm_xor_si128(_mm_clmulepi64_si128(state, factors, 0x00),
                                           _mm_clmulepi64_si128(state, factors, 0x11)));
}

/// 128 bits that nothing follows as a sum: times x^64, as for every CRC, modulo P.
BRAID_CLMUL inline uint64_t divided(__m128i state) {
  constexpr uint64_t kFactor = power_of_x(127), kQuotient = quotient();
  const __m128i constants = pair(kFactor, kQuotient);
  // LO * x^128 + HI * x^64, of at most 128 bits.
  const __m128i y =
      _mm_xor_si128(_mm_clmulepi64_si128(state, constants, 0x00), _mm_srli_si128(state, 8));
  const auto first = static_cast<uint64_t>(_mm_cvtsi128_si64(y));
  const auto second = static_cast<uint64_t>(_mm_extract_epi64(y, 1));
  const auto high =
      static_cast<uint64_t>(_mm_cvtsi128_si64(_mm_clmulepi64_si128(y, constants, 0x10)));
  const uint64_t times = first ^ (high << 1);
  const __m128i product = _mm_clmulepi64_si128(pair(times, 0), pair(kPolynomial, 0), 0x00);
  const auto low = static_cast<uint64_t>(_mm_cvtsi128_si64(product));
  const auto rest = static_cast<uint64_t>(_mm_extract_epi64(product, 1));
  return second ^ (rest << 1) ^ (low >> 63);
}

/// What is left behind a state: whole 16 bytes, then single ones.
BRAID_CLMUL inline uint64_t finished(__m128i state, const std::byte* at, size_t bytes) {
  constexpr Fold kNext = fold_by(128);
  const __m128i factors = pair(kNext.lo, kNext.hi);
  for (; bytes >= 16; at += 16, bytes -= 16) state = folded(state, factors, load128(at));
  return by_tables(at, bytes, divided(state));
}

BRAID_CLMUL uint64_t by_clmul(const std::byte* at, size_t bytes, uint64_t state) {
  constexpr size_t kStep = 64;
  if (bytes < 16) return by_tables(at, bytes, state);
  __m128i a = _mm_xor_si128(load128(at), pair(state, 0));
  if (bytes < kStep) return finished(a, at + 16, bytes - 16);
  constexpr Fold kFar = fold_by(8 * kStep), kNext = fold_by(128);
  __m128i b = load128(at + 16), c = load128(at + 32), d = load128(at + 48);
  const __m128i far = pair(kFar.lo, kFar.hi);
  for (at += kStep, bytes -= kStep; bytes >= kStep; at += kStep, bytes -= kStep) {
    a = folded(a, far, load128(at));
    b = folded(b, far, load128(at + 16));
    c = folded(c, far, load128(at + 32));
    d = folded(d, far, load128(at + 48));
  }
  const __m128i next = pair(kNext.lo, kNext.hi);
  return finished(folded(folded(folded(a, next, b), next, c), next, d), at, bytes);
}

BRAID_WIDE_CLMUL inline __m512i factors512(Fold fold) {
  const auto lo = static_cast<int64_t>(fold.lo), hi = static_cast<int64_t>(fold.hi);
  return _mm512_set_epi64(hi, lo, hi, lo, hi, lo, hi, lo);
}

BRAID_WIDE_CLMUL inline __m512i load512(const std::byte* at) { return _mm512_loadu_si512(at); }

BRAID_WIDE_CLMUL inline __m512i folded512(__m512i state, __m512i factors, __m512i next) {
  constexpr int kXorOfThree = 0x96;
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(state, factors, 0x00),
                                   _mm512_clmulepi64_epi128(state, factors, 0x11), next,
                                   kXorOfThree);
}

/// Four states of 128 bits, one behind the other, as one.
BRAID_WIDE_CLMUL inline __m128i joined(__m512i four) {
  alignas(64) std::byte each[64];
  _mm512_store_si512(each, four);
  constexpr Fold kNext = fold_by(128);
  const __m128i next = pair(kNext.lo, kNext.hi);
  const __m128i two = folded(load128(each), next, load128(each + 16));
  return folded(folded(two, next, load128(each + 32)), next, load128(each + 48));
}

BRAID_WIDE_CLMUL uint64_t by_wide_clmul(const std::byte* at, size_t bytes, uint64_t state) {
  constexpr size_t kWidth = 64, kStep = 4 * kWidth;
  if (bytes < kStep) return by_clmul(at, bytes, state);
  constexpr Fold kFar = fold_by(8 * kStep), kNext = fold_by(8 * kWidth);
  const __m512i far = factors512(kFar), next = factors512(kNext);
  __m512i a = _mm512_xor_si512(load512(at), _mm512_zextsi128_si512(pair(state, 0)));
  __m512i b = load512(at + 64), c = load512(at + 128), d = load512(at + 192);
  for (at += kStep, bytes -= kStep; bytes >= kStep; at += kStep, bytes -= kStep) {
    a = folded512(a, far, load512(at));
    b = folded512(b, far, load512(at + 64));
    c = folded512(c, far, load512(at + 128));
    d = folded512(d, far, load512(at + 192));
  }
  a = folded512(folded512(folded512(a, next, b), next, c), next, d);
  for (; bytes >= kWidth; at += kWidth, bytes -= kWidth) a = folded512(a, next, load512(at));
  return finished(joined(a), at, bytes);
}

#undef BRAID_CLMUL
#undef BRAID_WIDE_CLMUL

Crc function_of(CrcWay way) {
  switch (way) {
    case CrcWay::kTables: return &by_tables;
    case CrcWay::kClmul: return &by_clmul;
    case CrcWay::kWideClmul: return &by_wide_clmul;
  }
  return &by_tables;
}

#else

Crc function_of(CrcWay) { return &by_tables; }

#endif

Crc best() noexcept {
  static const Crc kFound = [] {
    CrcWay found = CrcWay::kTables;
    for (const CrcWay way : kAllCrcWays)
      if (has_crc_way(way)) found = way;
    return function_of(found);
  }();
  return kFound;
}

}  // namespace

bool has_crc_way(CrcWay way) noexcept {
#if defined(__x86_64__)
  if (way == CrcWay::kClmul)
    return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
  if (way == CrcWay::kWideClmul)
    return has_crc_way(CrcWay::kClmul) && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("vpclmulqdq");
#endif
  return way == CrcWay::kTables;
}

uint64_t crc64_by(CrcWay way, std::span<const std::byte> bytes, uint64_t before) noexcept {
  return ~function_of(way)(bytes.data(), bytes.size(), ~before);
}

uint64_t crc64(std::span<const std::byte> bytes, uint64_t before) noexcept {
  return ~best()(bytes.data(), bytes.size(), ~before);
}

// At each new run a processor has to notice anew that memory is read in order: 0.5 us, as long as
// 8 KiB take in a row. So it is told what comes next, piece by piece; into the second cache, since
// the first one waits for no more than a dozen lines or two at a time.
uint64_t crc64_of_runs(const std::byte* base, std::span<const uint64_t> begins, uint64_t run_bytes,
                       uint64_t before) noexcept {
  constexpr uint64_t kPieceBytes = 4096, kLineBytes = 64, kMostAhead = 16384;
  const Crc crc = best();
  const size_t runs_ahead = run_bytes == 0 ? 1 : std::max<uint64_t>(1, kPieceBytes / run_bytes);
  uint64_t state = ~before;
  for (size_t i = 0; i < begins.size(); ++i) {
    const std::byte* const next =
        i + runs_ahead < begins.size() ? base + begins[i + runs_ahead] : nullptr;
    for (uint64_t at = 0; at < run_bytes; at += kPieceBytes) {
      const uint64_t size = std::min(kPieceBytes, run_bytes - at);
      if (next != nullptr && at < kMostAhead)
        for (uint64_t line = 0; line < size; line += kLineBytes)
          __builtin_prefetch(next + at + line, 0, 2);
      state = crc(base + begins[i] + at, size, state);
    }
  }
  return ~state;
}

}  // namespace braid
