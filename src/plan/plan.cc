#include "plan/plan.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/check.h"
#include "base/rounding.h"
#include "base/text.h"

namespace braid::plan {

namespace {

constexpr const char* kOpNames[kNumOps] = {"all_gather", "all_reduce", "reduce_scatter",
                                           "all_to_all", "broadcast"};

// A block of 64 cells lets a share be met within 0.8 % and keeps every lane's pipeline (16 slots by
// default) full several times over; finer cells would only add per-piece cost. [derived, not
// measured]
constexpr uint64_t kCellsPerBlock = 64;
// Below 4 KiB the fixed cost of a piece (tag, flag, bookkeeping: of the order of a microsecond on
// the host lanes) outweighs copying its payload, so finer cuts would lose more than balance wins.
constexpr uint64_t kMinCellBytes = 4 << 10;
// One cache line: cells never share one, and no element of any dtype straddles two cells.
constexpr uint64_t kCellAlign = 64;

// num_cells * share / kWhole as whole part and remainder, without 128-bit arithmetic: q * 2^16 + r
// times a share of at most 2^16 stays in 64 bits when the two terms are kept apart.
struct Quota {
  uint64_t whole = 0;
  uint64_t remainder = 0;
};

Quota quota_of(uint64_t num_cells, uint32_t share) {
  const uint64_t low = (num_cells % kWhole) * share;
  return {num_cells / kWhole * share + low / kWhole, low % kWhole};
}

}  // namespace

const char* op_name(Op op) noexcept {
  const auto i = static_cast<size_t>(op);
  return i < kNumOps ? kOpNames[i] : "unknown";
}

Result<Op> parse_op(std::string_view name) {
  for (const Op op : kAllOps)
    if (name == op_name(op)) return op;
  return invalid_argument(
      "op '{}' is unknown; braid has all_gather, all_reduce, reduce_scatter, all_to_all, broadcast",
      printable(name));
}

int size_class(uint64_t bytes) noexcept { return bytes <= 1 ? 0 : std::bit_width(bytes - 1); }

uint64_t block_bytes(const Request& request) noexcept {
  if (request.op == Op::kBroadcast || request.num_ranks <= 1) return request.bytes;
  const auto n = static_cast<uint64_t>(request.num_ranks);
  return request.bytes / n + (request.bytes % n != 0);
}

// Largest remainder: every link gets the whole part of its quota, the cells left over go to the
// links with the largest remainders, lower index first among equals. Cutting at rounded running
// sums would be shorter, but would give a lone cell to whichever link happens to lie across the
// middle, however slow it is.
std::vector<uint64_t> cut_cells(uint64_t num_cells, std::span<const uint32_t> shares) {
  const uint64_t total = std::accumulate(shares.begin(), shares.end(), uint64_t{0});
  BRAID_CHECK(total == kWhole, "{} shares sum to {}, not {}", shares.size(), total, kWhole);
  std::vector<Quota> quotas;
  quotas.reserve(shares.size());
  uint64_t left = num_cells;
  for (const uint32_t share : shares) {
    quotas.push_back(quota_of(num_cells, share));
    left -= quotas.back().whole;
  }
  // left is less than the number of links with a remainder, since the remainders sum to left *
  // kWhole.
  for (; left > 0; --left) {
    auto most = std::max_element(quotas.begin(), quotas.end(), [](const Quota& a, const Quota& b) {
      return a.remainder < b.remainder;
    });
    most->whole += 1;
    most->remainder = 0;
  }
  std::vector<uint64_t> cut(shares.size() + 1, 0);
  for (size_t i = 0; i < shares.size(); ++i) cut[i + 1] = cut[i] + quotas[i].whole;
  return cut;
}

uint32_t choose_cell_bytes(uint64_t block_bytes, uint32_t max_piece_bytes) noexcept {
  const uint64_t most = max_piece_bytes / kCellAlign * kCellAlign;
  BRAID_CHECK(most >= kCellAlign, "pieces of {} bytes cannot carry a cell of {}", max_piece_bytes,
              kCellAlign);
  // Capped before rounding up, so that a block near 2^64 cannot wrap.
  const uint64_t fine =
      round_up(std::min<uint64_t>(block_bytes / kCellsPerBlock, most), kCellAlign);
  return static_cast<uint32_t>(std::min(std::max(fine, kMinCellBytes), most));
}

}  // namespace braid::plan
