// From matrices to a launch: checks, schedules, tensor maps. Nothing here waits or knows of a comm.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "device/fault.h"
#include "overlap/forms.h"
#include "sys/cuda/api.h"
#include "sys/cuda/loaded_kernels.h"

namespace braid::overlap {

/// C[rows, columns] = A[rows, depth] * W^T + bias on one rank, rows in `ranks` equal shards. All
/// matrices are dense, rows first, their addresses multiples of 16.
struct Gemm {
  Dtype dtype = Dtype::kBfloat16;  // or kFloat16; of all matrices and the bias
  bool is_kn = false;              // W is [depth, columns] instead of [columns, depth]
  int32_t ranks = 1, rank = 0;
  int32_t shard_rows = 0;          // of an exchange, which has no shards: all rows
  int32_t columns = 0, depth = 0;  // multiples of 8
  sys::DevicePtr a = 0, w = 0;
  sys::DevicePtr bias = 0;  // [columns], or 0
};

/// This GPU's memory for sums of tiles that blocks share (Choice::splits): sums_bytes(), and flags,
/// kSumFlagsBytes of zeros before the first call. 0: no tile is shared.
struct Sums {
  sys::DevicePtr at = 0, told = 0;
};
/// Of kGather. C is [rows, columns].
struct Gathered {
  sys::DevicePtr c = 0;
  sys::DevicePtr arrived = 0;  // 64-bit epochs, [rank][piece]; 0: all of A is here
  int32_t piece_rows = 0;      // of a piece
  Sums sums{};
};
/// Of kScatter and kExchange: each rank's parts (room_bytes()) and flags (flag_bytes()), as this
/// GPU addresses them, flags zero before the first call. Where the result goes: num_c addresses,
/// the own one first; each the own shard alone, or (is_whole) all rows.
struct Parted {
  std::array<sys::DevicePtr, kMostRanks> parts{}, told{};
  std::array<sys::DevicePtr, kMostRanks> c{};
  int32_t num_c = 1;
  bool is_whole = false;
  uint32_t num_slots = 2;     // room_bytes() is for so many; 1 where a barrier parts the calls
  sys::DevicePtr outbox = 0;  // of kScatter: room_bytes(.., 1) of this GPU's memory
  // Of kScatter: 32-bit counters by shard and batch, 0 before the call. Given, the kernel pushes
  // nothing: who waits for them (Cuda::wait_value) does, as pushes_of() says.
  sys::DevicePtr finished = 0;
  Sums sums{};
};
/// What copy engines take from the outbox when counter `counter` of Parted::finished has reached
/// `halves`, each a half tile: [first, first + halves) of the shard's, and flags alike.
struct Push {
  int32_t shard, counter;
  int32_t first, halves;
};

/// invalid_argument that names what no kernel takes.
Status check(const Gemm& gemm);
Schedule schedule_for(Op op, const Gemm& gemm, const Choice& choice);
/// Of the parts that one rank holds for others to fill, and of its flags.
uint64_t room_bytes(Op op, const Gemm& gemm, const Choice& choice, uint32_t num_slots = 2);
uint64_t flag_bytes(Op op, const Gemm& gemm, const Choice& choice);
/// Of kScatter: all batches for other ranks, as they are through.
std::vector<Push> pushes_of(const Schedule& schedule, const BatchShape& batches, int32_t rank);
std::vector<Push> pushes_of(const Gemm& gemm, const Choice& choice);
int32_t num_counters(const Gemm& gemm, const Choice& choice);

class Launcher {
 public:
  /// In the context of GPU `ordinal`, as every call. unsupported: the GPU has no such kernels;
  /// unavailable: this build has none.
  static Result<Launcher> create(sys::Cuda& cuda, int ordinal);
  /// Loads every kernel that launches may need: at its first launch it would wait for kernels that
  /// run, which may wait for this rank.
  Status preload();
  int num_sms() const { return num_sms_; }

  /// Begins a call: adds 1 to the epoch, writes it `num_copies` times to `copies`, from where copy
  /// engines take flags, and sets `num_counters` words at `counters` to 0.
  Status count(sys::DevicePtr epoch, sys::DevicePtr copies, uint32_t num_copies,
               sys::DevicePtr counters, uint32_t num_counters, sys::Stream stream) const;
  /// Enqueues one kernel. `epoch`: device memory with the call's number, 1 or more, when the kernel
  /// runs. Everything `watch` points at lives until it has run.
  Status gather(const Gemm& gemm, const Choice& choice, const Gathered& gathered,
                sys::DevicePtr epoch, const device::Watch& watch, sys::Stream stream);
  Status scatter(const Gemm& gemm, const Choice& choice, const Parted& parted, sys::DevicePtr epoch,
                 const device::Watch& watch, sys::Stream stream);
  Status exchange(const Gemm& gemm, const Choice& choice, const Parted& parted,
                  sys::DevicePtr epoch, const device::Watch& watch, sys::Stream stream);

 private:
  Launcher(sys::Cuda& cuda, int ordinal, int num_sms)
      : cuda_(&cuda), loaded_(sys::LoadedKernels::of(cuda, ordinal)), num_sms_(num_sms) {}
  Result<GemmArgs> common(Op op, const Gemm& gemm, const Choice& choice, sys::DevicePtr epoch,
                          const device::Watch& watch) const;
  Status add_parts(GemmArgs& args, const Gemm& gemm, const Choice& choice,
                   const Parted& parted) const;
  Status add_output(GemmArgs& args, const Gemm& gemm, sys::DevicePtr c, int32_t shards) const;
  Result<sys::Kernel> kernel(Op op, const Gemm& gemm, Form form) const;
  Status launch(Op op, const Gemm& gemm, const Choice& choice, GemmArgs& args, const Sums& sums,
                sys::Stream stream) const;

  sys::Cuda* cuda_;
  std::shared_ptr<sys::LoadedKernels> loaded_;
  int num_sms_;
};

}  // namespace braid::overlap
