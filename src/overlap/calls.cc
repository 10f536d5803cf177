// Enqueues a call of the three operations on what workspace.h says lies where.
//
// A call begins behind a barrier of all ranks, so nobody writes where another still reads the call
// before, and its signature says whether all mean the same.
#include "overlap/calls.h"

#include <algorithm>
#include <array>
#include <span>

#include "overlap/workspace.h"

namespace braid::overlap {
namespace {

constexpr int kChannel = 0;  // of barriers, as the collectives'
uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15;
  return hash ^ (hash >> 29);
}

uint64_t signature_of(Call call, const Gemm& gemm, const Choice& choice,
                      const comm::SymmetricAddress& landing) {
  constexpr uint64_t kOverlap = 3;  // where collectives begin with 1 or 2
  uint64_t hash = kOverlap;
  for (const int32_t value :
       {static_cast<int32_t>(call), static_cast<int32_t>(gemm.dtype), gemm.shard_rows, gemm.columns,
        gemm.depth, static_cast<int32_t>(choice.form), choice.band, choice.piece_rows,
        static_cast<int32_t>(choice.splits)})
    hash = mix(hash, static_cast<uint64_t>(value));
  hash = mix(hash, landing.number);
  return mix(hash, landing.offset_bytes);
}

/// One call under way: ends on the device whatever happens.
class Enqueued {
 public:
  Enqueued(comm::Device& device, Launcher& launcher, const comm::SymmetricAddress& landing,
           Call call, const Gemm& gemm, const Choice& choice, sys::Stream stream)
      : device_(device),
        launcher_(launcher),
        landing_(landing),
        call_(call),
        gemm_(gemm),
        choice_(choice),
        layout_(call, gemm, choice),
        stream_(stream) {}
  ~Enqueued() {
    if (is_open_) (void)device_.end(stream_);
  }
  Enqueued(const Enqueued&) = delete;
  Enqueued& operator=(const Enqueued&) = delete;

  Status run(sys::DevicePtr c) {
    device_.order().expect_call();
    BRAID_RETURN_IF_ERROR(device_.begin(stream_));
    is_open_ = true;
    const uint64_t signature = signature_of(call_, gemm_, choice_, landing_);
    BRAID_RETURN_IF_ERROR(device_.barriers().all(stream_, kChannel, signature));
    BRAID_RETURN_IF_ERROR(
        launcher_.count(here(0), here(kEpochsAt), static_cast<uint32_t>(layout_.flags_of_one / 8),
                        here(kFinishedAt), (kSummedAt - kFinishedAt) / 4, stream_));
    BRAID_RETURN_IF_ERROR(call_ == Call::kAgGemm ? gather(c) : reduce(c));
    for (const sys::Stream forked : std::span(pushes_).first(num_forked_))
      BRAID_RETURN_IF_ERROR(device_.order().after(stream_, forked));
    if (call_ == Call::kGemmAr) BRAID_RETURN_IF_ERROR(take_out(c, signature));
    is_open_ = false;
    return device_.end(stream_);
  }

 private:
  uint64_t rank() const { return static_cast<uint64_t>(gemm_.rank); }
  uint64_t ranks() const { return static_cast<uint64_t>(gemm_.ranks); }
  sys::DevicePtr at(uint64_t rank, uint64_t offset) const {
    return landing_.at(static_cast<int>(rank)) + offset;
  }
  sys::DevicePtr here(uint64_t offset) const { return at(rank(), offset); }
  sys::Cuda& cuda() { return device_.cuda(); }
  device::Watch watch() const {
    const nvlink::Team& team = device_.team();
    return {team.rank, team.timeout_ns, team.fault, team.must_abort, team.has_failed};
  }
  /// The copies' streams, from what the caller's holds now.
  Status fork(size_t count) {
    pushes_ = {device_.links().base().stream(), device_.order().side(comm::CallOrder::kCopies)};
    for (num_forked_ = 0; num_forked_ < count; ++num_forked_)
      BRAID_RETURN_IF_ERROR(device_.order().after(pushes_[num_forked_], stream_));
    return {};
  }
  template <typename Each>
  Status each_peer(const Each& each) const {
    for (uint64_t step = 1; step < ranks(); ++step)
      BRAID_RETURN_IF_ERROR(each((rank() + step) % ranks()));
    return {};
  }

