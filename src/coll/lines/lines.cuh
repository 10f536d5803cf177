// The protocol of lines, for messages too large for packets, which spend half of NVLink on flags,
// and too small for direct kernels, whose flags follow the data by a fence and a trip.
//
// A warp writes a row of 512 bytes by one 16-byte store of every lane. Lanes 0 to 6 of each eight
// hold 16 bytes of data; the eighth holds 8 bytes of data and the call's epoch. So a row is four
// lines of 128 bytes, each with a flag of its own, and carries 480 bytes:
//
//   lane       0  1  2  3  4  5  6 | 7      | 8 ... 14  | 15     | ...  31
//   data at    0 16 32 48 64 80 96 | 448..  | 112 ...   | 456..  | ...  472..    of the row's 480
//
// The receiver's warp polls the row by the same pattern of 16-byte loads and takes it when all four
// flags are the call's. Everything else is as with packets (packets/packets.cuh): the areas' two
// halves, epochs, why nothing is lost and why nothing hangs hold word for word, "packet" read as
// "line", "thread" as "warp"; but a broadcast's root waits for the others' greetings itself. Flags
// are whole epochs, and lie on a grid of 128 bytes where nothing else is ever written: data is
// never read as a flag, and no number comes twice.
//
// Nothing tears: that is where lines ask more than packets. A line's flag tells of its other 120
//   bytes, so that all 128 must become visible together. They do over NVLink: the eight stores of
//   an aligned line are one instruction of one warp, leave the multiprocessor as one write of 128
//   bytes and are applied to the receiver's memory as one; and so is the load. No manual says so,
//   and PCIe does not keep it. NCCL's LL128 rests on the same ground on all of NVIDIA's GPUs since
//   Volta. Therefore lines are used only between GPUs whose links have native atomics, which is
//   NVLink. And it takes one instruction of the whole warp: lanes that went different ways before
//   (a flag's lane stores 8 bytes, others 16) load or store their parts one after another, and
//   lines were seen half old. So a warp comes together before it sends and before every look.
#pragma once

#include "coll/lines/lines.h"
#include "coll/lines/row.h"
#include "coll/packets/packets.cuh"
#include "coll/reduce/reduce_body.cuh"

namespace braid::coll::device {

inline constexpr int kRowsAtOnce = 4;  // of a warp, in flight together
inline constexpr uint32_t kWholeWarp = 0xffffffff;

__device__ __forceinline__ uint32_t lane_index() { return threadIdx.x % 32; }
__device__ __forceinline__ bool has_flag() { return has_flag(lane_index()); }
__device__ __forceinline__ uint32_t lane_data_at() { return lane_data_at(lane_index()); }
__device__ __forceinline__ uint32_t lane_data_bytes() { return lane_data_bytes(lane_index()); }

// A warp's rows, of all the rows of a slot.
__device__ __forceinline__ uint64_t first_row() {
  return (uint64_t{threadIdx.x / 32} * gridDim.x + blockIdx.x);
}
__device__ __forceinline__ uint64_t row_stride() {
  return uint64_t{gridDim.x} * (kLineThreads / 32);
}

/// A warp's next rows: `present` of them, row_stride() apart.
struct Rows {
  uint64_t first;
  int present;
};

/// Takes a warp's rows of a slot of `slot` rows through three stages, kRows at a time: send(rows),
/// then, while the next are sent, receive(rows), then finish(rows). A stage waits for what other
/// ranks do with the same rows in stages before it, so that none waits in a ring; and links are
/// busy both ways while what has arrived is taken. Stops when a stage says false.
template <int kRows, typename Send, typename Receive, typename Finish>
__device__ __forceinline__ void for_rows(uint64_t slot, const Send& send, const Receive& receive,
                                         const Finish& finish) {
  const uint64_t stride = row_stride(), first = first_row(), step = stride * kRows;
  if (first >= slot) return;
  const auto rows_at = [&](uint64_t at) {
    const uint64_t left = (slot - at + stride - 1) / stride;
    return Rows{at, left < kRows ? static_cast<int>(left) : kRows};
  };
#pragma unroll 1
  for (uint64_t at = first; at < slot + 2 * step; at += step) {
    if (at < slot) send(rows_at(at));
    if (at >= first + step && at - step < slot && !receive(rows_at(at - step))) return;
    if (at >= first + 2 * step && !finish(rows_at(at - 2 * step))) return;
  }
}

/// For a finish() of nothing.
struct Nothing {
  __device__ __forceinline__ bool operator()(const Rows&) const { return true; }
};

// ---- a lane's bytes in an array ----

static __device__ __noinline__ Vector load_few(const uint8_t* from, uint32_t count_bytes) {
  Vector v{};
#pragma unroll 1
  for (uint32_t k = 0; k < count_bytes; ++k)
    v.words[k / 4] |= static_cast<uint32_t>(from[k]) << (8 * (k % 4));
  return v;
}

static __device__ __noinline__ void store_few(uint8_t* to, Vector v, uint32_t count_bytes) {
#pragma unroll 1
  for (uint32_t k = 0; k < count_bytes; ++k)
    to[k] = static_cast<uint8_t>(v.words[k / 4] >> (8 * (k % 4)));
}

/// Part of an array, cut into rows.
template <typename Byte>
struct ArrayPart {
  Byte* base;
  uint64_t bytes;

