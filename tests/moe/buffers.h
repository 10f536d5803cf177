// Buffers for tests: run_buffers(n, ...) gives every rank, a thread with a comm of its own, a buffer;
// and calls that a test makes as one line.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "moe/buffer.h"
#include "moe/reference.h"
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

inline void run_buffers(int size, const BufferOptions& options, const Config& config,
                        const std::function<void(Buffer&)>& body,
                        const std::function<void(int, Config&)>& of_rank = {}) {
  const group::Identity job = braid::test::draw_job(size);
  braid::test::run_threads(size, [&](int rank) {
    Config own = config;
    if (of_rank) of_rank(rank, own);
    auto comm = comm::Comm::create(braid::test::as_rank(job, rank), own);
    ASSERT_TRUE(comm.ok()) << comm.status().to_string();
    auto buffer = Buffer::create(**comm, options);
    ASSERT_TRUE(buffer.ok()) << buffer.status().to_string();
    body(**buffer);
    buffer->reset();
  });
}

/// Arguments and results of one low-latency exchange of a problem's rank.
struct LowLatency {
  LowLatency(const reference::Problem& problem, int rank, int max_tokens,
             ScaleForm form = ScaleForm::kNone)
      : p(problem), own(problem.ranks[static_cast<size_t>(rank)]) {
    dispatch.x = own.rows.data();
    dispatch.hidden = p.row_bytes / 2;
    dispatch.ids = own.ids.data();
    dispatch.num_tokens = own.count;
    dispatch.num_topk = p.num_topk;
    dispatch.max_tokens = max_tokens;
    dispatch.num_experts = p.num_experts;
    dispatch.form = form;
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
            slots.data(), layout_range.data(), nullptr};
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

  const reference::Problem& p;
  const reference::Tokens& own;
  LowLatencyDispatch dispatch;
  size_t l = 0, per_expert = 0;
  Bytes x, scales;
  std::vector<int32_t> count, src_info, slots;
  std::vector<int64_t> layout_range;
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

}  // namespace braid::moe::test
