// layout.h against vectors that were made by hand, and against the reference on random routings.
#include "moe/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <vector>

#include "moe/routings.h"

namespace braid::moe {
namespace {

// Two ranks, four experts, two choices a token; every number below was made by hand.
constexpr Experts kExperts{2, 4, 2};
constexpr int64_t kIds0[] = {0, 1, 2, -1, 1, 3};
constexpr int64_t kIds1[] = {3, 2, 0, 3};

struct Counted {
  std::array<int32_t, 2> per_rank{};
  std::array<int32_t, 4> per_expert{};
  std::array<bool, 6> is_in_rank{};
  std::array<int32_t, 6> slots{};
};

constexpr Counted counted(std::span<const int64_t> ids) {
  Counted c;
  const size_t tokens = ids.size() / 2;
  count(kExperts, ids, tokens, c.per_rank, c.per_expert, {c.is_in_rank.data(), 2 * tokens});
  number_slots({c.is_in_rank.data(), 2 * tokens}, 2, {c.slots.data(), 2 * tokens});
  return c;
}

constexpr Counted kFrom0 = counted(kIds0), kFrom1 = counted(kIds1);
static_assert(kFrom0.per_rank == std::array{2, 2});
static_assert(kFrom0.per_expert == std::array{1, 2, 1, 1});
static_assert(kFrom0.is_in_rank == std::array{true, false, false, true, true, true});
static_assert(kFrom0.slots == std::array{0, -1, -1, 0, 1, 1});
static_assert(kFrom1.per_rank == std::array{1, 2});
static_assert(kFrom1.per_expert == std::array{1, 0, 1, 2});
static_assert(kExperts.local(3, 1) == 1 && kExperts.local(3, 0) == -1 &&
              kExperts.local(-1, 0) == -1);
static_assert(padded(0, 4) == 0 && padded(3, 4) == 4 && padded(4, 4) == 4);
static_assert(range_begin(packed_range(7, 3)) == 7 && range_count(packed_range(7, 3)) == 3);
static_assert(packed_range(2, 5) == 0x2'0000'0005);
static_assert(masked_place(1, 128, 8, packed_range(3, 2), 1) == 1024 + 4);
// The bound of facts: N T min(K, E / N), not max.
static_assert(most_rows({8, 256, 8}, 128) == 8192 && most_rows({64, 256, 8}, 128) == 32768);

// What a rank gets, by layout.h alone: every copy's place by source and every row's by expert.
struct Placed {
  std::vector<reference::Row> rows;         // at their place by expert
  std::vector<std::pair<int, int>> copies;  // at their place by source
};

Placed placed(const reference::Problem& p, int rank) {
  const Experts experts{p.num_ranks(), p.num_experts, p.num_topk};
  const auto n = static_cast<size_t>(p.num_ranks()), l = static_cast<size_t>(experts.per_rank());
  std::vector<int32_t> copies(n), counts(l * n), per_expert(l), begins(l + 1), copy_begins(n + 1);
  std::vector<std::vector<int32_t>> slots(n);
  for (size_t source = 0; source < n; ++source) {
    const reference::Tokens& from = p.ranks[source];
    const auto tokens = static_cast<size_t>(from.count);
    std::vector<int32_t> all(n), each(static_cast<size_t>(p.num_experts));
    const auto is_in = std::make_unique<bool[]>(tokens * n + 1);
    count(experts, from.ids, tokens, all, each, {is_in.get(), tokens * n});
    slots[source].resize(tokens * n);
    number_slots({is_in.get(), tokens * n}, p.num_ranks(), slots[source]);
    copies[source] = all[static_cast<size_t>(rank)];
    for (size_t e = 0; e < l; ++e) counts[e * n + source] = each[static_cast<size_t>(rank) * l + e];
  }
  std::vector<int64_t> ranges(l * n);
  range_each(counts, p.num_ranks(), ranges, per_expert);
  begin_each(per_expert, 1, begins);
  begin_each(copies, 1, copy_begins);
  Placed out;
  out.rows.resize(static_cast<size_t>(begins[l]), {-1, -1, -1, -1});
  out.copies.resize(static_cast<size_t>(copy_begins[n]), {-1, -1});
  std::vector<int32_t> next(l * n);
  for (size_t source = 0; source < n; ++source)
    for (int t = 0; t < p.ranks[source].count; ++t) {
      const int32_t slot = slots[source][static_cast<size_t>(t) * n + static_cast<size_t>(rank)];
      if (slot >= 0)
        out.copies[static_cast<size_t>(copy_begins[source] + slot)] = {static_cast<int>(source), t};
      for (int k = 0; k < p.num_topk; ++k) {
        const int64_t id = p.ranks[source].ids[static_cast<size_t>(t * p.num_topk + k)];
        const int e = experts.local(id, rank);
        if (e < 0) continue;
        const size_t range = static_cast<size_t>(e) * n + source;
        const uint64_t place =
            by_expert_place(begins[static_cast<size_t>(e)], ranges[range], next[range]++);
        EXPECT_EQ(out.rows[place].expert, -1) << "two rows at one place";
        out.rows[place] = {e, static_cast<int>(source), t, k};
      }
    }
  return out;
}

TEST(MoeLayout, PlacesAreTheReferencesOnRandomRoutings) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const reference::Problem p = test::random_problem(seed);
    for (int rank = 0; rank < p.num_ranks(); ++rank) {
      const Placed got = placed(p, rank);
      const auto rows = reference::by_expert(p, rank);
      ASSERT_EQ(got.rows.size(), rows.size()) << "seed " << seed;
      for (size_t i = 0; i < rows.size(); ++i) {
        EXPECT_EQ(got.rows[i].expert, rows[i].expert) << "seed " << seed << " row " << i;
        EXPECT_EQ(got.rows[i].source, rows[i].source);
        EXPECT_EQ(got.rows[i].token, rows[i].token);
        EXPECT_EQ(got.rows[i].k, rows[i].k);
      }
      const auto by_source = reference::by_source(p, rank, 1);
      ASSERT_EQ(got.copies.size(), by_source.source_rank.size());
      for (size_t i = 0; i < got.copies.size(); ++i)
        EXPECT_EQ(got.copies[i], std::pair(by_source.source_rank[i], by_source.source_token[i]));
      std::set<std::tuple<int, int, int>> met;  // the bound is for experts that differ
      for (const reference::Row& row : rows) met.emplace(row.source, row.token, row.expert);
      EXPECT_LE(met.size(), most_rows({p.num_ranks(), p.num_experts, p.num_topk},
                                      static_cast<uint64_t>(test::most_tokens(p))));
    }
  }
}

