// Buffers for tests: run_buffers(n, ...) gives every rank, a thread with a comm of its own, a buffer;
// and calls that a test makes as one line.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "moe/buffer.h"
#include "moe/reference.h"
#include "moe/routings.h"
#include "support/ranks.h"

namespace braid::moe::test {

using reference::Bytes;

inline Config config_of(const std::vector<std::pair<std::string, std::string>>& options = {}) {
  Config config;
  EXPECT_TRUE(config.set("BRAID_LINKS", "shm").ok());
  EXPECT_TRUE(config.set("BRAID_TIMEOUT", "20s").ok());
  for (const auto& [name, value] : options) EXPECT_TRUE(config.set(name, value).ok()) << name;
  return config;
}

/// Ranks `first` to `first + count - 1` of a job; the others are in other processes.
inline void run_job(const group::Identity& job, int first, int count, const BufferOptions& options,
                    const Config& config, const std::function<void(Buffer&)>& body,
                    const std::function<void(int, Config&)>& of_rank = {}) {
  braid::test::run_threads(count, [&](int local) {
    const int rank = first + local;
    Config own = config;
    if (of_rank) of_rank(rank, own);
    group::Identity identity = braid::test::as_rank(job, rank);
    if (count < job.size) identity.local_rank = local;
    auto comm = comm::Comm::create(identity, own);
    ASSERT_TRUE(comm.ok()) << comm.status().to_string();
    auto buffer = Buffer::create(**comm, options);
    ASSERT_TRUE(buffer.ok()) << buffer.status().to_string();
    body(**buffer);
    buffer->reset();
  });
}

inline void run_buffers(int size, const BufferOptions& options, const Config& config,
                        const std::function<void(Buffer&)>& body,
                        const std::function<void(int, Config&)>& of_rank = {}) {
  run_job(braid::test::draw_job(size), 0, size, options, config, body, of_rank);
}

/// Arguments and results of one low-latency exchange of a problem's rank.
struct LowLatency {
  LowLatency(const reference::Problem& problem, int rank, int max_tokens,
             ScaleForm form = ScaleForm::kNone, bool has_weights = false)
      : p(problem), own(problem.ranks[static_cast<size_t>(rank)]) {
    dispatch.x = own.rows.data();
    dispatch.hidden = p.row_bytes / 2;
    dispatch.ids = own.ids.data();
    dispatch.num_tokens = own.count;
    dispatch.num_topk = p.num_topk;
    dispatch.max_tokens = max_tokens;
    dispatch.num_experts = p.num_experts;
    dispatch.form = form;
    dispatch.weights = own.weights.data();
    dispatch.has_weights = has_weights;
    const auto n = static_cast<size_t>(p.num_ranks());
    l = static_cast<size_t>(p.num_experts) / n;
    per_expert = static_cast<size_t>(max_tokens) * n;
    x.resize(l * per_expert * dispatch.row_bytes());
    scales.resize(l * per_expert * scale_bytes(form, dispatch.hidden));
    count.resize(l);
    src_info.resize(l * per_expert);
    slots.resize(l * per_expert);
    layout_range.resize(l * n);
    rows = {x.data(),     scales.data(),       count.data(), src_info.data(),
            slots.data(), layout_range.data(), nullptr,      {}};
    if (!has_weights) return;
    copy_counts.resize(n);
    copy_tokens.resize(per_expert);
    copy_places.resize(per_expert * static_cast<size_t>(p.num_topk));
    copy_weights.resize(copy_places.size());
    rows.copies = {copy_counts.data(), copy_tokens.data(), copy_places.data(), copy_weights.data()};
  }

  /// The received rows of all experts, one after the other.
  Bytes packed() const {
    Bytes out;
    for (size_t e = 0; e < l; ++e) {
      const auto begin = x.begin() + static_cast<int64_t>(e * per_expert * dispatch.row_bytes());
      out.insert(
          out.end(), begin,
          begin + static_cast<int64_t>(static_cast<uint64_t>(count[e]) * dispatch.row_bytes()));
    }
    return out;
  }

  LowLatencyCombine combine(uint64_t phase, const std::vector<float>& weights) const {
    LowLatencyCombine c;
    c.x = x.data();
    c.hidden = dispatch.hidden;
    c.slots = slots.data();
    c.layout_range = layout_range.data();
    c.ids = own.ids.data();
    c.weights = weights.data();
    c.num_tokens = own.count;
    c.num_topk = p.num_topk;
    c.max_tokens = dispatch.max_tokens;
    c.num_experts = p.num_experts;
    c.of_phase = static_cast<uint32_t>(phase);
    c.ids_hash = hash_of(own.ids.data(), own.count, p.num_topk);
    return c;
  }
  LowLatencyCombine combine_by_rank(uint64_t phase) const {
    LowLatencyCombine c = combine(phase, own.weights);
    c.sums_by_rank = true;
    c.copies = rows.copies;
    c.weights_hash = hash_of(own.weights.data(), own.count, p.num_topk);
    return c;
  }

