// TuningTable: what stage 1 measured on one fabric, and the text in which it is kept on disk.
//
// Per (operation, rank count, size class) the shares that made all links finish together, beside
// the best single link of the same run; and the rate points of every run, from which sizes that
// were not tuned are solved. A split is never copied from one class to another: at 16 MiB the
// latencies weigh sixteen times as much as at 256 MiB.
//
// The file is written by one process and read by another, perhaps older or broken: parse() trusts
// nothing.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "plan/plan.h"
#include "plan/rates.h"

namespace braid::plan {

struct TuningEntry {
  Op op = Op::kAllGather;
  int num_ranks = 1;
  uint64_t bytes = 0;         // of the request that was measured; its size class is the key
  Shares shares;              // one per link of the table
  uint32_t cell_bytes = 0;    // 0: choose_cell_bytes decides
  double measured_ns = 0;     // with `shares`
  int best_link = 0;          // the fastest link alone, in the same run
  double best_single_ns = 0;  // 0: not measured
  friend bool operator==(const TuningEntry&, const TuningEntry&) = default;
};

class TuningTable {
 public:
  TuningTable() = default;  // empty: decide() goes by the facts
  TuningTable(std::string fabric_hash, std::vector<std::string> links)
      : fabric_hash_(std::move(fabric_hash)), links_(std::move(links)) {}

  const std::string& fabric_hash() const { return fabric_hash_; }
  /// Names of the links, in the order of all shares here.
  const std::vector<std::string>& links() const { return links_; }
  bool empty() const { return entries_.empty() && rates_.curves().empty(); }

  /// Keeps an entry, in place of an older one of its key. Aborts unless it has one share per link,
  /// sum kWhole.
  void put(TuningEntry entry);
  /// The entry of exactly this class, or null.
  const TuningEntry* find(Op op, int num_ranks, int size_class) const;
  /// The entry of the class nearest to it (the larger among equals), or null when this op and rank
  /// count have none.
  const TuningEntry* nearest(Op op, int num_ranks, int size_class) const;
  size_t num_entries() const { return entries_.size(); }

  RateTable& rates() { return rates_; }
  const RateTable& rates() const { return rates_; }

  /// The budget that ended the measurement before it was complete; 0: it is complete.
  int64_t cut_off_ns() const { return cut_off_ns_; }
  void set_cut_off_ns(int64_t budget_ns) { cut_off_ns_ = budget_ns; }

  /// JSON, one version, stable order: equal tables give equal text.
  std::string to_json() const;
  /// Reads to_json()'s text. invalid_argument says what is wrong and where: not JSON, another
  /// version, another fabric, shares that do not sum to kWhole, times that are not finite, sizes
  /// out of range.
  static Result<TuningTable> parse(std::string_view text, std::string_view expected_fabric_hash);

 private:
  using Key = std::tuple<Op, int, int>;
  std::string fabric_hash_;
  std::vector<std::string> links_;
  std::map<Key, TuningEntry> entries_;
  RateTable rates_;
  int64_t cut_off_ns_ = 0;
};

}  // namespace braid::plan