  /// How many bytes of this lane's part of the row are there.
  __device__ __forceinline__ uint32_t present(uint64_t at) const {
    if (at >= bytes) return 0;
    return static_cast<uint32_t>(min(bytes - at, uint64_t{lane_data_bytes()}));
  }
  /// All of this lane's part is there. The lane of a slice's last flag asks for 8 bytes, not for
  /// 16: by single bytes they cost an all-reduce in two shots 7 us (8 H200, 256 KiB).
  __device__ __forceinline__ bool is_whole(uint64_t at) const {
    return at + lane_data_bytes() <= bytes && reinterpret_cast<uint64_t>(base) % kVectorBytes == 0;
  }
};

/// This lane's part of row `row`, then zeros.
__device__ __forceinline__ Vector load_lane(const ArrayPart<const char>& from, uint64_t row) {
  const uint64_t at = row * kRowDataBytes + lane_data_at();
  if (!from.is_whole(at))
    return load_few(reinterpret_cast<const uint8_t*>(from.base) + at, from.present(at));
  if (!has_flag()) return load_vector(from.base + at);
  Vector v{};
  asm volatile("ld.global.v2.u32 {%0, %1}, [%2];"
               : "=r"(v.words[0]), "=r"(v.words[1])
               : "l"(from.base + at));
  return v;
}

__device__ __forceinline__ void store_lane(const ArrayPart<char>& to, uint64_t row,
                                           const Vector& v) {
  const uint64_t at = row * kRowDataBytes + lane_data_at();
  if (!to.is_whole(at))
    return store_few(reinterpret_cast<uint8_t*>(to.base) + at, v, to.present(at));
  if (!has_flag()) return store_vector(to.base + at, v);
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to.base + at), "r"(v.words[0]),
               "r"(v.words[1])
               : "memory");
}

// ---- rows in an area ----

/// This lane's part of row `row` of the half in use at rank `at`.
__device__ __forceinline__ char* row_at(const BlockCall& call, int at, uint64_t row) {
  return reinterpret_cast<char*>(call.half_of(at)) + row * kRowBytes + lane_index() * 16;
}

__device__ __forceinline__ void send_row(const BlockCall& call, char* to, const Vector& v) {
  const uint32_t third = has_flag() ? static_cast<uint32_t>(call.epoch) : v.words[2];
  const uint32_t fourth = has_flag() ? static_cast<uint32_t>(call.epoch >> 32) : v.words[3];
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.words[0]),
               "r"(v.words[1]), "r"(third), "r"(fourth)
               : "memory");
}