  const reference::Problem& p;
  const reference::Tokens& own;
  LowLatencyDispatch dispatch;
  size_t l = 0, per_expert = 0;
  Bytes x, scales;
  std::vector<int32_t> count, src_info, slots;
  std::vector<int64_t> layout_range;
  std::vector<int32_t> copy_counts, copy_tokens, copy_places;
  std::vector<float> copy_weights;
  LowLatencyRows rows;
};

/// Arguments and results of one normal exchange.
struct Normal {
  Normal(const reference::Problem& problem, int rank)
      : p(problem), own(problem.ranks[static_cast<size_t>(rank)]) {
    const Experts experts{p.num_ranks(), p.num_experts, p.num_topk};
    const auto n = static_cast<size_t>(p.num_ranks());
    const auto tokens = static_cast<size_t>(own.count);
    per_rank.resize(n);
    per_expert.resize(static_cast<size_t>(p.num_experts));
    is_in_rank = std::make_unique<bool[]>(tokens * n + 1);
    count(experts, own.ids, tokens, per_rank, per_expert, {is_in_rank.get(), tokens * n});
    dispatch.x = own.rows.data();
    dispatch.row_bytes = p.row_bytes;
    dispatch.num_tokens = own.count;
    dispatch.is_in_rank = is_in_rank.get();
    dispatch.per_expert = per_expert.data();
    dispatch.ids = own.ids.data();
    dispatch.weights = own.weights.data();
    dispatch.has_ids = dispatch.has_weights = true;
    dispatch.num_topk = p.num_topk;
    dispatch.num_experts = p.num_experts;
  }

  Status run(Buffer& buffer) {
    auto begun = buffer.begin(dispatch);
    if (!begun.ok()) return begun.status();
    incoming = std::move(begun).value();
    const auto rows = static_cast<size_t>(incoming.num_rows);
    x.resize(rows * p.row_bytes);
    ids.resize(rows * static_cast<size_t>(p.num_topk));
    weights.resize(ids.size());
    source_token.resize(rows);
    return buffer.finish(dispatch, {x.data(), nullptr, ids.data(), weights.data(),
                                    source_token.data(), incoming.num_rows});
  }

  Combine combine(const Bytes& y, Bytes& out, std::vector<float>& out_weights) const {
    out.resize(static_cast<uint64_t>(own.count) * p.row_bytes);
    out_weights.resize(static_cast<size_t>(own.count * p.num_topk));
    Combine c;
    c.x = y.data();
    c.hidden = p.row_bytes / 2;
    c.weights = weights.data();
    c.has_weights = true;
    c.num_topk = p.num_topk;
    c.rows_of = incoming.rows_of;
    c.source_token = source_token.data();
    c.num_rows = incoming.num_rows;
    c.most_tokens = incoming.most_tokens;
    c.is_in_rank = is_in_rank.get();
    c.num_tokens = own.count;
    c.of_phase = incoming.phase;
    c.out = out.data();
    c.out_weights = out_weights.data();
    return c;
  }

  const reference::Problem& p;
  const reference::Tokens& own;
  Dispatch dispatch;
  std::vector<int32_t> per_rank, per_expert;
  std::unique_ptr<bool[]> is_in_rank;
  Incoming incoming;
  Bytes x;
  std::vector<int64_t> ids;
  std::vector<float> weights;
  std::vector<int32_t> source_token;
};

/// What all ranks gave to combine, for the reference.
struct Told {
  std::mutex mutex;
  std::vector<Bytes> y;
  void tell(int rank, Bytes bytes) {
    const std::lock_guard lock(mutex);
    y.resize(std::max(y.size(), static_cast<size_t>(rank) + 1));
    y[static_cast<size_t>(rank)] = std::move(bytes);
  }
  std::vector<Bytes> all() {
    const std::lock_guard lock(mutex);
    return y;
  }
};

inline void expect_low_latency_rows(const LowLatency& got, int rank) {
  const auto rows = reference::by_expert(got.p, rank);
  const Bytes packed = got.packed();
  ASSERT_EQ(packed.size(), rows.size() * got.p.row_bytes);
  std::vector<size_t> next(got.l);
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto e = static_cast<size_t>(rows[i].expert);
    const size_t place = e * got.per_expert + next[e]++;
    EXPECT_EQ(got.src_info[place], rows[i].token);
    EXPECT_EQ(got.slots[place], rows[i].token * got.p.num_topk + rows[i].k);
    const Bytes& x = got.p.ranks[static_cast<size_t>(rows[i].source)].rows;
    EXPECT_EQ(0, std::memcmp(packed.data() + i * got.p.row_bytes,
                             x.data() + static_cast<uint64_t>(rows[i].token) * got.p.row_bytes,
                             got.p.row_bytes));
  }
}

