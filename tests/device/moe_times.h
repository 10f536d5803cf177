// Each low-latency kernel's own time, without NVLink, in the shape of DeepSeek-V3: a group of one rank;
// and eight ranks of one GPU, whose kernels run one after the other on one stream, so that no wait is
// long. The L2 is cold: other memory is written before each.
#pragma once

#include <algorithm>
#include <functional>

#include "device/moe_report.h"
#include "moe/layout.h"

namespace braid::test {

class Times {
 public:
  static constexpr int kHidden = 7168, kTopk = 8, kExperts = 256;

  Times(const Kernels& kernels, int num_ranks, int num_tokens, uint32_t num_blocks)
      : kernels_(kernels),
        tokens_(num_tokens),
        num_blocks_(num_blocks),
        ranks_(num_ranks, half_bytes(num_ranks, num_tokens), 1),
        flush_(uint64_t{256} << 20),
        x_(kBf16Row * static_cast<uint64_t>(num_tokens)),
        weights_(4 * static_cast<uint64_t>(num_tokens) * kTopk),
        out_(kBf16Row * static_cast<uint64_t>(num_tokens)),
        y_(rows() * kBf16Row),
        recv_x_(rows() * kHidden),
        scales_(rows() * kScaleBytes) {
    ranks_.timeout_ns = 2'000'000'000;
    x_.put(random_rows(Dtype::kBfloat16, x_.bytes(), 5, false));
    weights_.fill(std::byte{0});
    y_.fill(std::byte{0});
    for (int r = 0; r < num_ranks; ++r) {
      std::vector<int64_t> ids;
      for (int t = 0; t < num_tokens; ++t) {
        for (size_t k = 0; k < kTopk;) {
          const auto id =
              static_cast<int64_t>(random_bits(static_cast<uint64_t>(r), ++draws_) % kExperts);
          const auto begin = ids.end() - static_cast<int64_t>(k);
          if (std::find(begin, ids.end(), id) != ids.end()) continue;
          ids.push_back(id);
          ++k;
        }
      }
      const uint64_t copies = static_cast<uint64_t>(num_ranks) * static_cast<uint64_t>(num_tokens);
      of_.push_back({Memory::of(ids), Memory(4 * rows()), Memory(4 * rows()), Memory(4 * kExperts),
                     Memory(8 * kExperts), Memory(64), Memory(4 * copies),
                     Memory(4 * copies * (1 + 2 * kTopk))});
      ids_.push_back(std::move(ids));
    }
    CHECK_CUDA(cudaEventCreate(&begin_));
    CHECK_CUDA(cudaEventCreate(&end_));
    CHECK_CUDA(cudaDeviceSynchronize());
  }
  ~Times() {
    CHECK_CUDA(cudaEventDestroy(begin_));
    CHECK_CUDA(cudaEventDestroy(end_));
  }

  void low_latency(double hbm_gbps) {
    constexpr int kHalves = 6;
    std::vector<double> us[kHalves];
    const int calls = std::max(4, 16 / ranks_.size());
    for (const bool is_send : {true, false})  // fills the tables that sums by rank read
      for (int r = 0; r < ranks_.size(); ++r) {
        if (is_send)
          go("braid_moe_ll_send_bf16", send_args(r, true));
        else
          go("braid_moe_ll_fan_out", fan_out_args(r, true));
      }
    for (int call = 0; call < calls; ++call)
      for (int half = 0; half < kHalves; ++half)
        for (int r = 0; r < ranks_.size(); ++r) {
          const double took = timed([&] { launch_half(half, r); });
          if (call > 0) us[half].push_back(took);
        }
    const double t = tokens_, copies = copies_to(0), rows = rows_at(0);
    const double bytes[] = {t * kBf16Row + copies * kCopyRow,
                            copies * kCopyRow + rows * kFp8Row,
                            2 * rows * kBf16Row,
                            (kTopk + 1) * t * kBf16Row,
                            (rows + copies) * kBf16Row,
                            (copies + t) * kBf16Row};
    const char* const names[] = {"cast and send", "fan out",     "return",
                                 "weighted sum",  "rank return", "rank sum"};
    for (int half = 0; half < kHalves; ++half) print(names[half], us[half], bytes[half], hbm_gbps);
    if (ranks_.has_fault()) std::printf("     times are of no use\n");
  }

  /// What two events and a kernel that does nothing take: the floor of all times here.
  void nothing() {
    std::vector<double> us;
    for (int call = 0; call < 20; ++call)
      us.push_back(timed([&] {
        moe::gpu::LayoutArgs args{};
        args.num_ranks = args.num_experts = args.num_topk = 1;
        args.per_rank = args.per_expert = of_[0].count.as<int32_t>();
        args.watch = ranks_.team_of(0).watch;
        launch(kernels_.find("braid_moe_layout"), 1, moe::gpu::kThreads, args, ranks_[0].stream);
      }));
    std::sort(us.begin(), us.end());
    std::printf("a kernel that does nothing: %.1f us\n", us[us.size() / 2]);
  }

