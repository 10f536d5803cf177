// A low-latency call of all ranks: its inputs, its four kernels, and what each must leave, by
// moe/reference.h.
#pragma once

#include "device/moe_report.h"
#include "moe/layout.h"

namespace braid::test {

struct LowLatencyCase {
  moe::reference::Problem p;
  Dtype dtype = Dtype::kBfloat16;
  moe::ScaleForm form = moe::ScaleForm::kNone;
  int max_tokens = 1;
  bool sums_by_rank = false;  // weights travel with the rows, and a combine sums by rank

  uint64_t hidden() const { return p.row_bytes / dtype_bytes(dtype); }
  uint64_t row_bytes() const {  // as it travels
    return form == moe::ScaleForm::kNone ? p.row_bytes : hidden();
  }
  uint64_t scale_bytes() const { return moe::scale_bytes(form, hidden()); }
  int local() const { return p.num_experts / p.num_ranks(); }
  size_t rows() const {  // of all experts
    return static_cast<size_t>(local() * max_tokens * p.num_ranks());
  }
  std::string name() const {
    return std::to_string(p.num_ranks()) + " ranks, " + std::to_string(p.num_experts) +
           " experts, top " + std::to_string(p.num_topk) + ", up to " + std::to_string(max_tokens) +
           " tokens of " + std::to_string(hidden()) + " " + dtype_name(dtype) + ", form " +
           std::to_string(static_cast<int>(form)) + (sums_by_rank ? ", sums by rank" : "");
  }
};

/// What one rank's kernels must leave.
struct LowLatencyWanted {
  Bytes x, scales, count, src_info, slots, ranges, y, out;
  Bytes copy_counts, copy_tokens, copy_places, copy_weights;  // poison where the table says nothing
};

template <typename T>
void put_at(Bytes& bytes, size_t index, T value) {
  std::memcpy(bytes.data() + index * sizeof(T), &value, sizeof(T));
}

class LowLatencyRun {
 public:
  LowLatencyRun(MoeRanks& ranks, const Kernels& kernels, const LowLatencyCase& c, int num_blocks)
      : ranks_(ranks),
        c_(c),
        num_blocks_(static_cast<uint32_t>(num_blocks)),
        send_(kernels.find(send_name())),
        fan_out_(kernels.find("braid_moe_ll_fan_out")),
        return_(kernels.find(c.sums_by_rank
                                 ? std::string("braid_moe_ll_rank_return_") + type_name(c.dtype)
                                 : "braid_moe_ll_return")),
        sum_(kernels.find(
            std::string(c.sums_by_rank ? "braid_moe_ll_rank_sum_" : "braid_moe_ll_sum_") +
            type_name(c.dtype))) {
    want_all();
    for (int r = 0; r < ranks.size(); ++r) open(r);
  }

