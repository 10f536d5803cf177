// A normal dispatch and its combine, of all ranks: inputs, kernels, and what each must leave, by
// moe/reference.h.
#pragma once

#include <algorithm>
#include <array>
#include <memory>

#include "device/moe_report.h"
#include "moe/layout.h"

namespace braid::test {

struct NormalCase {
  moe::reference::Problem p;  // rows of `dtype`
  Dtype dtype = Dtype::kBfloat16;
  uint64_t side_bytes = 0;
  bool has_weights = true;
  int num_biases = 0;
  int spare_rows = 0;  // beyond those that come
  /// Of this follow, by rank: whether side rows begin, where they come from and where they go, at no
  /// address that bulk copies take; and how a dispatch is tried before it is finished.
  uint64_t oddities = 0;  // 0: none

  uint64_t side_shift(int r) const { return shift(4 * static_cast<uint64_t>(r)); }
  uint64_t out_side_shift(int r) const { return shift(4 * static_cast<uint64_t>(r) + 1); }
  enum class Trial { kNone, kInVain, kEnough };
  Trial trial(int r) const {
    if (oddities == 0) return Trial::kNone;
    return static_cast<Trial>(random_bits(oddities, 4 * static_cast<uint64_t>(r) + 2) % 3);
  }

  std::string name() const {
    return std::to_string(p.num_ranks()) + " ranks, " + std::to_string(p.num_experts) +
           " experts, top " + std::to_string(p.num_topk) + ", " + std::to_string(p.row_bytes) +
           " bytes a row of " + dtype_name(dtype) + ", side of " + std::to_string(side_bytes) +
           (has_weights ? ", weights" : "") + ", " + std::to_string(num_biases) + " biases" +
           (oddities != 0 ? ", oddities" : "");
  }

 private:
  uint64_t shift(uint64_t index) const {
    return oddities == 0 ? 0 : random_bits(oddities, index) % 2 * 4;
  }
};

class NormalRun {
 public:
  NormalRun(MoeRanks& ranks, const Kernels& kernels, const NormalCase& c, int num_blocks)
      : ranks_(ranks),
        c_(c),
        num_blocks_(static_cast<uint32_t>(num_blocks)),
        layout_(kernels.find("braid_moe_layout")),
        begin_(kernels.find("braid_moe_dispatch_begin")),
        finish_(kernels.find("braid_moe_dispatch_finish")),
        combine_(kernels.find(std::string("braid_moe_combine_") + type_name(c.dtype))) {
    if (!c_.has_weights)
      for (moe::reference::Tokens& each : c_.p.ranks) each.weights.clear();
    want_all();
    // Through registers as on a GPU without bulk copies, in bulk, and in bulk in many small pieces.
    if (ranks.stage_bytes() != 0)
      stage_bytes_ = std::array{0U, ranks.stage_bytes(), 3 * moe::gpu::kBulkUnit}[num_blocks_ % 3];
    for (int r = 0; r < ranks.size(); ++r) {
      ranks.use(r);
      for (cudaKernel_t kernel : {begin_, finish_})
        allow_shared_bytes(kernel, moe::gpu::kStagesOfBlock * ranks.stage_bytes());
      open(r);
    }
  }
  /// Whether a copy fits into a region of the ranks' windows.
  bool fits() const { return dispatch_rounds().tokens > 0 && combine_rounds().tokens > 0; }
  int num_rounds() const {
    int32_t most = 0;
    for (const moe::reference::Tokens& each : c_.p.ranks) most = std::max(most, each.count);
    return dispatch_rounds().count(most);
  }