  /// What copies of 1 GiB on the device reach, reads and writes counted.
  static double hbm_gbps() {
    const uint64_t bytes = uint64_t{1} << 30;
    const Memory from(bytes), to(bytes);
    cudaEvent_t begin, end;
    CHECK_CUDA(cudaEventCreate(&begin));
    CHECK_CUDA(cudaEventCreate(&end));
    float ms = 0;
    for (int i = 0; i < 3; ++i) {
      CHECK_CUDA(cudaEventRecord(begin, nullptr));
      CHECK_CUDA(
          cudaMemcpyAsync(to.as<void>(), from.as<void>(), bytes, cudaMemcpyDefault, nullptr));
      CHECK_CUDA(cudaEventRecord(end, nullptr));
      CHECK_CUDA(cudaEventSynchronize(end));
      CHECK_CUDA(cudaEventElapsedTime(&ms, begin, end));
    }
    CHECK_CUDA(cudaEventDestroy(begin));
    CHECK_CUDA(cudaEventDestroy(end));
    return 2 * static_cast<double>(bytes) / ms / 1e6;
  }

 private:
  static constexpr uint64_t kBf16Row = 2 * kHidden, kScaleBytes = kHidden / 128 * 4;
  static constexpr uint64_t kFp8Row = kHidden + kScaleBytes;
  static constexpr moe::Slot kSlot{kTopk, kHidden, kScaleBytes};
  static constexpr uint64_t kCopyRow = kSlot.bytes;
  static_assert(moe::Slot(kTopk, kHidden, kScaleBytes, true).bytes == kCopyRow);

  struct Of {
    Memory ids, src_info, slots, count, ranges, tickets, copies, of_copies;
  };

  static uint64_t half_bytes(int num_ranks, int num_tokens) {
    const auto m = static_cast<uint64_t>(num_tokens);
    return std::max(static_cast<uint64_t>(num_ranks) * round_up(m * kSlot.bytes, moe::kLineBytes),
                    m * kTopk * kBf16Row);
  }
  uint64_t rows() const { return static_cast<uint64_t>(kExperts) * static_cast<uint64_t>(tokens_); }
  int64_t rank_of(int64_t id) const { return id / (kExperts / ranks_.size()); }
  double rows_at(int rank) const {
    double rows = 0;
    for (const auto& ids : ids_)
      for (const int64_t id : ids) rows += rank_of(id) == rank ? 1 : 0;
    return rows;
  }
  /// Of all ranks to one: as many as one sends, on average.
  double copies_to(int rank) const {
    double copies = 0;
    for (const auto& ids : ids_)
      for (size_t t = 0; t < ids.size(); t += kTopk) {
        bool goes = false;
        for (size_t k = 0; k < kTopk; ++k) goes = goes || rank_of(ids[t + k]) == rank;
        copies += goes ? 1 : 0;
      }
    return copies;
  }

  double timed(const std::function<void()>& run) {
    const cudaStream_t stream = ranks_[0].stream;
    CHECK_CUDA(cudaMemsetAsync(flush_.as<void>(), 1, flush_.bytes(), stream));
    CHECK_CUDA(cudaEventRecord(begin_, stream));
    run();
    CHECK_CUDA(cudaEventRecord(end_, stream));
    CHECK_CUDA(cudaEventSynchronize(end_));
    float ms = 0;
    CHECK_CUDA(cudaEventElapsedTime(&ms, begin_, end_));
    return ms * 1e3;
  }
  void print(const char* name, std::vector<double>& us, double bytes, double hbm_gbps) const {
    std::sort(us.begin(), us.end());
    const double median = us[us.size() / 2];
    std::printf(
        "%-14s %d ranks, %5d tokens, %3u blocks: %8.1f us (%.1f to %.1f), %5.0f GB/s, %.2f of a "
        "copy's\n",
        name, ranks_.size(), tokens_, num_blocks_, median, us.front(), us.back(),
        bytes / median / 1e3, bytes / median / 1e3 / hbm_gbps);
  }

