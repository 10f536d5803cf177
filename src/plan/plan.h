// Plan: the decision for one call. Pure values and pure functions: no I/O, no clock, no CUDA, no
// randomness, so that all ranks that start from the same facts decide the same.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "fabric/types.h"
#include "plan/op.h"

namespace braid::plan {

const char* op_name(Op op) noexcept;  // "all_gather"
Result<Op> parse_op(std::string_view name);

/// `bytes` is what nccl-tests prints as size: all_gather, reduce_scatter, all_to_all: the sum over
/// ranks (num_ranks * block); all_reduce, broadcast: the buffer.
struct Request {
  Op op = Op::kAllGather;
  uint64_t bytes = 0;
  int num_ranks = 1;
  friend bool operator==(const Request&, const Request&) = default;
};

/// Size classes are powers of two: class k holds 2^(k-1) < bytes <= 2^k. Plans and tuning are per
/// class.
int size_class(uint64_t bytes) noexcept;

/// Bytes of one block of a request, the unit that is cut into cells: a rank's part (bytes /
/// num_ranks, rounded up), and the whole buffer for broadcast.
uint64_t block_bytes(const Request& request) noexcept;

/// Shares are fixed point, so that equal inputs give equal cuts on every rank: parts of kWhole, one
/// per link.
inline constexpr uint32_t kWhole = 65536;
using Shares = std::vector<uint32_t>;  // one per link of the fabric, sum kWhole

struct Plan {
  Request request;
  Shares shares;
  uint32_t cell_bytes = 0;  // blocks are cut into cells of this size; a link carries whole cells
  double predicted_ns = 0;  // by the cost model; 0 when it has no rates
  std::string why;          // one sentence: what decided
  std::vector<double> alone_ns = {};  // per link, the whole message by it alone, by tuning's rates;
                                      // 0 or none where it was not measured
};

/// Cuts `num_cells` cells over the links by `shares`: link i carries cells [cut[i], cut[i+1]).
/// Monotone, cut[0] = 0, cut.back() = num_cells; a link with share 0 gets nothing; every cell is
/// carried by a link with a share > 0. Each link is within one cell of its exact share; a single
/// cell goes to the largest share. Aborts unless the shares sum to kWhole.
std::vector<uint64_t> cut_cells(uint64_t num_cells, std::span<const uint32_t> shares);

/// Bytes of one cell for blocks of `block_bytes`: small enough that shares are fine-grained and
/// pipelines fill, large enough that a piece's fixed cost is small; never above `max_piece_bytes`;
/// a multiple of 64.
uint32_t choose_cell_bytes(uint64_t block_bytes, uint32_t max_piece_bytes) noexcept;

/// The plan in words, a line per link, for people; and as JSON, stable field names.
std::string to_words(const Plan& plan, std::span<const fabric::Link> links);
std::string to_json(const Plan& plan, std::span<const fabric::Link> links);

}  // namespace braid::plan