  void layout(int r) {
    const Of& of = of_[static_cast<size_t>(r)];
    moe::gpu::LayoutArgs args{};
    args.ids = of.ids.as<int64_t>();
    args.num_tokens = tokens(r).count;
    args.num_topk = c_.p.num_topk;
    args.num_ranks = ranks_.size();
    args.num_experts = c_.p.num_experts;
    args.per_rank = of.per_rank.as<int32_t>();
    args.per_expert = of.per_expert.as<int32_t>();
    args.is_in_rank = of.is_in.as<bool>();
    args.watch = ranks_.team_of(r).watch;
    enqueue(r, layout_, args, 1);
  }
  void begin(int r) { enqueue(r, begin_, dispatch_args(r), num_blocks_); }
  void finish(int r) { enqueue(r, finish_, dispatch_args(r), num_blocks_); }
  /// With room for one row fewer than come.
  void finish_in_too_little(int r, bool is_trial = false) {
    moe::gpu::DispatchArgs args = dispatch_args(r);
    args.room_rows = all_rows_but_one(r);
    args.is_trial = is_trial;
    enqueue(r, finish_, args, num_blocks_);
  }
  /// A trial that has room.
  void try_to_finish(int r) {
    moe::gpu::DispatchArgs args = dispatch_args(r);
    args.is_trial = true;
    enqueue(r, finish_, args, num_blocks_);
  }
  void combine(int r) { enqueue(r, combine_, combine_args(r), num_blocks_); }
  void all(int r) {
    layout(r);
    begin(r);
    if (c_.trial(r) == NormalCase::Trial::kInVain) finish_in_too_little(r, true);
    if (c_.trial(r) == NormalCase::Trial::kEnough)
      try_to_finish(r);
    else
      finish(r);
    combine(r);
  }
  /// Every token of a rank goes everywhere, as its combine reads it.
  void spoil_is_in(int r) {
    ranks_.use(r);
    of_[static_cast<size_t>(r)].is_in.fill(std::byte{1});
    CHECK_CUDA(cudaDeviceSynchronize());
  }
  /// Whether there is a token of a rank that does not come back to it from itself.
  bool goes_elsewhere(int r) const {
    const Bytes& is_in = want_[static_cast<size_t>(r)].is_in;
    for (size_t at = static_cast<size_t>(r); at < is_in.size(); at += c_.p.ranks.size())
      if (is_in[at] == std::byte{0}) return true;
    return false;
  }
  /// Whether nothing was written where a rank's rows are to lie.
  bool is_untouched(int r) const {
    const Of& of = of_[static_cast<size_t>(r)];
    bool is_poison = true;
    for (const Memory* each :
         {&of.out, &of.out_side, &of.out_ids, &of.out_weights, &of.source_token})
      for (const std::byte byte : each->get()) is_poison = is_poison && byte == kPoison;
    return is_poison;
  }
  void poison() {
    for (Of& of : of_)
      for (Memory* each :
           {&of.per_rank, &of.per_expert, &of.is_in, &of.incoming, &of.out, &of.out_side,
            &of.out_ids, &of.out_weights, &of.source_token, &of.combined, &of.combined_weights})
        each->fill(kPoison);
    CHECK_CUDA(cudaDeviceSynchronize());
  }
  /// How many rows come to a rank, but for one.
  int all_rows_but_one(int r) const {
    const Wanted& want = want_[static_cast<size_t>(r)];
    int32_t rows = 0;
    std::memcpy(&rows, want.incoming.data() + offsetof(moe::gpu::IncomingHead, num_rows),
                sizeof rows);
    return rows - 1;
  }
  /// Whether whoever makes addresses of a rank's ids, of so many rows, finds none: of a call that failed.
  bool names_nobody(int r, int rows) const {
    const Bytes ids = of_[static_cast<size_t>(r)].out_ids.get();
    const auto end =
        static_cast<size_t>(rows) * static_cast<size_t>(c_.p.num_topk) * sizeof(int64_t);
    return std::all_of(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(std::min(end, ids.size())),
                       [](std::byte byte) { return byte == std::byte{0xff}; });
  }
  int room_rows(int r) const { return want_[static_cast<size_t>(r)].room_rows; }
  bool is_right() {
    ranks_.wait();
    bool right = !ranks_.has_fault();
    for (int r = 0; r < ranks_.size(); ++r) {
      ranks_.use(r);
      const Of& of = of_[static_cast<size_t>(r)];
      const Wanted& want = want_[static_cast<size_t>(r)];
      const auto k = static_cast<uint64_t>(c_.p.num_topk);
      right = same(r, "per_rank", want.per_rank, of.per_rank.get(), 4) && right;
      right = same(r, "per_expert", want.per_expert, of.per_expert.get(), 4) && right;
      right = same(r, "is_token_in_rank", want.is_in, of.is_in.get(),
                   static_cast<uint64_t>(ranks_.size())) &&
              right;
      right = same(r, "incoming", want.incoming, without_phase(of.incoming.get()), 4) && right;
      right = same(r, "recv_x", want.out, of.out.get(), c_.p.row_bytes) && right;
      right = same(r, "recv_x scales", want.out_side, of.out_side.get(),
                   std::max<uint64_t>(c_.side_bytes, 1)) &&
              right;
      right = same(r, "recv_topk_idx", want.out_ids, of.out_ids.get(), 8 * k) && right;
      right = same(r, "recv_topk_weights", want.out_weights, of.out_weights.get(), 4 * k) && right;
      right = same(r, "recv_src_idx", want.source_token, of.source_token.get(), 4) && right;
      right = same(r, "combined_x", want.combined, of.combined.get(), c_.p.row_bytes) && right;
      right = same(r, "combined_topk_weights", want.combined_weights, of.combined_weights.get(),
                   4 * k) &&
              right;
    }
    return right;
  }