/// Rows as experts may leave them: bf16 whose sums depend on their order and are rounded.
inline Bytes made_rows(uint64_t seed, int rank, uint64_t bytes) {
  std::mt19937_64 random(seed * 131 + static_cast<uint64_t>(rank));
  Bytes rows(bytes);
  for (uint64_t i = 0; i + 1 < bytes; i += 2) {
    const float value = std::ldexp(static_cast<float>(random() % 1024) - 512.0F,
                                   static_cast<int>(random() % 9) - 4);
    const uint16_t bits = float_to_bf16(value);
    std::memcpy(rows.data() + i, &bits, sizeof bits);
  }
  return rows;
}

/// One dispatch and one combine of each kind on the problem of `seed`, byte for byte beside the
/// reference. Every rank can compute what the others send, so they may be in other processes.
/// `per_node` ranks are one node where sums are made by node.
inline void check_calls(Buffer& buffer, uint64_t seed, int max_tokens, int per_node) {
  const int n = buffer.size(), rank = buffer.rank();
  const auto p = random_problem(seed, n, 64);
  LowLatency call(p, rank, max_tokens);
  const auto sent = buffer.send(call.dispatch);
  ASSERT_TRUE(sent.ok()) << sent.status().to_string();
  Status status = buffer.receive(sent.value(), call.dispatch, call.rows);
  ASSERT_TRUE(status.ok()) << status.to_string();
  expect_low_latency_rows(call, rank);
  std::vector<Bytes> packed;  // as they came: identity experts
  for (int r = 0; r < n; ++r) {
    packed.emplace_back();
    for (const reference::Row& row : reference::by_expert(p, r)) {
      const Bytes& x = p.ranks[static_cast<size_t>(row.source)].rows;
      const auto from = x.begin() + row.token * static_cast<int64_t>(p.row_bytes);
      packed.back().insert(packed.back().end(), from, from + static_cast<int64_t>(p.row_bytes));
    }
  }
  const auto back = call.combine(sent.value().phase, call.own.weights);
  const auto sent_back = buffer.send(back);
  ASSERT_TRUE(sent_back.ok()) << sent_back.status().to_string();
  Bytes out(static_cast<uint64_t>(call.own.count) * p.row_bytes);
  status = buffer.receive(sent_back.value(), back, out.data(), nullptr);
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(out,
            reference::combine_low_latency(p, rank, Dtype::kBfloat16, packed, call.own.weights))
      << "seed " << seed;

  Normal normal(p, rank);
  status = normal.run(buffer);
  ASSERT_TRUE(status.ok()) << status.to_string();
  const auto expected = reference::by_source(p, rank, 1);
  EXPECT_EQ(normal.x, expected.rows) << "seed " << seed;
  EXPECT_EQ(normal.ids, expected.ids);
  EXPECT_EQ(normal.weights, expected.weights);
  EXPECT_EQ(normal.source_token, expected.source_token);
  EXPECT_EQ(normal.incoming.per_expert, expected.rows_per_expert);
  std::vector<Bytes> y;
  for (int r = 0; r < n; ++r)
    y.push_back(made_rows(seed, r, reference::by_source(p, r, 1).rows.size()));
  const Bytes bias = made_rows(seed, n, static_cast<uint64_t>(normal.own.count) * p.row_bytes);
  for (const bool by_node : {false, true}) {
    std::vector<float> weights;
    Combine combine = normal.combine(y[static_cast<size_t>(rank)], out, weights);
    combine.biases[0] = bias.data();
    combine.sums_by_node = by_node;
    status = buffer.combine(combine);
    ASSERT_TRUE(status.ok()) << status.to_string();
    EXPECT_EQ(out, by_node
                       ? reference::combine_by_node(p, rank, Dtype::kBfloat16, y, {bias}, per_node)
                       : reference::combine(p, rank, Dtype::kBfloat16, y, {bias}))
        << "seed " << seed << ", by node " << by_node;
    for (size_t i = 0; i < weights.size(); ++i)
      EXPECT_EQ(weights[i], normal.own.ids[i] < 0 ? 0 : normal.own.weights[i]);
  }
}

}  // namespace braid::moe::test
