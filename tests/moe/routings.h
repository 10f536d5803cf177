// Routings for tests: vector A, which was made by hand, and random ones with everything that is
// odd in them: ranks without tokens, ids of -1, the same id twice, one expert for all.
#pragma once

#include <algorithm>
#include <cstring>
#include <random>

#include "moe/formats.h"
#include "moe/reference.h"

namespace braid::moe::test {

/// bf16 rows that say whose they are: rank, token and channel in small whole numbers.
inline reference::Bytes rows_of(int rank, int num_tokens, uint64_t row_bytes) {
  reference::Bytes rows(static_cast<uint64_t>(num_tokens) * row_bytes);
  for (uint64_t i = 0; i < rows.size() / 2; ++i) {
    const auto value = static_cast<float>((i * 7 + static_cast<uint64_t>(rank) * 13) % 127) - 63;
    const uint16_t bits = float_to_bf16(value);
    std::memcpy(rows.data() + 2 * i, &bits, 2);
  }
  return rows;
}

inline reference::Problem vector_a(uint64_t row_bytes = 32) {
  reference::Problem p{4, 2, row_bytes, {}};
  p.ranks.push_back({3, rows_of(0, 3, row_bytes), {0, 1, 2, -1, 1, 3}, {.5, .5, 1, 0, .25, .75}});
  p.ranks.push_back({2, rows_of(1, 2, row_bytes), {3, 2, 0, 3}, {.5, .5, .5, .5}});
  return p;
}

inline int most_tokens(const reference::Problem& p) {
  int most = 0;
  for (const reference::Tokens& each : p.ranks) most = std::max(most, each.count);
  return most;
}

inline reference::Problem random_problem(uint64_t seed, int num_ranks = 0, uint64_t row_bytes = 32,
                                         int up_to_tokens = 24) {
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t n) { return static_cast<int>(random() % n); };
  const int n = num_ranks != 0 ? num_ranks : 1 + below(8);
  reference::Problem p{n * (1 + below(4)), 1 + below(6), row_bytes, {}};
  const int kind = below(5);
  for (int r = 0; r < n; ++r) {
    reference::Tokens tokens;
    tokens.count = below(5) == 0 ? 0 : below(static_cast<uint64_t>(up_to_tokens) + 1);
    tokens.rows = rows_of(r, tokens.count, row_bytes);
    for (int i = 0; i < tokens.count * p.num_topk; ++i) {
      const auto expert = static_cast<int64_t>(random() % static_cast<uint64_t>(p.num_experts));
      const int64_t ids[] = {expert, below(5) == 0 ? -1 : expert, -1, p.num_experts - 1,
                             expert / 2};
      tokens.ids.push_back(ids[kind]);
      tokens.weights.push_back(static_cast<float>(1 + below(16)) / 16.0F);
    }
    p.ranks.push_back(std::move(tokens));
  }
  return p;
}

}  // namespace braid::moe::test
