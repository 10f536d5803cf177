// Reference: what every result of a dispatch and a combine is, bit for bit, computed for all ranks
// in one place by plain loops. It uses nothing of layout.h, so that each proves the other.
//
// Sums are in fp32, in the stated order, each product and each sum rounded, and rounded once more
// into the rows' type:
//
//   normal       owner's token = row of rank 0 + row of rank 1 + ... + bias 0 + bias 1, of the ranks
//                that got it; the first row is not added to a zero
//   by node      the same of each node's ranks alone, rounded into the rows' type: a partial; owner's
//                token = partial of node 0 + partial of node 1 + ... + biases, of nodes that got it
//   by rank      (low latency) (0 + w[k] row[k]) + ... of each rank's choices alone, k upwards, rounded
//                into the rows' type: a partial; owner's token = partial of rank 0 + partial of rank 1 +
//                ..., of ranks that got it
//   low latency  ((0 + w[0] row[0]) + w[1] row[1]) + ..., k upwards, without ids of -1
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/dtype.h"

namespace braid::moe::reference {

using Bytes = std::vector<std::byte>;

/// One rank's tokens.
struct Tokens {
  int count = 0;
  Bytes rows;                  // [T] rows of row_bytes
  std::vector<int64_t> ids;    // [T, K]
  std::vector<float> weights;  // [T, K], or empty
};

struct Problem {
  int num_experts = 1;
  int num_topk = 1;
  uint64_t row_bytes = 0;
  std::vector<Tokens> ranks;

  int num_ranks() const { return static_cast<int>(ranks.size()); }
};

/// What one rank gets by source.
struct BySource {
  Bytes rows;
  std::vector<int32_t> source_rank, source_token;
  std::vector<int64_t> ids;              // [n, K], local
  std::vector<float> weights;            // [n, K], 0 where the id is -1
  std::vector<int32_t> rows_per_expert;  // [L], padded
};
BySource by_source(const Problem& problem, int rank, int alignment);

/// What one rank gets by expert: the same in both forms, which differ in where an expert begins.
struct Row {
  int expert = 0;  // local
  int source = 0;
  int token = 0;
  int k = 0;
};
std::vector<Row> by_expert(const Problem& problem, int rank);

/// The normal combine of `owner`: y[r] has rank r's rows, as by_source() orders them. `biases` [T]
/// rows each, at most two.
Bytes combine(const Problem& problem, int owner, Dtype dtype, const std::vector<Bytes>& y,
              const std::vector<Bytes>& biases);
/// The same by node: ranks `r * per_node` to `(r + 1) * per_node - 1` are one.
Bytes combine_by_node(const Problem& problem, int owner, Dtype dtype, const std::vector<Bytes>& y,
                      const std::vector<Bytes>& biases, int per_node);
/// The low-latency combine: y[r] has rank r's rows, as by_expert() orders them.
Bytes combine_low_latency(const Problem& problem, int owner, Dtype dtype,
                          const std::vector<Bytes>& y, const std::vector<float>& weights);

/// The same by rank.
Bytes combine_low_latency_by_rank(const Problem& problem, int owner, Dtype dtype,
                                  const std::vector<Bytes>& y, const std::vector<float>& weights);

/// Bytes that go from `source` to `rank`, in copies (one per token and rank) or in rows (one per
/// token and expert), of `bytes_each`.
uint64_t copy_bytes(const Problem& problem, int source, int rank, uint64_t bytes_each);
uint64_t row_bytes(const Problem& problem, int source, int rank, uint64_t bytes_each);
/// One per token and node: what crosses from `source` to the node of ranks `first` to
/// `first + per_node - 1`.
uint64_t node_bytes(const Problem& problem, int source, int first, int per_node,
                    uint64_t bytes_each);

}  // namespace braid::moe::reference