  void send(int r) { enqueue(r, send_, send_args(r)); }
  void fan_out(int r) { enqueue(r, fan_out_, fan_out_args(r)); }
  void give_back(int r) {
    if (c_.sums_by_rank)
      enqueue(r, return_, rank_return_args(r));
    else
      enqueue(r, return_, return_args(r));
  }
  void sum(int r) { enqueue(r, sum_, sum_args(r)); }
  void all(int r) {
    send(r);
    fan_out(r);
    give_back(r);
    sum(r);
  }
  /// The first id of a rank, which has tokens, is none from now on.
  void spoil_id(int r) {
    ranks_.use(r);
    const int64_t id = c_.p.num_experts;
    CHECK_CUDA(cudaMemcpy(of_[static_cast<size_t>(r)].ids.as<int64_t>(), &id, sizeof id,
                          cudaMemcpyDefault));
    CHECK_CUDA(cudaDeviceSynchronize());
  }
  /// Results as before the call.
  void poison() {
    for (Of& of : of_)
      for (Memory* each :
           {&of.out_x, &of.out_scales, &of.count, &of.src_info, &of.slots, &of.ranges, &of.out,
            &of.copy_counts, &of.copy_tokens, &of.copy_places, &of.copy_weights})
        each->fill(kPoison);
    CHECK_CUDA(cudaDeviceSynchronize());
  }
  /// Whether whoever makes addresses of what a rank was told finds no row: of a call that failed.
  bool names_no_row(int r) const {
    const Of& of = of_[static_cast<size_t>(r)];
    for (const Memory* each : {&of.count, &of.ranges, &of.copy_counts})
      for (const std::byte byte : each->get())
        if (byte != std::byte{0}) return false;
    return true;
  }
  bool is_right() {
    ranks_.wait();
    bool right = !ranks_.has_fault();
    for (int r = 0; r < ranks_.size(); ++r) {
      ranks_.use(r);
      const Of& of = of_[static_cast<size_t>(r)];
      const LowLatencyWanted& want = want_[static_cast<size_t>(r)];
      right = same(r, "count", want.count, of.count.get(), 4) && right;
      right = same(r, "layout_range", want.ranges, of.ranges.get(), 8) && right;
      right = same(r, "src_info", want.src_info, of.src_info.get(), 4) && right;
      right = same(r, "slots", want.slots, of.slots.get(), 4) && right;
      right = same(r, "recv_x", want.x, of.out_x.get(), c_.row_bytes()) && right;
      right = same(r, "scales", want.scales, of.out_scales.get(), 4) && right;
      right = same(r, "copies", want.copy_counts, of.copy_counts.get(), 4) && right;
      right = same(r, "copies' tokens", want.copy_tokens, of.copy_tokens.get(), 4) && right;
      right = same(r, "copies' places", want.copy_places, of.copy_places.get(), 4) && right;
      right = same(r, "copies' weights", want.copy_weights, of.copy_weights.get(), 4) && right;
      right = same(r, "out", want.out, of.out.get(), c_.p.row_bytes) && right;
    }
    return right;
  }

 private:
  moe::gpu::LlSendArgs send_args(int r) const {
    const Of& of = of_[static_cast<size_t>(r)];
    moe::gpu::LlSendArgs args{};
    args.team = ranks_.team_of(r);
    args.shape = dispatch_shape();
    args.slot = slot();
    args.x = of.x.as<std::byte>();
    args.ids = of.ids.as<int64_t>();
    if (c_.sums_by_rank) args.weights = of.weights.as<float>();
    args.x_bytes = c_.p.row_bytes;
    args.row_bytes = c_.row_bytes();
    args.num_tokens = c_.p.ranks[static_cast<size_t>(r)].count;
    args.num_topk = c_.p.num_topk;
    args.num_experts = c_.p.num_experts;
    args.form = c_.form;
    args.ticket = of.tickets.as<moe::gpu::Ticket>();
    return args;
  }

  struct Of {
    Memory x, ids, weights, tickets;
    Memory out_x, out_scales, count, src_info, slots, ranges, wait_ns, stats;
    Memory copy_counts, copy_tokens, copy_places, copy_weights;
    Memory y, out;

    moe::CopyTable copies() const {
      return {copy_counts.as<int32_t>(), copy_tokens.as<int32_t>(), copy_places.as<int32_t>(),
              copy_weights.as<float>()};
    }
  };

