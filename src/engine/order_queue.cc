#include "engine/order_queue.h"

namespace braid::engine {

void OrderQueue::push(CopyOrder order) {
  Count& count = counts_[order.pull.transfer];
  ++count.num_orders;
  count.is_whole |= order.pull.is_last;
  if (count.is_dropped) ++num_dropped_;
  orders_.push_back(std::move(order));
}

void OrderQueue::pop_front() {
  erase(0);
  skip_dropped();
}

bool OrderQueue::is_whole(uint64_t transfer) const {
  const auto found = counts_.find(transfer);
  return found != counts_.end() && found->second.is_whole;
}

uint64_t OrderQueue::drop(uint64_t transfer) {
  const auto found = counts_.find(transfer);
  if (found == counts_.end() || found->second.is_dropped) return 0;
  found->second.is_dropped = true;
  num_dropped_ += found->second.num_orders;
  uint64_t mark = 0;
  for (size_t i = 0; i < num_first(); ++i) {
    if (orders_[i].pull.transfer != transfer) continue;
    mark = std::max(mark, orders_[i].mark);
    Copier::drop(orders_[i]);
  }
  skip_dropped();
  return mark;
}

void OrderQueue::clear() {
  for (CopyOrder& order : orders_) Copier::drop(order);
  orders_.clear();
  counts_.clear();
  num_dropped_ = 0;
}

bool OrderQueue::has_mark() const {
  return std::any_of(orders_.begin(), orders_.end(),
                     [](const CopyOrder& order) { return order.mark != 0; });
}

void OrderQueue::skip_dropped() {
  for (size_t i = 0; num_dropped_ != 0 && i < num_first();) {
    if (!counts_[orders_[i].pull.transfer].is_dropped) {
      ++i;
      continue;
    }
    erase(i);
    --num_dropped_;
  }
}

void OrderQueue::erase(size_t number) {
  const auto found = counts_.find(orders_[number].pull.transfer);
  if (--found->second.num_orders == 0) counts_.erase(found);
  orders_.erase(orders_.begin() + static_cast<std::ptrdiff_t>(number));
}

}  // namespace braid::engine
