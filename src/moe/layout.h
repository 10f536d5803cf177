// Layout: where every row of a dispatch lies, as a pure function of the ids. Nothing here reads a
// counter that somebody else writes: the slot of a row follows from prefix sums over `topk_idx`
// alone, so that it is the same on every rank, in every run, on a GPU as on the CPU.
//
// Words: N ranks; E experts, L = E / N of them on each rank, expert e on rank e / L; a rank's T
// tokens choose K experts each, -1 is none. M is the largest T that the ranks agreed on.
//
//   copy     a token goes at most once to each rank that has one of its experts
//   slot     number of a copy among those of its source to one rank, in the order of tokens
//   row      a copy once per expert that it meets: the same id twice in a token makes two rows
//
// Where rows lie at the rank that gets them:
//
//   by source            copies by (source, token); their K ids local, -1 for experts elsewhere
//   by expert            rows by (expert, source, token, k), each expert padded to a multiple
//   masked [L, M*N]      the same order, every expert in an area of its own
//   rank-major [N, M]    copies at [source][slot]
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace braid::moe {

inline constexpr int kMaxTopk = 32;

struct Experts {
  int num_ranks = 1;
  int num_experts = 1;
  int num_topk = 0;

  constexpr int per_rank() const { return num_experts / num_ranks; }
  /// The rank of an expert, -1 for no expert.
  constexpr int rank_of(int64_t id) const {
    return id < 0 ? -1 : static_cast<int>(id / per_rank());
  }
  /// The expert's number on `rank`, -1 where it lives elsewhere or is none.
  constexpr int local(int64_t id, int rank) const {
    return rank_of(id) == rank ? static_cast<int>(id % per_rank()) : -1;
  }
};

/// Whether token `ids` [K] has an expert on `rank`.
constexpr bool goes_to(const Experts& experts, const int64_t* ids, int rank) {
  for (int k = 0; k < experts.num_topk; ++k)
    if (experts.rank_of(ids[k]) == rank) return true;
  return false;
}

/// Copies per rank [N], rows per expert [E], and which token goes where [T, N], of one source.
constexpr void count(const Experts& experts, std::span<const int64_t> ids, size_t num_tokens,
                     std::span<int32_t> per_rank, std::span<int32_t> per_expert,
                     std::span<bool> is_in_rank) {
  const auto n = static_cast<size_t>(experts.num_ranks);
  const auto k = static_cast<size_t>(experts.num_topk);
  for (int32_t& each : per_rank) each = 0;
  for (int32_t& each : per_expert) each = 0;
  for (bool& each : is_in_rank) each = false;
  for (size_t t = 0; t < num_tokens; ++t)
    for (size_t i = 0; i < k; ++i) {
      const int64_t id = ids[t * k + i];
      if (id < 0) continue;
      const auto rank = static_cast<size_t>(experts.rank_of(id));
      ++per_expert[static_cast<size_t>(id)];
      if (!is_in_rank[t * n + rank]) ++per_rank[rank];
      is_in_rank[t * n + rank] = true;
    }
}

/// The slot of every copy [T, N], -1 where a token does not go.
constexpr void number_slots(std::span<const bool> is_in_rank, int num_ranks,
                            std::span<int32_t> slots) {
  const auto n = static_cast<size_t>(num_ranks);
  for (size_t rank = 0; rank < n; ++rank) {
    int32_t next = 0;
    for (size_t at = rank; at < is_in_rank.size(); at += n)
      slots[at] = is_in_rank[at] ? next++ : -1;
  }
}

constexpr int32_t padded(int32_t rows, int32_t alignment) {
  return (rows + alignment - 1) / alignment * alignment;
}

/// Exclusive prefix sums, every count padded first; `begins` has one element more than `counts`.
constexpr void begin_each(std::span<const int32_t> counts, int32_t alignment,
                          std::span<int32_t> begins) {
  int32_t next = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    begins[i] = next;
    next += padded(counts[i], alignment);
  }
  begins[counts.size()] = next;
}

/// Where the rows of (expert, source) begin inside their expert, and how many there are, as
/// DeepEP's `layout_range` packs them.
constexpr int64_t packed_range(int32_t begin, int32_t count) {
  return static_cast<int64_t>(begin) << 32 | static_cast<uint32_t>(count);
}
constexpr int32_t range_begin(int64_t range) { return static_cast<int32_t>(range >> 32); }
constexpr int32_t range_count(int64_t range) { return static_cast<int32_t>(range & 0xffffffff); }

/// Rows of one rank by (expert, source): from counts [L, N] come ranges [L, N] and rows per expert.
constexpr void range_each(std::span<const int32_t> counts, int num_ranks, std::span<int64_t> ranges,
                          std::span<int32_t> per_expert) {
  const auto n = static_cast<size_t>(num_ranks);
  for (size_t e = 0; e < per_expert.size(); ++e) {
    int32_t next = 0;
    for (size_t source = 0; source < n; ++source) {
      ranges[e * n + source] = packed_range(next, counts[e * n + source]);
      next += counts[e * n + source];
    }
    per_expert[e] = next;
  }
}

constexpr uint64_t by_expert_place(int32_t expert_begin, int64_t range, int32_t index) {
  return static_cast<uint64_t>(expert_begin + range_begin(range) + index);
}
constexpr uint64_t masked_place(int expert, uint64_t max_tokens, int num_ranks, int64_t range,
                                int32_t index) {
  return static_cast<uint64_t>(expert) * max_tokens * static_cast<uint64_t>(num_ranks) +
         static_cast<uint64_t>(range_begin(range) + index);
}

/// On the way back of a low-latency call: the owner's slot of row (token, k).
constexpr uint32_t owner_slot(uint32_t token, int num_topk, int k) {
  return token * static_cast<uint32_t>(num_topk) + static_cast<uint32_t>(k);
}

/// The most copies that any one rank can get: a bound that needs no ids.
constexpr uint64_t most_copies(int num_ranks, uint64_t max_tokens) {
  return static_cast<uint64_t>(num_ranks) * max_tokens;
}
/// The most rows: a token meets at most K experts, and at most all of a rank's.
constexpr uint64_t most_rows(const Experts& experts, uint64_t max_tokens) {
  const int most = experts.num_topk < experts.per_rank() ? experts.num_topk : experts.per_rank();
  return most_copies(experts.num_ranks, max_tokens) * static_cast<uint64_t>(most);
}

}  // namespace braid::moe
