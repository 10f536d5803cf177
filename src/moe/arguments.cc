#include "moe/arguments.h"

#include <bit>
#include <limits>
#include <numeric>

#include "base/units.h"

namespace braid::moe {

namespace {

constexpr uint64_t kRowUnit = 16;  // bytes
// Flags have 32 bits for a row's bytes and its side row's, and kernels count both together in as many.
constexpr uint64_t kMostRowBytes = 1_GiB;
static_assert(2 * kMostRowBytes <= std::numeric_limits<int32_t>::max() + uint64_t{1});

Status check_most(uint64_t bytes, const char* argument) {
  if (bytes <= kMostRowBytes) return {};
  return invalid_argument("argument {}: expected rows of at most {} bytes, got {}", argument,
                          kMostRowBytes, bytes);
}

Status check_row(uint64_t bytes, const char* argument) {
  if (bytes != 0 && bytes % kRowUnit == 0) return check_most(bytes, argument);
  return invalid_argument("argument {}: expected rows of a multiple of {} bytes, got {}", argument,
                          kRowUnit, bytes);
}

Status check_dtype(Dtype dtype) {
  if (is_summable(dtype)) return {};
  return invalid_argument("argument x: expected bfloat16, float16 or float32, got {}",
                          dtype_name(dtype));
}

Status check_tokens(int num_tokens, int max_tokens) {
  if (max_tokens < 1)
    return invalid_argument("argument num_max_dispatch_tokens_per_rank: expected 1 or more, got {}",
                            max_tokens);
  if (num_tokens > max_tokens)
    return invalid_argument(
        "argument x: expected at most {} tokens (num_max_dispatch_tokens_per_rank), got {}",
        max_tokens, num_tokens);
  return {};
}

// An expert has room for M rows of each source. Only a token that names it twice can need more.
Status check_rows_per_expert(const LowLatencyDispatch& call) {
  std::vector<int> rows(static_cast<size_t>(call.num_experts));
  const auto count = static_cast<size_t>(call.num_tokens) * static_cast<size_t>(call.num_topk);
  for (size_t i = 0; i < count; ++i)
    if (call.ids[i] >= 0 && ++rows[static_cast<size_t>(call.ids[i])] > call.max_tokens)
      return invalid_argument(
          "argument topk_idx: expected an expert at most {} times "
          "(num_max_dispatch_tokens_per_rank), got expert {} more often (tokens name it twice)",
          call.max_tokens, call.ids[i]);
  return {};
}

// Murmur3's finalizer over every word, chained.
template <typename Word, typename T>
uint64_t hash_of_bits(const T* words, int num_tokens, int num_topk) {
  static_assert(sizeof(Word) == sizeof(T));
  uint64_t hash = static_cast<uint64_t>(num_topk);
  for (size_t i = 0; i < static_cast<size_t>(num_tokens) * static_cast<size_t>(num_topk); ++i) {
    hash = (hash ^ std::bit_cast<Word>(words[i])) * 0xff51afd7ed558ccd;
    hash ^= hash >> 33;
  }
  return hash;
}

}  // namespace

Status check_experts(int num_experts, int num_ranks, int num_topk) {
  if (num_experts < 1 || num_experts % num_ranks != 0)
    return invalid_argument("argument num_experts: expected a multiple of {} ranks, got {}",
                            num_ranks, num_experts);
  if (num_topk < 1 || num_topk > kMaxTopk)
    return invalid_argument("argument topk_idx: expected 1 to {} experts a token, got {}", kMaxTopk,
                            num_topk);
  return {};
}

Status check_ids(const int64_t* ids, int num_tokens, int num_topk, int num_experts) {
  const auto count = static_cast<size_t>(num_tokens) * static_cast<size_t>(num_topk);
  for (size_t i = 0; i < count; ++i)
    if (ids[i] < -1 || ids[i] >= num_experts)
      return invalid_argument("argument topk_idx: expected -1 to {}, got {} (token {}, choice {})",
                              num_experts - 1, ids[i], i / static_cast<size_t>(num_topk),
                              i % static_cast<size_t>(num_topk));
  return {};
}

Status check_shape(const LowLatencyDispatch& call, int num_ranks) {
  BRAID_RETURN_IF_ERROR(check_experts(call.num_experts, num_ranks, call.num_topk));
  BRAID_RETURN_IF_ERROR(check_tokens(call.num_tokens, call.max_tokens));
  BRAID_RETURN_IF_ERROR(check_row(call.row_bytes(), "x"));
  const uint64_t rows =
      static_cast<uint64_t>(call.num_experts) * static_cast<uint64_t>(call.max_tokens);
  if (call.has_weights && rows > std::numeric_limits<int32_t>::max())
    return invalid_argument(
        "argument topk_weights: expected at most 2^31 rows of all experts beside them, got {}",
        rows);
  if (call.form != ScaleForm::kNone) {
    BRAID_RETURN_IF_ERROR(check_dtype(call.dtype));
    const int unit = call.form == ScaleForm::kUe8m0 ? 4 * kScaleBlock : kScaleBlock;
    if (call.hidden % static_cast<uint64_t>(unit) != 0)
      return invalid_argument(
          "argument x: expected a multiple of {} channels for the cast to fp8, got {}", unit,
          call.hidden);
  }
  return {};
}

Status check(const LowLatencyDispatch& call, int num_ranks) {
  BRAID_RETURN_IF_ERROR(check_shape(call, num_ranks));
  BRAID_RETURN_IF_ERROR(check_ids(call.ids, call.num_tokens, call.num_topk, call.num_experts));
  return check_rows_per_expert(call);
}

Status check_shape(const LowLatencyCombine& call, int num_ranks) {
  BRAID_RETURN_IF_ERROR(check_experts(call.num_experts, num_ranks, call.num_topk));
  BRAID_RETURN_IF_ERROR(check_tokens(call.num_tokens, call.max_tokens));
  BRAID_RETURN_IF_ERROR(check_dtype(call.dtype));
  if (call.sums_by_rank && !call.copies.is_whole())
    return invalid_argument("argument partial: expected a dispatch that had topk_weights");
  return check_row(call.row_bytes(), "x");
}

Status check(const LowLatencyCombine& call, int num_ranks) {
  BRAID_RETURN_IF_ERROR(check_shape(call, num_ranks));
  BRAID_RETURN_IF_ERROR(check_ids(call.ids, call.num_tokens, call.num_topk, call.num_experts));
  if (hash_of(call.ids, call.num_tokens, call.num_topk) != call.ids_hash)
    return invalid_argument("argument topk_idx: expected the ids of the dispatch, got others");
  if (!call.sums_by_rank) return {};
  if (hash_of(call.weights, call.num_tokens, call.num_topk) != call.weights_hash)
    return invalid_argument("argument topk_weights: expected those of the dispatch, got others");
  return {};
}

Status check_shape(const Dispatch& call, int num_ranks) {
  BRAID_RETURN_IF_ERROR(check_row(call.row_bytes, "x"));
  BRAID_RETURN_IF_ERROR(check_most(call.side_bytes, "x scales"));
  return call.has_ids ? check_experts(call.num_experts, num_ranks, call.num_topk) : Status();
}

Status check(const Dispatch& call, int num_ranks) {
  BRAID_RETURN_IF_ERROR(check_shape(call, num_ranks));
  if (!call.has_ids) return {};
  BRAID_RETURN_IF_ERROR(check_ids(call.ids, call.num_tokens, call.num_topk, call.num_experts));
  const Experts experts{num_ranks, call.num_experts, call.num_topk};
  for (int t = 0; t < call.num_tokens; ++t)
    for (int r = 0; r < num_ranks; ++r) {
      const auto token = static_cast<size_t>(t);
      const bool goes = goes_to(experts, call.ids + token * static_cast<size_t>(call.num_topk), r);
      if (goes != call.is_in_rank[token * static_cast<size_t>(num_ranks) + static_cast<size_t>(r)])
        return invalid_argument(
            "argument is_token_in_rank: expected {} for token {} and rank {} by topk_idx, got {}",
            goes, t, r, !goes);
    }
  return {};
}

Status check_shape(const Combine& call) {
  BRAID_RETURN_IF_ERROR(check_dtype(call.dtype));
  return check_row(call.row_bytes(), "x");
}

Status check(const Combine& call, int num_ranks) {
  BRAID_RETURN_IF_ERROR(check_shape(call));
  if (call.rows_of.size() != static_cast<size_t>(num_ranks))
    return invalid_argument("argument handle: expected counts of {} ranks, got {}", num_ranks,
                            call.rows_of.size());
  const int64_t received = std::accumulate(call.rows_of.begin(), call.rows_of.end(), int64_t{0});
  if (received > call.num_rows)
    return invalid_argument("argument x: expected the {} rows that were received, got {}", received,
                            call.num_rows);
  return {};
}

uint64_t hash_of(const int64_t* ids, int num_tokens, int num_topk) {
  return hash_of_bits<uint64_t>(ids, num_tokens, num_topk);
}
uint64_t hash_of(const float* weights, int num_tokens, int num_topk) {
  return hash_of_bits<uint32_t>(weights, num_tokens, num_topk);
}

}  // namespace braid::moe