 private:
  struct Of {
    Memory x, side, ids, weights, y, biases[2], ticket;
    Memory per_rank, per_expert, is_in, incoming;
    Memory out, out_side, out_ids, out_weights, source_token, combined, combined_weights;
  };
  struct Wanted {
    Bytes per_rank, per_expert, is_in, incoming;
    Bytes out, out_side, out_ids, out_weights, source_token, combined, combined_weights;
    Bytes y;
    int room_rows = 0;
  };

  const moe::reference::Tokens& tokens(int r) const { return c_.p.ranks[static_cast<size_t>(r)]; }
  int local() const { return c_.p.num_experts / c_.p.num_ranks(); }
  int num_weights() const { return c_.has_weights ? c_.p.num_topk : 0; }
  moe::Rounds dispatch_rounds() const {
    return moe::dispatch_rounds(ranks_.layout().region_bytes(), ranks_.size(), local(),
                                c_.p.num_topk, num_weights(), c_.p.row_bytes, c_.side_bytes);
  }
  moe::Rounds combine_rounds() const {
    return moe::combine_rounds(ranks_.layout().region_bytes(), num_weights(), c_.p.row_bytes);
  }
  template <typename Args>
  void enqueue(int r, cudaKernel_t kernel, Args args, uint32_t num_blocks) {
    uint32_t shared_bytes = 0;
    if constexpr (requires { args.stage_bytes; }) {
      args.stage_bytes = stage_bytes_;
      shared_bytes = moe::gpu::kStagesOfBlock * stage_bytes_;
    }
    ranks_.use(r);
    launch(kernel, num_blocks, moe::gpu::kThreads, args, ranks_[r].stream, shared_bytes);
  }
  static Bytes without_phase(Bytes incoming) {
    put_word(incoming, 3, 0);
    return incoming;
  }
  static void put_word(Bytes& bytes, size_t index, int32_t value) {
    std::memcpy(bytes.data() + 4 * index, &value, 4);
  }

  moe::gpu::DispatchArgs dispatch_args(int r) const {
    const Of& of = of_[static_cast<size_t>(r)];
    moe::gpu::DispatchArgs args{};
    args.team = ranks_.team_of(r);
    args.shape.kind = moe::CallKind::kDispatch;
    args.shape.num_experts = static_cast<uint32_t>(c_.p.num_experts);
    args.shape.num_topk = static_cast<uint32_t>(c_.p.num_topk);
    args.shape.row_bytes = static_cast<uint32_t>(c_.p.row_bytes);
    args.shape.side_bytes = static_cast<uint32_t>(c_.side_bytes);
    args.shape.options = c_.has_weights ? 3 : 1;
    args.rounds = dispatch_rounds();
    args.x = of.x.as<std::byte>();
    args.row_bytes = c_.p.row_bytes;
    args.side = of.side.as<std::byte>() + c_.side_shift(r);
    args.side_bytes = c_.side_bytes;
    args.is_in_rank = of.is_in.as<bool>();
    args.per_expert = of.per_expert.as<int32_t>();
    args.ids = of.ids.as<int64_t>();
    args.weights = c_.has_weights ? of.weights.as<float>() : nullptr;
    args.num_tokens = tokens(r).count;
    args.num_topk = c_.p.num_topk;
    args.num_experts = c_.p.num_experts;
    args.ticket = of.ticket.as<moe::gpu::Ticket>();
    args.incoming = of.incoming.as<int32_t>();
    args.out = of.out.as<std::byte>();
    args.out_side = of.out_side.as<std::byte>() + c_.out_side_shift(r);
    args.out_ids = of.out_ids.as<int64_t>();
    args.out_weights = c_.has_weights ? of.out_weights.as<float>() : nullptr;
    args.source_token = of.source_token.as<int32_t>();
    args.room_rows = want_[static_cast<size_t>(r)].room_rows;
    return args;
  }
  moe::gpu::CombineArgs combine_args(int r) const {
    const Of& of = of_[static_cast<size_t>(r)];
    moe::gpu::CombineArgs args{};
    args.team = ranks_.team_of(r);
    args.shape.kind = moe::CallKind::kCombine;
    args.shape.dtype = static_cast<uint32_t>(c_.dtype);
    args.shape.num_topk = static_cast<uint32_t>(num_weights());
    args.shape.row_bytes = static_cast<uint32_t>(c_.p.row_bytes);
    args.rounds = combine_rounds();
    args.x = of.y.as<std::byte>();
    args.row_bytes = c_.p.row_bytes;
    args.weights = c_.has_weights ? of.out_weights.as<float>() : nullptr;
    args.num_topk = num_weights();
    args.incoming = of.incoming.as<int32_t>();
    args.source_token = of.source_token.as<int32_t>();
    args.is_in_rank = of.is_in.as<bool>();
    args.num_tokens = tokens(r).count;
    for (int b = 0; b < c_.num_biases; ++b)
      args.biases[b] = of.biases[static_cast<size_t>(b)].as<std::byte>();
    args.of = of.ticket.as<moe::gpu::Ticket>();
    args.out = of.combined.as<std::byte>();
    args.out_weights = c_.has_weights ? of.combined_weights.as<float>() : nullptr;
    return args;
  }