  void launch_half(int half, int r) {
    switch (half) {
      case 0: return go("braid_moe_ll_send_bf16", send_args(r));
      case 1: return go("braid_moe_ll_fan_out", fan_out_args(r));
      case 2: return go("braid_moe_ll_return", return_args(r));
      case 3: return go("braid_moe_ll_sum_bf16", sum_args(r));
      case 4: return go("braid_moe_ll_rank_return_bf16", rank_return_args(r));
      default: return go("braid_moe_ll_rank_sum_bf16", sum_args(r));
    }
  }
  template <typename Args>
  void go(const char* name, Args args) {
    args.team = ranks_.team_of(args.team.rank);
    launch(kernels_.find(name), num_blocks_, moe::gpu::kThreads, args, ranks_[0].stream);
  }
  moe::CallShape shape(moe::CallKind kind, uint64_t row_bytes) const {
    moe::CallShape made;
    made.kind = kind;
    made.num_experts = kExperts;
    made.num_topk = kTopk;
    made.max_tokens = static_cast<uint32_t>(tokens_);
    made.row_bytes = static_cast<uint32_t>(row_bytes);
    return made;
  }
  moe::gpu::LlSendArgs send_args(int r, bool has_weights = false) const {
    const Of& of = of_[static_cast<size_t>(r)];
    moe::gpu::LlSendArgs args{};
    args.team.rank = r;
    args.shape = shape(moe::CallKind::kLowLatencyDispatch, kHidden);
    args.slot = kSlot;
    args.x = x_.as<std::byte>();
    args.ids = of.ids.as<int64_t>();
    if (has_weights) args.weights = weights_.as<float>();
    args.x_bytes = kBf16Row;
    args.row_bytes = kHidden;
    args.num_tokens = tokens_;
    args.num_topk = kTopk;
    args.num_experts = kExperts;
    args.form = moe::ScaleForm::kFloat;
    args.ticket = of.tickets.as<moe::gpu::Ticket>();
    return args;
  }
  moe::gpu::LlFanOutArgs fan_out_args(int r, bool has_weights = false) const {
    const Of& of = of_[static_cast<size_t>(r)];
    moe::gpu::LlFanOutArgs args{};
    args.team.rank = r;
    args.shape = shape(moe::CallKind::kLowLatencyDispatch, kHidden);
    args.slot = kSlot;
    args.row_bytes = kHidden;
    args.num_topk = kTopk;
    args.num_experts = kExperts;
    args.max_tokens = tokens_;
    args.scale_words = kScaleBytes / 4;
    args.ticket = of.tickets.as<moe::gpu::Ticket>();
    args.x = recv_x_.as<std::byte>();
    args.scales = scales_.as<uint32_t>();
    args.count = of.count.as<int32_t>();
    args.src_info = of.src_info.as<int32_t>();
    args.slots = of.slots.as<int32_t>();
    args.layout_range = of.ranges.as<int64_t>();
    if (has_weights) args.copies = copies_of(of);
    return args;
  }
  moe::CopyTable copies_of(const Of& of) const {
    const int64_t copies = int64_t{ranks_.size()} * tokens_;
    auto* const words = of.of_copies.as<int32_t>();
    return {of.copies.as<int32_t>(), words, words + copies,
            reinterpret_cast<float*>(words + copies * (1 + kTopk))};
  }
  template <typename Args>
  Args any_return_args(int r) const {
    const Of& of = of_[static_cast<size_t>(r)];
    Args args{};
    args.team.rank = r;
    args.shape = shape(moe::CallKind::kLowLatencyCombine, kBf16Row);
    args.x = y_.as<std::byte>();
    args.row_bytes = kBf16Row;
    args.num_tokens = tokens_;
    args.num_topk = kTopk;
    args.num_experts = kExperts;
    args.max_tokens = tokens_;
    args.of = of.tickets.as<moe::gpu::Ticket>();
    args.ticket = of.tickets.as<moe::gpu::Ticket>() + 1;
    return args;
  }
  moe::gpu::LlRankReturnArgs rank_return_args(int r) const {
    auto args = any_return_args<moe::gpu::LlRankReturnArgs>(r);
    args.copies = copies_of(of_[static_cast<size_t>(r)]);
    return args;
  }
  moe::gpu::LlReturnArgs return_args(int r) const {
    const Of& of = of_[static_cast<size_t>(r)];
    auto args = any_return_args<moe::gpu::LlReturnArgs>(r);
    args.slots = of.slots.as<int32_t>();
    args.layout_range = of.ranges.as<int64_t>();
    return args;
  }
  moe::gpu::LlSumArgs sum_args(int r) const {
    const Of& of = of_[static_cast<size_t>(r)];
    moe::gpu::LlSumArgs args{};
    args.team.rank = r;
    args.shape = shape(moe::CallKind::kLowLatencyCombine, kBf16Row);
    args.row_bytes = kBf16Row;
    args.num_tokens = tokens_;
    args.num_topk = kTopk;
    args.num_experts = kExperts;
    args.ids = of.ids.as<int64_t>();
    args.weights = weights_.as<float>();
    args.of = of.tickets.as<moe::gpu::Ticket>();
    args.ticket = of.tickets.as<moe::gpu::Ticket>() + 1;
    args.out = out_.as<std::byte>();
    return args;
  }

  const Kernels& kernels_;
  const int tokens_;
  const uint32_t num_blocks_;
  MoeRanks ranks_;
  Memory flush_, x_, weights_, out_, y_, recv_x_, scales_;
  std::vector<std::vector<int64_t>> ids_;
  std::vector<Of> of_;
  uint64_t draws_ = 0;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

inline void print_times(const Kernels& kernels) {
  CHECK_CUDA(cudaSetDevice(0));
  int sms = 0;
  CHECK_CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  const double hbm_gbps = Times::hbm_gbps();
  std::printf("a copy on the device: %.0f GB/s, reads and writes counted\n", hbm_gbps);
  Times(kernels, 1, 1, 1).nothing();
  for (const int num_ranks : {1, 8})
    for (const int tokens : {1, 128, 4096})
      for (const int blocks : {sms, 24, 8}) {
        if (tokens > 128 && blocks < 24) continue;
        Times(kernels, num_ranks, tokens, static_cast<uint32_t>(blocks)).low_latency(hbm_gbps);
        std::fflush(stdout);
      }
}

}  // namespace braid::test