  Sums sums() const {
    if (!choice_.splits) return {};
    return {here(layout_.sums_at), here(kSummedAt)};
  }

  // ---- all-gather ----

  /// A shard, piece by piece, and after each of them its flag. A copy is not told of before its
  /// bytes: both are of one stream.
  Status push_shard(uint64_t to) {
    const auto rows = static_cast<uint64_t>(gemm_.shard_rows);
    const auto of_piece = static_cast<uint64_t>(piece_rows(gemm_, choice_));
    const uint64_t row_bytes = 2 * static_cast<uint64_t>(gemm_.depth);
    for (uint64_t piece = 0; piece * of_piece < rows; ++piece) {
      const uint64_t begin = piece * of_piece * row_bytes;
      const uint64_t bytes = std::min(of_piece * row_bytes, rows * row_bytes - begin);
      BRAID_RETURN_IF_ERROR(
          cuda().copy_on_device(at(to, layout_.data_at + rank() * layout_.part_bytes + begin),
                                gemm_.a + begin, bytes, pushes_[0]));
      BRAID_RETURN_IF_ERROR(cuda().copy_on_device(
          at(to, layout_.flags_at + rank() * layout_.flags_of_one + 8 * piece), here(kEpochsAt), 8,
          pushes_[0]));
    }
    return {};
  }
  Status gather(sys::DevicePtr c) {
    // The own shard joins the others, on the caller's stream: it is there when the kernel begins.
    BRAID_RETURN_IF_ERROR(fork(1));
    BRAID_RETURN_IF_ERROR(each_peer([this](uint64_t to) { return push_shard(to); }));
    BRAID_RETURN_IF_ERROR(cuda().copy_on_device(here(layout_.data_at + rank() * layout_.part_bytes),
                                                gemm_.a, layout_.part_bytes, stream_));
    BRAID_RETURN_IF_ERROR(
        cuda().copy_on_device(here(layout_.flags_at + rank() * layout_.flags_of_one),
                              here(kEpochsAt), layout_.flags_of_one, stream_));
    Gemm all = gemm_;
    all.a = here(layout_.data_at);
    return launcher_.gather(all, choice_,
                            {c, here(layout_.flags_at), piece_rows(gemm_, choice_), sums()},
                            here(0), watch(), stream_);
  }

  // ---- reductions ----

  Parted parted(sys::DevicePtr c) const {
    Parted made;
    for (uint64_t r = 0; r < ranks(); ++r) {
      made.parts[r] = at(r, layout_.data_at);
      made.told[r] = at(r, layout_.flags_at);
    }
    made.num_slots = kOneSlot;
    made.c[0] = c;
    made.outbox = here(layout_.outbox_at);
    made.sums = sums();
    if (call_ != Call::kGemmAr) return made;
    made.is_whole = true;
    made.num_c = gemm_.ranks;
    for (uint64_t step = 0; step < ranks(); ++step)
      made.c[step] = at((rank() + step) % ranks(), layout_.c_at);
    return made;
  }
  /// Takes a batch of the outbox to its owner when it is whole, and tells.
  Status take(const Push& push, sys::Stream stream) {
    const auto to = static_cast<uint64_t>(push.shard);
    const auto first = static_cast<uint64_t>(push.first),
               halves = static_cast<uint64_t>(push.halves);
    const uint64_t of_half = layout_.part_bytes / (layout_.flags_of_one / 8);
    BRAID_RETURN_IF_ERROR(
        cuda().wait_value(stream, here(kFinishedAt + 4 * static_cast<uint64_t>(push.counter)),
                          static_cast<uint32_t>(halves)));
    BRAID_RETURN_IF_ERROR(cuda().copy_on_device(
        at(to, layout_.data_at + rank() * layout_.part_bytes + first * of_half),
        here(layout_.outbox_at + to * layout_.part_bytes + first * of_half), halves * of_half,
        stream));
    return cuda().copy_on_device(
        at(to, layout_.flags_at + rank() * layout_.flags_of_one + 8 * first), here(kEpochsAt),
        8 * halves, stream);
  }
  Status reduce(sys::DevicePtr c) {
    Parted where = parted(c);
    if (call_ == Call::kGemmArExchange)
      return launcher_.exchange(gemm_, choice_, where, here(0), watch(), stream_);
    // A graph cannot wait for a word; there the kernel pushes.
    const bool by_engines = choice_.by_engines && !device_.order().is_captured() && ranks() > 1;
    if (by_engines) {
      where.finished = here(kFinishedAt);
      BRAID_RETURN_IF_ERROR(fork(pushes_.size()));
    }
    // The waits come behind the launch: one that failed would leave them for good.
    BRAID_RETURN_IF_ERROR(launcher_.scatter(gemm_, choice_, where, here(0), watch(), stream_));
    if (!by_engines) return {};
    // By turns, so that one stream has seen its counter while the other's copy is under way.
    size_t turn = 0;
    for (const Push& push : pushes_of(gemm_, choice_))
      BRAID_RETURN_IF_ERROR(take(push, pushes_[turn++ % pushes_.size()]));
    return {};
  }
  /// All owners have stored their shards everywhere: ours is whole.
  Status take_out(sys::DevicePtr c, uint64_t signature) {
    BRAID_RETURN_IF_ERROR(device_.barriers().all(stream_, kChannel, mix(signature, 1)));
    const uint64_t bytes = 2 * ranks() * static_cast<uint64_t>(gemm_.shard_rows) *
                           static_cast<uint64_t>(gemm_.columns);
    return cuda().copy_on_device(c, here(layout_.c_at), bytes, stream_);
  }