  Bytes side_of(int r) const {
    return random_rows(Dtype::kFloat32, static_cast<uint64_t>(tokens(r).count) * c_.side_bytes,
                       900 + static_cast<uint64_t>(r), false);
  }
  Bytes bias_of(int r, int number) const {
    return random_rows(c_.dtype, static_cast<uint64_t>(tokens(r).count) * c_.p.row_bytes,
                       500 + 10 * static_cast<uint64_t>(r) + static_cast<uint64_t>(number), false);
  }

  void open(int r) {
    ranks_.use(r);
    const Wanted& want = want_[static_cast<size_t>(r)];
    Of of;
    of.x = Memory(tokens(r).rows);
    Bytes side = side_of(r);
    side.insert(side.begin(), c_.side_shift(r), kPoison);
    of.side = Memory(side);
    of.ids = Memory::of(tokens(r).ids);
    of.weights = Memory::of(tokens(r).weights);
    of.y = Memory(want.y);
    for (int b = 0; b < 2; ++b) of.biases[b] = Memory(bias_of(r, b));
    of.ticket = Memory(sizeof(moe::gpu::Ticket));
    for (const auto& [memory, bytes] : {std::pair{&of.per_rank, &want.per_rank},
                                        {&of.per_expert, &want.per_expert},
                                        {&of.is_in, &want.is_in},
                                        {&of.incoming, &want.incoming},
                                        {&of.out, &want.out},
                                        {&of.out_side, &want.out_side},
                                        {&of.out_ids, &want.out_ids},
                                        {&of.out_weights, &want.out_weights},
                                        {&of.source_token, &want.source_token},
                                        {&of.combined, &want.combined},
                                        {&of.combined_weights, &want.combined_weights}})
      *memory = Memory(bytes->size());
    CHECK_CUDA(cudaDeviceSynchronize());
    of_.push_back(std::move(of));
  }