__device__ __forceinline__ Vector look_at_row(const char* from) {
  Vector v;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.words[0]), "=r"(v.words[1]), "=r"(v.words[2]), "=r"(v.words[3])
               : "l"(from)
               : "memory");
  return v;
}

__device__ __forceinline__ bool has_arrived(const BlockCall& call, const Vector& v) {
  return !has_flag() || (v.words[2] == static_cast<uint32_t>(call.epoch) &&
                         v.words[3] == static_cast<uint32_t>(call.epoch >> 32));
}

/// An earlier wait of this comm failed; all lanes say the same.
__device__ __forceinline__ bool warp_sees_failure(const Before& before) {
  return __any_sync(kWholeWarp, before.has_failed ? 1 : 0) != 0;
}

/// A warp's wait: all lanes together, the first tells the host.
struct WarpPatience {
  Patience of_first;

  __device__ __forceinline__ bool holds(const BlockCall& call, int peer, uint32_t seen) {
    const bool goes_on = lane_index() != 0 || of_first.holds(call, peer, seen);
    return __shfl_sync(kWholeWarp, goes_on ? 1 : 0, 0) != 0;
  }
};

/// Waits for `present` rows from `peer`, the first at `from` (this lane's part), `stride_bytes`
/// apart. False: gave up.
template <int kRows>
__device__ __forceinline__ bool await_rows(const BlockCall& call, const char* from,
                                           uint64_t stride_bytes, int present, int peer,
                                           Vector (&data)[kRows]) {
  for (WarpPatience patience;;) {
    __syncwarp();
    bool ok = true;
    uint32_t seen = 0;
#pragma unroll
    for (int u = 0; u < kRows; ++u)
      if (u < present) data[u] = look_at_row(from + static_cast<uint64_t>(u) * stride_bytes);
#pragma unroll
    for (int u = 0; u < kRows; ++u)
      if (u < present) ok = ok && has_arrived(call, data[u]);
    if (__all_sync(kWholeWarp, ok ? 1 : 0) != 0) return true;
    if (has_flag()) seen = data[0].words[2];
    if (!patience.holds(call, peer, __shfl_sync(kWholeWarp, seen, 7))) return false;
  }
}

template <int kRows>
__device__ __forceinline__ void load_rows(const ArrayPart<const char>& from, const Rows& rows,
                                          Vector (&data)[kRows]) {
#pragma unroll
  for (int u = 0; u < kRows; ++u)
    if (u < rows.present)
      data[u] = load_lane(from, rows.first + static_cast<uint64_t>(u) * row_stride());
}

template <int kRows>
__device__ __forceinline__ void store_rows(const ArrayPart<char>& to, const Rows& rows,
                                           const Vector (&data)[kRows]) {
#pragma unroll
  for (int u = 0; u < kRows; ++u)
    if (u < rows.present)
      store_lane(to, rows.first + static_cast<uint64_t>(u) * row_stride(), data[u]);
}

/// To one rank's half, into the slot that begins with row `slot_begin`.
template <int kRows>
__device__ __forceinline__ void send_rows(const BlockCall& call, int to, uint64_t slot_begin,
                                          const Rows& rows, const Vector (&data)[kRows]) {
  char* const at = row_at(call, to, slot_begin + rows.first);
  __syncwarp();
#pragma unroll
  for (int u = 0; u < kRows; ++u)
    if (u < rows.present)
      send_row(call, at + static_cast<uint64_t>(u) * row_stride() * kRowBytes, data[u]);
}

/// From this rank's half. False: gave up.
template <int kRows>
__device__ __forceinline__ bool receive_rows(const BlockCall& call, int from, uint64_t slot_begin,
                                             const Rows& rows, Vector (&data)[kRows]) {
  return await_rows(call, row_at(call, call.rank(), slot_begin + rows.first),
                    row_stride() * kRowBytes, rows.present, from, data);
}

}  // namespace braid::coll::device
