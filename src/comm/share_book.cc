#include "comm/share_book.h"

#include <algorithm>

namespace braid::comm {

namespace {
bool is_up(uint64_t mask, size_t link) { return link >= 64 || ((mask >> link) & 1) != 0; }
}  // namespace

plan::Shares without_links(const plan::Shares& shares, uint64_t up_mask) {
  plan::Shares out(shares.size(), 0);
  uint64_t kept = 0;
  size_t largest = shares.size();
  for (size_t i = 0; i < shares.size(); ++i) {
    if (!is_up(up_mask, i)) continue;
    kept += shares[i];
    if (largest == shares.size() || shares[i] > shares[largest]) largest = i;
  }
  if (largest == shares.size())
    return shares;  // nothing is up: keep the plan, the call itself will say why it fails
  if (kept == 0) {
    out[largest] = plan::kWhole;
    return out;
  }
  uint64_t given = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    if (!is_up(up_mask, i)) continue;
    out[i] = static_cast<uint32_t>(uint64_t{shares[i]} * plan::kWhole / kept);
    given += out[i];
  }
  out[largest] += static_cast<uint32_t>(plan::kWhole - given);  // rounding goes to the largest
  return out;
}

void ShareBook::learn(const ShareUpdate& update) { pending_.push_back(update); }

void ShareBook::apply_until(uint64_t epoch) {
  std::stable_sort(
      pending_.begin(), pending_.end(),
      [](const ShareUpdate& a, const ShareUpdate& b) { return a.from_epoch < b.from_epoch; });
  auto it = pending_.begin();
  for (; it != pending_.end() && it->from_epoch <= epoch; ++it) {
    up_mask_ = it->up_mask;
    if (it->has_shares) decided_[Key(it->op, it->size_class)] = it->shares;
  }
  pending_.erase(pending_.begin(), it);
}

plan::Shares ShareBook::decided(plan::Op op, int size_class, const plan::Shares& planned) const {
  const auto found = decided_.find(Key(op, size_class));
  return found == decided_.end() || found->second.size() != planned.size() ? planned
                                                                           : found->second;
}

plan::Shares ShareBook::effective(plan::Op op, int size_class, const plan::Shares& planned) const {
  return without_links(decided(op, size_class, planned), up_mask_);
}

}  // namespace braid::comm
