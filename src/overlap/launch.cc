#include "overlap/launch.h"

#include <algorithm>
#include <bit>
#include <string>

#include "overlap/count.h"
#include "overlap/fatbins.h"
#include "sys/cuda/launch.h"

namespace braid::overlap {
namespace {

constexpr uint32_t kMostBoxRows = 256;

std::span<const std::byte> fatbin_of(Op op) {
  switch (op) {
    case Op::kGather: return kernels::gather_fatbin();
    case Op::kScatter: return kernels::scatter_fatbin();
    case Op::kExchange: break;
  }
  return kernels::exchange_fatbin();
}

const char* name_of(Op op) {
  switch (op) {
    case Op::kGather: return "gather";
    case Op::kScatter: return "scatter";
    case Op::kExchange: break;
  }
  return "exchange";
}

/// Of the kernel: across is the schedule's doing alone.
const char* name_of(Form form) {
  switch (form) {
    case Form::k256Across:
    case Form::k256Below: return "256_below";
    case Form::k256Beside: return "256_beside";
    case Form::k128Beside: break;
  }
  return "128_beside";
}

std::string entry_of(Op op, Dtype dtype, bool is_kn, Form form) {
  return fmt::format("braid_{}_{}{}_{}", name_of(op), dtype == Dtype::kFloat16 ? "fp16" : "bf16",
                     is_kn ? "_kn" : "", name_of(form));
}

/// Of [shards][rows][columns], in tiles of `box_rows` rows of 64 elements.
sys::TensorLayout layout_of(const Gemm& gemm, sys::DevicePtr at, std::array<int32_t, 3> extent,
                            int32_t box_rows) {
  sys::TensorLayout layout;
  layout.at = at;
  layout.element = gemm.dtype == Dtype::kFloat16 ? sys::TensorLayout::Element::kFp16
                                                 : sys::TensorLayout::Element::kBf16;
  const auto columns = static_cast<uint64_t>(extent[2]), rows = static_cast<uint64_t>(extent[1]);
  layout.extent = {columns, rows, static_cast<uint64_t>(extent[0])};
  layout.stride_bytes = {columns * 2, rows * columns * 2};
  layout.box = {kDepth, std::min(static_cast<uint32_t>(box_rows), kMostBoxRows), 1};
  return layout;
}

Result<device::TensorMap> map_of(sys::Cuda& cuda, const sys::TensorLayout& layout) {
  Result<sys::TensorMap> map = cuda.tensor_map(layout);
  BRAID_RETURN_IF_ERROR(map.status());
  return std::bit_cast<device::TensorMap>(*map);
}

}  // namespace

Status check(const Gemm& gemm) {
  if (gemm.dtype != Dtype::kBfloat16 && gemm.dtype != Dtype::kFloat16)
    return invalid_argument("overlap: {} given; bfloat16 or float16", dtype_name(gemm.dtype));
  if (gemm.ranks < 1 || gemm.ranks > kMostRanks || gemm.rank < 0 || gemm.rank >= gemm.ranks)
    return invalid_argument("overlap: rank {} of {}; 1 to {} ranks", gemm.rank, gemm.ranks,
                            kMostRanks);
  if (gemm.shard_rows < 1 || gemm.columns < 8 || gemm.depth < 8)
    return invalid_argument("overlap: shards of {} rows, {} columns, depth {}; 1, 8 and 8 or more",
                            gemm.shard_rows, gemm.columns, gemm.depth);
  if (gemm.columns % 8 != 0 || gemm.depth % 8 != 0)
    return invalid_argument("overlap: {} columns, depth {}; multiples of 8", gemm.columns,
                            gemm.depth);
  if (gemm.a % 16 != 0 || gemm.w % 16 != 0 || gemm.bias % 4 != 0)
    return invalid_argument("overlap: a matrix at {:#x}, {:#x}; multiples of 16", gemm.a, gemm.w);
  return {};
}

Schedule schedule_for(Op op, const Gemm& gemm, const Choice& choice) {
  const Shape shape = shape_of(choice.form);
  const Extent extent{gemm.ranks, gemm.rank, gemm.shard_rows, gemm.columns};
  switch (op) {
    case Op::kGather: return gather_schedule(extent, shape, choice.band, choice.head);
    case Op::kScatter: return scatter_schedule(extent, shape, choice.band);
    case Op::kExchange: break;
  }
  return exchange_schedule(gemm.shard_rows, gemm.columns, shape, choice.band);
}

uint64_t room_bytes(Op op, const Gemm& gemm, const Choice& choice, uint32_t num_slots) {
  const auto of_one = static_cast<uint64_t>(staged_bytes(schedule_for(op, gemm, choice)));
  return num_slots * static_cast<uint64_t>(gemm.ranks) * of_one;
}

uint64_t flag_bytes(Op op, const Gemm& gemm, const Choice& choice) {
  const auto tiles = static_cast<uint64_t>(schedule_for(op, gemm, choice).tiles_per_shard());
  return static_cast<uint64_t>(gemm.ranks) * 2 * tiles * sizeof(uint64_t);
}

std::vector<Push> pushes_of(const Schedule& schedule, const BatchShape& batches, int32_t rank) {
  const int32_t all = schedule.tiles_per_shard();
  struct Made {
    int32_t unit;
    Push push;
  };
  std::vector<Made> made;
  for (int32_t shard = 0; shard < schedule.ranks; ++shard)
    for (int32_t batch = 0; batch < batches.per_shard && shard != rank; ++batch) {
      const int32_t first = batch * batches.tiles, end = std::min(first + batches.tiles, all);
      made.push_back({schedule.unit_of(shard, end - 1),
                      {shard, shard * batches.per_shard + batch, 2 * first, 2 * (end - first)}});
    }
  std::stable_sort(made.begin(), made.end(),
                   [](const Made& a, const Made& b) { return a.unit < b.unit; });
  std::vector<Push> pushes;
  for (const Made& each : made) pushes.push_back(each.push);
  return pushes;
}

std::vector<Push> pushes_of(const Gemm& gemm, const Choice& choice) {
  const Schedule schedule = schedule_for(Op::kScatter, gemm, choice);
  return pushes_of(schedule, batches_of(schedule, choice.batches, choice.batch_tiles), gemm.rank);
}

int32_t num_counters(const Gemm& gemm, const Choice& choice) {
  const Schedule schedule = schedule_for(Op::kScatter, gemm, choice);
  return gemm.ranks * batches_of(schedule, choice.batches, choice.batch_tiles).per_shard;
}

Result<Launcher> Launcher::create(sys::Cuda& cuda, int ordinal) {
  if (kernels::gather_fatbin().empty())
    return unavailable("overlap: this build has no kernels (it was made without nvcc)");
  Result<sys::DeviceFacts> facts = cuda.device(ordinal);
  BRAID_RETURN_IF_ERROR(facts.status());
  if (!runs_on(facts->compute_major, facts->compute_minor))
    return unsupported("overlap: gpu {} is of compute capability {}.{}; the kernels are for 9.0",
                       ordinal, facts->compute_major, facts->compute_minor);
  return Launcher(cuda, ordinal, facts->num_sms);
}

Status Launcher::preload() {
  BRAID_RETURN_IF_ERROR(loaded_->find(kernels::count_fatbin(), "braid_count", 0).status());
  for (const Op op : {Op::kGather, Op::kScatter, Op::kExchange})
    for (const Form form : kAllForms)
      for (const Dtype dtype : {Dtype::kBfloat16, Dtype::kFloat16})
        for (const bool is_kn : {false, true}) {
          if (!has_kernel(op, form)) continue;
          Gemm gemm;
          gemm.dtype = dtype;
          gemm.is_kn = is_kn;
          BRAID_RETURN_IF_ERROR(kernel(op, gemm, form).status());
        }
  return {};
}

Result<sys::Kernel> Launcher::kernel(Op op, const Gemm& gemm, Form form) const {
  if (!has_kernel(op, form))
    return invalid_argument("overlap: {} has no kernel with tiles {}", name_of(op), name_of(form));
  return loaded_->find(fatbin_of(op), entry_of(op, gemm.dtype, gemm.is_kn, form).c_str(),
                       static_cast<uint32_t>(shared_bytes(shape_of(form))));
}

Result<GemmArgs> Launcher::common(Op op, const Gemm& gemm, const Choice& choice,
                                  sys::DevicePtr epoch, const device::Watch& watch) const {
  BRAID_RETURN_IF_ERROR(check(gemm));
  if (choice.band < 1 || choice.head < 0)
    return invalid_argument("overlap: a band of {} rows behind {}", choice.band, choice.head);
  GemmArgs args{};
  const Shape shape = shape_of(choice.form);
  if (!fits({gemm.ranks, gemm.rank, gemm.shard_rows, gemm.columns}, shape))
    return invalid_argument(
        "overlap: tiles across shards of {} rows, of {} ranks; at most {} rows and an even number",
        gemm.shard_rows, gemm.ranks, shape.tile_m);
  args.schedule = schedule_for(op, gemm, choice);
  const int32_t shards = op == Op::kExchange ? 1 : gemm.ranks;
  args.shard_rows = gemm.shard_rows;
  Result<device::TensorMap> a =
      map_of(*cuda_, layout_of(gemm, gemm.a, {shards, args.shard_rows, gemm.depth},
                               shape.tile_m / shape.cluster_n));
  BRAID_RETURN_IF_ERROR(a.status());
  Result<device::TensorMap> w =
      map_of(*cuda_, gemm.is_kn ? layout_of(gemm, gemm.w, {1, gemm.depth, gemm.columns}, kDepth)
                                : layout_of(gemm, gemm.w, {1, gemm.columns, gemm.depth},
                                            shape.tile_n / shape.cluster_m));
  BRAID_RETURN_IF_ERROR(w.status());
  args.a = *a;
  args.w = *w;
  args.num_k = divided_up(gemm.depth, kDepth);
  args.columns = gemm.columns;
  args.bias = sys::pointer_to<const void>(gemm.bias);
  args.watch = watch;
  args.epoch = sys::pointer_to<const uint64_t>(epoch);
  args.num_ranks = gemm.ranks;
  args.rank = gemm.rank;
  args.part_bytes = staged_bytes(args.schedule);
  return args;
}

Status Launcher::add_output(GemmArgs& args, const Gemm& gemm, sys::DevicePtr c,
                            int32_t shards) const {
  if (c % 16 != 0) return invalid_argument("overlap: an output at {:#x}; a multiple of 16", c);
  Result<device::TensorMap> map =
      map_of(*cuda_, layout_of(gemm, c, {shards, args.shard_rows, gemm.columns}, kPartRows));
  BRAID_RETURN_IF_ERROR(map.status());
  args.c[args.num_c++] = *map;
  return {};
}

Status Launcher::add_parts(GemmArgs& args, const Gemm& gemm, const Choice& choice,
                           const Parted& parted) const {
  if (parted.num_slots < 1) return invalid_argument("overlap: no slots for parts");
  args.num_slots = parted.num_slots;
  args.outbox = sys::pointer_to<char>(parted.outbox);
  args.batches = parted.finished != 0
                     ? batches_of(args.schedule, choice.batches, choice.batch_tiles)
                     : batches_of(args.schedule, 1);
  args.finished = sys::pointer_to<uint32_t>(parted.finished);
  for (int32_t r = 0; r < gemm.ranks; ++r) {
    args.parts_at[r] = sys::pointer_to<char>(parted.parts[static_cast<size_t>(r)]);
    args.told_at[r] = sys::pointer_to<uint64_t>(parted.told[static_cast<size_t>(r)]);
  }
  return {};
}

Status Launcher::launch(Op op, const Gemm& gemm, const Choice& choice, GemmArgs& args,
                        const Sums& sums, sys::Stream stream) const {
  Result<sys::Kernel> found = kernel(op, gemm, choice.form);
  BRAID_RETURN_IF_ERROR(found.status());
  const Shape& shape = args.schedule.shape;
  const int32_t cluster = shape.cluster_m * shape.cluster_n;
  const int32_t most = choice.num_blocks > 0 ? choice.num_blocks : num_sms_;
  const int32_t clusters =
      std::max(std::min(most / cluster, args.schedule.num_units()), int32_t{1});
  const bool splits = choice.splits && sums.at != 0 && op != Op::kExchange;
  // Units that are cut need more clusters than there are of them.
  const int32_t wide = splits ? std::max(most / cluster, int32_t{1}) : clusters;
  args.split =
      split_of(args.schedule.num_units(), wide, args.num_k, splits ? kMostBlocks / cluster : 0);
  if (op == Op::kScatter && !waits_last(args.schedule, args.split))
    args.split = split_of(args.schedule.num_units(), clusters, args.num_k, 0);
  if (op == Op::kScatter && !waits_last(args.schedule, args.split))
    return invalid_argument("overlap: {} columns of tiles across shards, {} clusters of blocks",
                            args.schedule.unit_columns, clusters);
  args.sums = sys::pointer_to<char>(sums.at);
  args.summed = sys::pointer_to<uint64_t>(sums.told);
  const int32_t launched = args.split.sharers > 0 ? wide : clusters;
  return sys::launch(*cuda_, *found,
                     {static_cast<uint32_t>(launched * cluster), kThreads,
                      static_cast<uint32_t>(shared_bytes(shape))},
                     stream, args);
}

Status Launcher::gather(const Gemm& gemm, const Choice& choice, const Gathered& gathered,
                        sys::DevicePtr epoch, const device::Watch& watch, sys::Stream stream) {
  Result<GemmArgs> args = common(Op::kGather, gemm, choice, epoch, watch);
  BRAID_RETURN_IF_ERROR(args.status());
  if (gathered.arrived != 0 && gathered.piece_rows < 1)
    return invalid_argument("overlap: pieces of {} rows", gathered.piece_rows);
  args->arrived = sys::pointer_to<const uint64_t>(gathered.arrived);
  args->pieces = {std::max(gathered.piece_rows, 1),
                  divided_up(gemm.shard_rows, std::max(gathered.piece_rows, 1))};
  BRAID_RETURN_IF_ERROR(add_output(*args, gemm, gathered.c, gemm.ranks));
  return launch(Op::kGather, gemm, choice, *args, gathered.sums, stream);
}

Status Launcher::count(sys::DevicePtr epoch, sys::DevicePtr copies, uint32_t num_copies,
                       sys::DevicePtr counters, uint32_t num_counters, sys::Stream stream) const {
  Result<sys::Kernel> found = loaded_->find(kernels::count_fatbin(), "braid_count", 0);
  BRAID_RETURN_IF_ERROR(found.status());
  return sys::launch(*cuda_, *found, {1, kCountThreads}, stream,
                     CountArgs{sys::pointer_to<uint64_t>(epoch), sys::pointer_to<uint64_t>(copies),
                               num_copies, sys::pointer_to<uint32_t>(counters), num_counters});
}

Status Launcher::scatter(const Gemm& gemm, const Choice& choice, const Parted& parted,
                         sys::DevicePtr epoch, const device::Watch& watch, sys::Stream stream) {
  Result<GemmArgs> args = common(Op::kScatter, gemm, choice, epoch, watch);
  BRAID_RETURN_IF_ERROR(args.status());
  args->c_is_shard = parted.is_whole ? 0 : 1;
  for (int32_t i = 0; i < parted.num_c; ++i)
    BRAID_RETURN_IF_ERROR(add_output(*args, gemm, parted.c[static_cast<size_t>(i)],
                                     parted.is_whole ? gemm.ranks : 1));
  BRAID_RETURN_IF_ERROR(add_parts(*args, gemm, choice, parted));
  return launch(Op::kScatter, gemm, choice, *args, parted.sums, stream);
}

Status Launcher::exchange(const Gemm& gemm, const Choice& choice, const Parted& parted,
                          sys::DevicePtr epoch, const device::Watch& watch, sys::Stream stream) {
  Result<GemmArgs> args = common(Op::kExchange, gemm, choice, epoch, watch);
  BRAID_RETURN_IF_ERROR(args.status());
  BRAID_RETURN_IF_ERROR(add_output(*args, gemm, parted.c[0], 1));
  BRAID_RETURN_IF_ERROR(add_parts(*args, gemm, choice, parted));
  return launch(Op::kExchange, gemm, choice, *args, {}, stream);
}

}  // namespace braid::overlap
