// A call of NCCL as a value, and which calls are taken over: pure functions of what NCCL requires
// to be equal on all ranks. docs/decisions/0006-nccl-drop-in.md says why nothing else may be looked
// at.
#pragma once

#include <array>
#include <optional>
#include <span>

#include "base/config.h"
#include "base/status.h"
#include "bindings/nccl/abi.h"
#include "bindings/nccl/core.h"

namespace braid::nccl {

/// The first five are those of braid_nccl_op.
enum class Op : int { kAllReduce, kAllGather, kReduceScatter, kBroadcast, kAllToAll, kSend, kRecv };
inline constexpr size_t kNumOps = 7;
const char* op_name(Op op);

struct Call {
  Op op = Op::kAllReduce;
  const void* send = nullptr;
  void* recv = nullptr;
  size_t count = 0;
  int dtype = 0;
  int redop = 0;
  int root = 0;  // the peer of kSend and kRecv
  NcclComm comm = nullptr;
  CudaStream stream = nullptr;
  bool is_of_messages = false;  // an all_to_all that the program made of sends and receives
};

/// Of two ranks, not of all.
inline bool is_exchange(const Call& call) { return call.op == Op::kSend || call.op == Op::kRecv; }

/// By what a call that may be taken over is.
enum class ChosenBy : int {
  kNothing,  // all are: BRAID_NCCL_OPS names operations
  kLimits,   // sizes that one machine's records gave: BRAID_TUNE=off
  kRace,     // what NCCL and braid took here (choice.h)
};

/// Of communicators over several nodes, whose all_gather and reduce_scatter alone may be taken over.
enum class Nodes : int { kOff, kAuto, kOn };

/// What the user wants taken over. Equal on all ranks of a communicator that is: the core compares.
struct Settings {
  bool is_on = true;
  std::array<bool, BRAID_NCCL_NUM_OPS> ops{true, true, true, true, true};
  uint64_t least_bytes = 0;
  uint64_t most_bytes = UINT64_MAX;
  bool is_grouped_exchange = false;  // BRAID_NCCL_GROUPED
  ChosenBy chosen_by = ChosenBy::kLimits;
  Nodes nodes = Nodes::kOff;
};
Result<Settings> settings_from(const Config& config);
/// Ranks whose settings differ have different ones, but for chance.
uint64_t fingerprint(const Settings& settings);

/// Whether a collective call among `num_ranks` may be taken over: without a race, is.
bool is_wanted(const Settings& settings, const Call& call, int num_ranks);

/// Whether such a call may also go over several nodes.
bool goes_over_nodes(const Settings& settings, const Call& call, int num_ranks);
/// The most ranks of a communicator that may be taken over.
int most_ranks(const Settings& settings);

/// Whether NCCL sums faster, where it has the switches for it and nobody has measured.
bool is_left_to_sharp(const Settings& settings, const Call& call);

/// All ranks' blocks of a collective call that is_wanted(), together.
uint64_t bytes_of(const Call& call, int num_ranks);

/// The memory of a collective call that other ranks reach into where it lies in symmetric windows, of
/// bytes_of(): where results land, or what a reduce_scatter's blocks are made from. NCCL requires it to
/// lie there on all ranks or on none, and at the same offset.
const void* shared_memory(const Call& call);

/// An all_to_all that overwrites what it sends.
inline bool is_all_to_all_in_place(const Call& call) {
  return call.op == Op::kAllToAll && call.send == call.recv;
}

/// `count` elements of a call.
uint64_t block_bytes(const Call& call);

/// The all-to-all that these calls of one group on one communicator are, on this rank: one kSend to
/// and one kRecv from every rank, of one size, on one stream, blocks one behind the other.
std::optional<Call> as_all_to_all(std::span<const Call> calls, int num_ranks);

}  // namespace braid::nccl
