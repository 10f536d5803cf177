// CRC-64/NVME: a checksum of 64 bits that is taken at the rate of memory. A published function
// (polynomial 0xAD93D23594C93659, reflected, all ones before and behind), so that what one machine
// has summed another one compares: "123456789" gives 0xAE8B14860A799888 with every build.
//
// It tells every error within 64 neighbouring bits, and of all others one in 2^64 is missed:
// flipped bits, chunks that changed places, a page of what was there before. No secret: whoever
// picks the bytes can make two texts meet.
//
// Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace braid {

/// `before` is the sum of what comes before: of two texts one after the other, crc64(second,
/// crc64(first)). Of nothing: 0. Costs with AVX-512 what reading costs (38 GB/s out of memory, 55
/// out of a cache), with SSE's multiplication without carries a third of that rate, without either
/// a thirtieth.
uint64_t crc64(std::span<const std::byte> bytes, uint64_t before = 0) noexcept;

/// Of runs of `run_bytes` each, which begin at base + begins[i], as one text in that order.
uint64_t crc64_of_runs(const std::byte* base, std::span<const uint64_t> begins, uint64_t run_bytes,
                       uint64_t before = 0) noexcept;

/// The ways to compute it, of which crc64() takes the last one that the processor has. All give the
/// same number.
enum class CrcWay : uint8_t { kTables, kClmul, kWideClmul };
inline constexpr CrcWay kAllCrcWays[] = {CrcWay::kTables, CrcWay::kClmul, CrcWay::kWideClmul};
bool has_crc_way(CrcWay way) noexcept;
/// `way` must be one that has_crc_way().
uint64_t crc64_by(CrcWay way, std::span<const std::byte> bytes, uint64_t before = 0) noexcept;

}  // namespace braid
