// What one source has ordered, first come first served: pulls, fetches, and statements that all has
// landed, so that messages keep their order.
//
// The first orders may be under way at once. When a transfer is dropped nothing more of it is begun.
// Many may be dropped at once, of a long queue: their orders among the first leave it at once, and
// those behind, of which nothing was begun, when they come to be among the first.
//
// Threads: the worker's alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <unordered_map>

#include "engine/copier.h"

namespace braid::engine {

class OrderQueue {
 public:
  /// How many are the first.
  static constexpr size_t kMostUnderWay = 8;

  void push(CopyOrder order);
  bool is_empty() const { return orders_.empty(); }
  size_t num_first() const { return std::min(orders_.size(), kMostUnderWay); }
  /// Of the first ones.
  CopyOrder& at(size_t number) { return orders_[number]; }
  /// The first one is done.
  void pop_front();
  /// Whether the last order of the transfer is here.
  bool is_whole(uint64_t transfer) const;
  /// The mark behind the last copy of it that a GPU has begun; 0: there is none.
  uint64_t drop(uint64_t transfer);
  /// Drops all, and forgets them.
  void clear();
  /// Whether a GPU may be copying for any.
  bool has_mark() const;
  /// Orders that were not dropped.
  size_t num_waiting() const { return orders_.size() - num_dropped_; }

 private:
  /// The orders of one transfer.
  struct Count {
    size_t num_orders = 0;
    bool is_whole = false;
    bool is_dropped = false;
  };
  void skip_dropped();
  void erase(size_t number);

  std::deque<CopyOrder> orders_;  // a statement is an order without stretches
  std::unordered_map<uint64_t, Count> counts_;
  size_t num_dropped_ = 0;  // of orders_
};

}  // namespace braid::engine