  template <typename Args>
  void enqueue(int r, cudaKernel_t kernel, const Args& args) {
    ranks_.use(r);
    launch(kernel, num_blocks_, moe::gpu::kThreads, args, ranks_[r].stream);
  }
  moe::Slot slot() const {
    return {c_.p.num_topk, c_.row_bytes(), c_.scale_bytes(), c_.sums_by_rank};
  }
  std::string send_name() const {
    const std::string name = "braid_moe_ll_send";
    return c_.form == moe::ScaleForm::kNone ? name : name + "_" + type_name(c_.dtype);
  }
  moe::CallShape dispatch_shape() const {
    return {.kind = moe::CallKind::kLowLatencyDispatch,
            .dtype = static_cast<uint32_t>(c_.dtype),
            .num_experts = static_cast<uint32_t>(c_.p.num_experts),
            .num_topk = static_cast<uint32_t>(c_.p.num_topk),
            .max_tokens = static_cast<uint32_t>(c_.max_tokens),
            .row_bytes = static_cast<uint32_t>(c_.row_bytes()),
            .side_bytes = static_cast<uint32_t>(c_.scale_bytes()),
            .options = static_cast<uint32_t>(c_.form) + (c_.sums_by_rank ? 8 : 0),
            .of_phase = 0};
  }
  moe::CallShape combine_shape() const {
    moe::CallShape shape = dispatch_shape();
    shape.kind = moe::CallKind::kLowLatencyCombine;
    shape.row_bytes = static_cast<uint32_t>(c_.p.row_bytes);
    shape.side_bytes = 0;
    shape.options = c_.sums_by_rank ? 8 : 0;
    return shape;
  }
  moe::gpu::LlFanOutArgs fan_out_args(int r) const {
    const Of& of = of_[static_cast<size_t>(r)];
    moe::gpu::LlFanOutArgs args{};
    args.team = ranks_.team_of(r);
    args.shape = dispatch_shape();
    args.slot = slot();
    args.row_bytes = c_.row_bytes();
    args.num_topk = c_.p.num_topk;
    args.num_experts = c_.p.num_experts;
    args.max_tokens = c_.max_tokens;
    args.scale_words = static_cast<int32_t>(c_.scale_bytes() / 4);
    args.ticket = of.tickets.as<moe::gpu::Ticket>();
    args.x = of.out_x.as<std::byte>();
    args.scales = of.out_scales.as<uint32_t>();
    args.count = of.count.as<int32_t>();
    args.src_info = of.src_info.as<int32_t>();
    args.slots = of.slots.as<int32_t>();
    args.layout_range = of.ranges.as<int64_t>();
    if (c_.sums_by_rank) args.copies = of.copies();
    args.stats = of.stats.as<int32_t>();
    args.wait_ns = of.wait_ns.as<int64_t>();
    return args;
  }
  template <typename Args>
  Args any_return_args(int r) const {
    const Of& of = of_[static_cast<size_t>(r)];
    Args args{};
    args.team = ranks_.team_of(r);
    args.shape = combine_shape();
    args.x = of.y.as<std::byte>();
    args.row_bytes = c_.p.row_bytes;
    args.num_tokens = c_.p.ranks[static_cast<size_t>(r)].count;
    args.num_topk = c_.p.num_topk;
    args.num_experts = c_.p.num_experts;
    args.max_tokens = c_.max_tokens;
    args.of = of.tickets.as<moe::gpu::Ticket>();
    args.ticket = of.tickets.as<moe::gpu::Ticket>() + 1;
    return args;
  }
  moe::gpu::LlReturnArgs return_args(int r) const {
    const Of& of = of_[static_cast<size_t>(r)];
    auto args = any_return_args<moe::gpu::LlReturnArgs>(r);
    args.slots = of.slots.as<int32_t>();
    args.layout_range = of.ranges.as<int64_t>();
    return args;
  }
  moe::gpu::LlRankReturnArgs rank_return_args(int r) const {
    auto args = any_return_args<moe::gpu::LlRankReturnArgs>(r);
    args.copies = of_[static_cast<size_t>(r)].copies();
    return args;
  }
  moe::gpu::LlSumArgs sum_args(int r) const {
    const Of& of = of_[static_cast<size_t>(r)];
    moe::gpu::LlSumArgs args{};
    args.team = ranks_.team_of(r);
    args.shape = combine_shape();
    args.row_bytes = c_.p.row_bytes;
    args.num_tokens = c_.p.ranks[static_cast<size_t>(r)].count;
    args.num_topk = c_.p.num_topk;
    args.num_experts = c_.p.num_experts;
    args.ids = of.ids.as<int64_t>();
    args.weights = of.weights.as<float>();
    args.of = of.tickets.as<moe::gpu::Ticket>();
    args.ticket = of.tickets.as<moe::gpu::Ticket>() + 1;
    args.out = of.out.as<std::byte>();
    args.wait_ns = of.wait_ns.as<int64_t>();
    return args;
  }