TEST(MoeLayout, EveryChoiceHasOneRowAndEveryRowGoesBackToItsOwnSlot) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const reference::Problem p = test::random_problem(seed);
    std::vector<std::set<uint32_t>> slots(static_cast<size_t>(p.num_ranks()));
    for (int rank = 0; rank < p.num_ranks(); ++rank)
      for (const reference::Row& row : reference::by_expert(p, rank))
        EXPECT_TRUE(slots[static_cast<size_t>(row.source)]
                        .insert(owner_slot(static_cast<uint32_t>(row.token), p.num_topk, row.k))
                        .second);
    for (int r = 0; r < p.num_ranks(); ++r) {
      const auto& ids = p.ranks[static_cast<size_t>(r)].ids;
      const auto chosen = std::count_if(ids.begin(), ids.end(), [](int64_t id) { return id >= 0; });
      EXPECT_EQ(slots[static_cast<size_t>(r)].size(), static_cast<size_t>(chosen));
    }
  }
}

TEST(MoeLayout, BytesOfALinkFollowFromCopies) {
  const reference::Problem p = test::vector_a();
  EXPECT_EQ(reference::copy_bytes(p, 0, 1, 100), 200U);
  EXPECT_EQ(reference::copy_bytes(p, 1, 0, 100), 100U);
  EXPECT_EQ(reference::row_bytes(p, 0, 1, 100), 200U);
  EXPECT_EQ(reference::row_bytes(p, 0, 0, 100), 300U);      // token 0 has two experts there
  EXPECT_EQ(reference::node_bytes(p, 0, 0, 2, 100), 300U);  // both ranks are one node
  EXPECT_EQ(reference::node_bytes(p, 0, 1, 1, 100), 200U);
}

}  // namespace
}  // namespace braid::moe