  void want_all() {
    std::vector<moe::reference::BySource> got;
    std::vector<Bytes> y;
    for (int r = 0; r < c_.p.num_ranks(); ++r) {
      got.push_back(moe::reference::by_source(c_.p, r, 1));
      y.push_back(
          random_rows(c_.dtype, got.back().rows.size(), 300 + static_cast<uint64_t>(r), false));
    }
    for (int r = 0; r < c_.p.num_ranks(); ++r) {
      Wanted want;
      want_layout(r, want);
      want_rows(got, r, want);
      want_incoming(got, r, want);
      want.y = y[static_cast<size_t>(r)];
      want_combined(got, y, r, want);
      want_.push_back(std::move(want));
    }
  }
  void want_layout(int r, Wanted& want) const {
    const moe::Experts experts{c_.p.num_ranks(), c_.p.num_experts, c_.p.num_topk};
    const auto n = static_cast<size_t>(c_.p.num_ranks());
    const auto count = static_cast<size_t>(tokens(r).count);
    std::vector<int32_t> per_rank(n), per_expert(static_cast<size_t>(c_.p.num_experts));
    const auto is_in = std::make_unique<bool[]>(count * n + 1);
    moe::count(experts, tokens(r).ids, count, per_rank, per_expert, {is_in.get(), count * n});
    for (size_t i = 0; i < n; ++i)
      want.per_rank.resize(4 * n), put_word(want.per_rank, i, per_rank[i]);
    want.per_expert.resize(4 * per_expert.size());
    for (size_t i = 0; i < per_expert.size(); ++i) put_word(want.per_expert, i, per_expert[i]);
    for (size_t i = 0; i < count * n; ++i)
      want.is_in.push_back(std::byte{is_in[i] ? uint8_t{1} : uint8_t{0}});
  }
  void want_rows(const std::vector<moe::reference::BySource>& all, int r, Wanted& want) const {
    const moe::reference::BySource& got = all[static_cast<size_t>(r)];
    const size_t rows = got.source_token.size(), k = static_cast<size_t>(c_.p.num_topk);
    const size_t room = rows + static_cast<size_t>(c_.spare_rows);
    want.room_rows = static_cast<int>(room);
    want.out = got.rows;
    want.out.resize(room * c_.p.row_bytes, kPoison);
    want.out_side.assign(c_.out_side_shift(r), kPoison);
    for (size_t i = 0; i < rows; ++i) {
      const Bytes side = side_of(got.source_rank[i]);
      const auto from =
          side.begin() +
          static_cast<int64_t>(static_cast<uint64_t>(got.source_token[i]) * c_.side_bytes);
      want.out_side.insert(want.out_side.end(), from, from + static_cast<int64_t>(c_.side_bytes));
    }
    want.out_side.resize(c_.out_side_shift(r) + room * c_.side_bytes, kPoison);
    want.out_ids.resize(8 * room * k);
    want.out_weights.resize(c_.has_weights ? 4 * room * k : 0);
    for (size_t i = 0; i < room * k; ++i) {
      const int64_t id = i < rows * k ? got.ids[i] : -1;
      const float weight = i < rows * k && c_.has_weights ? got.weights[i] : 0;
      std::memcpy(want.out_ids.data() + 8 * i, &id, 8);
      if (c_.has_weights) std::memcpy(want.out_weights.data() + 4 * i, &weight, 4);
    }
    want.source_token.assign(4 * room, kPoison);
    for (size_t i = 0; i < rows; ++i) put_word(want.source_token, i, got.source_token[i]);
  }
  void want_incoming(const std::vector<moe::reference::BySource>& all, int r, Wanted& want) const {
    const auto n = static_cast<size_t>(c_.p.num_ranks());
    const size_t head = moe::gpu::kIncomingHeadWords;
    want.incoming.resize(4 * static_cast<size_t>(moe::gpu::incoming_words(ranks_.size(), local())));
    int32_t most = 0;
    for (const moe::reference::Tokens& each : c_.p.ranks) most = std::max(most, each.count);
    const moe::reference::BySource& own = all[static_cast<size_t>(r)];
    put_word(want.incoming, 0, 1);
    put_word(want.incoming, 1, static_cast<int32_t>(own.source_token.size()));
    put_word(want.incoming, 2, most);
    for (size_t to = 0; to < n; ++to) {
      int32_t sum = 0;
      for (size_t source = 0; source < n; ++source) {
        const auto copies = static_cast<int32_t>(std::count(
            all[to].source_rank.begin(), all[to].source_rank.end(), static_cast<int32_t>(source)));
        sum += copies;
        put_word(want.incoming, head + n + source * n + to, sum);
        if (to == static_cast<size_t>(r)) put_word(want.incoming, head + source, copies);
      }
    }
    for (size_t e = 0; e < own.rows_per_expert.size(); ++e)
      put_word(want.incoming, head + n + n * n + e, own.rows_per_expert[e]);
  }
  void want_combined(const std::vector<moe::reference::BySource>& all, const std::vector<Bytes>& y,
                     int r, Wanted& want) const {
    std::vector<Bytes> biases;
    for (int b = 0; b < c_.num_biases; ++b) biases.push_back(bias_of(r, b));
    want.combined = moe::reference::combine(c_.p, r, c_.dtype, y, biases);
    if (!c_.has_weights) return;
    const auto k = static_cast<size_t>(c_.p.num_topk);
    std::vector<float> sums(static_cast<size_t>(tokens(r).count) * k);
    for (const moe::reference::BySource& of : all)
      for (size_t i = 0; i < of.source_token.size(); ++i)
        for (size_t j = 0; j < k && of.source_rank[i] == r; ++j)
          sums[static_cast<size_t>(of.source_token[i]) * k + j] += of.weights[i * k + j];
    want.combined_weights.resize(4 * sums.size());
    if (!sums.empty()) std::memcpy(want.combined_weights.data(), sums.data(), 4 * sums.size());
  }

  MoeRanks& ranks_;
  NormalCase c_;
  const uint32_t num_blocks_;
  uint32_t stage_bytes_ = 0;
  const cudaKernel_t layout_, begin_, finish_, combine_;
  std::vector<Of> of_;
  std::vector<Wanted> want_;
};

}  // namespace braid::test