  void open(int r) {
    ranks_.use(r);
    const moe::reference::Tokens& own = c_.p.ranks[static_cast<size_t>(r)];
    const LowLatencyWanted& want = want_[static_cast<size_t>(r)];
    Of of;
    of.x = Memory(own.rows);
    of.ids = Memory::of(own.ids);
    of.weights = Memory::of(own.weights);
    of.tickets = Memory(2 * sizeof(moe::gpu::Ticket));
    const uint64_t experts = static_cast<uint64_t>(c_.p.num_experts);
    of.out_x = Memory(want.x.size());
    of.out_scales = Memory(want.scales.size());
    of.count = Memory(want.count.size());
    of.src_info = Memory(want.src_info.size());
    of.slots = Memory(want.slots.size());
    of.ranges = Memory(want.ranges.size());
    of.copy_counts = Memory(want.copy_counts.size());
    of.copy_tokens = Memory(want.copy_tokens.size());
    of.copy_places = Memory(want.copy_places.size());
    of.copy_weights = Memory(want.copy_weights.size());
    of.wait_ns = Memory(8 * static_cast<uint64_t>(ranks_.size()));
    of.stats = Memory(4 * experts);
    of.y = Memory(want.y);
    of.out = Memory(want.out.size());
    CHECK_CUDA(cudaDeviceSynchronize());
    of_.push_back(std::move(of));
  }

  void want_all() {
    std::vector<Bytes> y;
    for (int r = 0; r < c_.p.num_ranks(); ++r) {
      want_.push_back(wanted_rows(r));
      const auto rows = moe::reference::by_expert(c_.p, r);
      y.push_back(random_rows(c_.dtype, rows.size() * c_.p.row_bytes, 77 + static_cast<uint64_t>(r),
                              false));
      Bytes& placed = want_.back().y;
      placed.assign(c_.rows() * c_.p.row_bytes, kPoison);
      for (size_t i = 0; i < rows.size(); ++i)
        std::memcpy(placed.data() + places_[i] * c_.p.row_bytes,
                    y.back().data() + i * c_.p.row_bytes, c_.p.row_bytes);
    }
    const auto combined = c_.sums_by_rank ? moe::reference::combine_low_latency_by_rank
                                          : moe::reference::combine_low_latency;
    for (int r = 0; r < c_.p.num_ranks(); ++r)
      want_[static_cast<size_t>(r)].out =
          combined(c_.p, r, c_.dtype, y, c_.p.ranks[static_cast<size_t>(r)].weights);
  }

