// A set of regions' numbers that stays small: a target counts its regions up, and unregisters most of
// those that it had, so they are kept as ranges, one more than it has regions left that are older.
//
// Threads: one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>

namespace braid::engine {

class RegionSet {
 public:
  void insert(uint64_t number) {
    if (contains(number)) return;
    uint64_t last = number;
    const auto above = ranges_.find(number + 1);
    if (above != ranges_.end()) {
      last = above->second;
      ranges_.erase(above);
    }
    const auto next = ranges_.upper_bound(number);
    if (next != ranges_.begin() && std::prev(next)->second + 1 == number)
      std::prev(next)->second = last;
    else
      ranges_.emplace_hint(next, number, last);
  }
  bool contains(uint64_t number) const {
    const auto next = ranges_.upper_bound(number);
    return next != ranges_.begin() && number <= std::prev(next)->second;
  }
  size_t num_ranges() const { return ranges_.size(); }

 private:
  std::map<uint64_t, uint64_t> ranges_;  // from the first to the last number; none touches the next
};

}  // namespace braid::engine