  comm::Device& device_;
  Launcher& launcher_;
  const comm::SymmetricAddress landing_;
  const Call call_;
  const Gemm gemm_;
  const Choice choice_;
  const WorkspaceLayout layout_;
  const sys::Stream stream_;
  std::array<sys::Stream, 2> pushes_{};
  size_t num_forked_ = 0;
  bool is_open_ = false;
};

}  // namespace

uint64_t workspace_bytes(Call call, const Gemm& gemm, const Choice& choice) {
  return WorkspaceLayout(call, gemm, choice).end;
}

int32_t num_blocks(const comm::Device& device, const Launcher& launcher) {
  const comm::GpuFacts& gpus = device.gpus();
  return gpus.are_shared ? static_cast<int32_t>(gpus.shared_blocks()) : launcher.num_sms();
}

Status enqueue(Call call, comm::Device& device, Launcher& launcher, const Workspace& workspace,
               const Gemm& gemm, const Choice& choice, sys::DevicePtr c, sys::Stream stream) {
  Gemm mine = gemm;
  mine.ranks = device.size();
  mine.rank = device.rank();
  BRAID_RETURN_IF_ERROR(check(mine));
  if (c == 0 || c % 16 != 0)
    return invalid_argument("overlap: an output at {:#x}; a multiple of 16", c);
  const uint64_t flag_bytes = WorkspaceLayout(call, mine, choice).flags_of_one;
  if (flag_bytes > kFlagRoom)
    return invalid_argument("overlap: {} bytes of flags for one shard; {} at the most", flag_bytes,
                            kFlagRoom);
  const uint64_t needed = workspace_bytes(call, mine, choice);
  if (needed > workspace.bytes)
    return invalid_argument("overlap: a workspace of {} bytes; this call needs {}", workspace.bytes,
                            needed);
  Result<comm::SymmetricAddress> landing =
      device.registrations().find(workspace.at, workspace.bytes);
  BRAID_RETURN_IF_ERROR(landing.status());
  if (landing->window == nullptr)
    return invalid_argument("overlap: the workspace at {:#x} is not registered with the comm",
                            workspace.at);
  Choice taken = choice;
  taken.batches = std::clamp(choice.batches, 1, kMostBatches);
  if (choice.batch_tiles > 0) {
    const int32_t all = schedule_for(op_of(call), mine, choice).tiles_per_shard();
    taken.batch_tiles = std::max(choice.batch_tiles, divided_up(all, kMostBatches));
  }
  if (taken.num_blocks == 0) taken.num_blocks = num_blocks(device, launcher);
  return Enqueued(device, launcher, *landing, call, mine, taken, stream).run(c);
}

}  // namespace braid::overlap