  /// Of the rank whose rows are `rows` and lie at places_.
  void want_copies(const std::vector<moe::reference::Row>& rows, LowLatencyWanted& want) const {
    if (!c_.sums_by_rank) return;
    const auto n = static_cast<size_t>(c_.p.num_ranks());
    const auto m = static_cast<size_t>(c_.max_tokens), k = static_cast<size_t>(c_.p.num_topk);
    want.copy_tokens.assign(4 * n * m, kPoison);
    want.copy_places.assign(4 * n * m * k, kPoison);
    want.copy_weights.assign(4 * n * m * k, kPoison);
    std::vector<std::vector<int>> tokens(n);  // of each source, that came
    for (const moe::reference::Row& row : rows)
      tokens[static_cast<size_t>(row.source)].push_back(row.token);
    for (size_t source = 0; source < n; ++source) {
      std::vector<int>& own = tokens[source];
      std::sort(own.begin(), own.end());
      own.erase(std::unique(own.begin(), own.end()), own.end());
      want.copy_counts.resize(4 * n);
      put_at(want.copy_counts, source, static_cast<int32_t>(own.size()));
      for (size_t copy = 0; copy < own.size(); ++copy) {
        const size_t at = source * m + copy;
        put_at(want.copy_tokens, at, int32_t{own[copy]});
        for (size_t i = 0; i < k; ++i) {
          put_at(want.copy_places, at * k + i, int32_t{-1});
          put_at(want.copy_weights, at * k + i,
                 c_.p.ranks[source].weights[static_cast<size_t>(own[copy]) * k + i]);
        }
      }
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      const std::vector<int>& own = tokens[static_cast<size_t>(rows[i].source)];
      const auto copy = static_cast<size_t>(
          std::lower_bound(own.begin(), own.end(), rows[i].token) - own.begin());
      put_at(want.copy_places,
             (static_cast<size_t>(rows[i].source) * m + copy) * k + static_cast<size_t>(rows[i].k),
             static_cast<int32_t>(places_[i]));
    }
  }

  LowLatencyWanted wanted_rows(int rank) {
    const auto n = static_cast<size_t>(c_.p.num_ranks());
    const auto of_expert = static_cast<size_t>(c_.max_tokens) * n;
    const auto rows = moe::reference::by_expert(c_.p, rank);
    LowLatencyWanted want;
    want.x.assign(c_.rows() * c_.row_bytes(), kPoison);
    want.scales.assign(c_.rows() * c_.scale_bytes(), kPoison);
    want.src_info.assign(4 * c_.rows(), kPoison);
    want.slots.assign(4 * c_.rows(), kPoison);
    std::vector<int32_t> counts(static_cast<size_t>(c_.local()) * n), next(n);
    places_.clear();
    std::vector<size_t> of(static_cast<size_t>(c_.local()));
    Bytes row(c_.row_bytes()), scales(c_.scale_bytes());
    for (const moe::reference::Row& each : rows) {
      const auto expert = static_cast<size_t>(each.expert);
      const size_t in_expert = of[expert]++, place = expert * of_expert + in_expert;
      places_.push_back(place);
      ++counts[expert * n + static_cast<size_t>(each.source)];
      const std::byte* const x = c_.p.ranks[static_cast<size_t>(each.source)].rows.data() +
                                 static_cast<uint64_t>(each.token) * c_.p.row_bytes;
      if (c_.form == moe::ScaleForm::kNone)
        std::memcpy(row.data(), x, row.size());
      else
        moe::cast_row(c_.dtype, x, c_.hidden(), c_.form, row.data(), scales.data());
      std::memcpy(want.x.data() + place * row.size(), row.data(), row.size());
      put_at(want.src_info, place, int32_t{each.token});
      put_at(want.slots, place, int32_t{each.token * c_.p.num_topk + each.k});
      const size_t words = scales.size() / 4;
      for (size_t w = 0; w < words; ++w)
        std::memcpy(want.scales.data() + 4 * ((expert * words + w) * of_expert + in_expert),
                    scales.data() + 4 * w, 4);
    }
    want_copies(rows, want);
    want.count.resize(4 * of.size());
    want.ranges.resize(8 * counts.size());
    for (size_t e = 0; e < of.size(); ++e) {
      int32_t begin = 0;
      for (size_t s = 0; s < n; ++s) {
        put_at(want.ranges, e * n + s, moe::packed_range(begin, counts[e * n + s]));
        begin += counts[e * n + s];
      }
      put_at(want.count, e, begin);
    }
    return want;
  }

  MoeRanks& ranks_;
  const LowLatencyCase c_;
  const uint32_t num_blocks_;
  const cudaKernel_t send_, fan_out_, return_, sum_;
  std::vector<Of> of_;
  std::vector<LowLatencyWanted> want_;
  std::vector<size_t> places_;  // of the rank that was asked for last
};

}  // namespace braid::test
