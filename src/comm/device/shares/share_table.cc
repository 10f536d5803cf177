#include "comm/device/shares/share_table.h"

#include <algorithm>
#include <cmath>

namespace braid::comm {

namespace {

uint32_t in_parts(double share) {
  return static_cast<uint32_t>(std::lround(std::clamp(share, 0.0, 1.0) * plan::kWhole));
}

}  // namespace

void ShareTable::set_tuned(plan::Op op, const TunedShare& share) {
  const std::lock_guard lock(mutex_);
  tuned_[static_cast<size_t>(op)] = share;
  std::erase_if(decided_, [op](const auto& entry) { return entry.first.op == op; });
}

TunedShare ShareTable::tuned(plan::Op op) const {
  const std::lock_guard lock(mutex_);
  return tuned_[static_cast<size_t>(op)];
}

void ShareTable::force(plan::Op op, std::optional<double> share) {
  const std::lock_guard lock(mutex_);
  forced_[static_cast<size_t>(op)] = share;
}

uint32_t ShareTable::tuned_parts(plan::Op op, uint64_t bytes) const {
  return in_parts(tuned_[static_cast<size_t>(op)].at(bytes));
}

uint32_t ShareTable::in_force(const ShareKey& key) const {
  const auto found = decided_.find(key);
  return found == decided_.end() ? tuned_parts(key.op, most_bytes_of(key.size_class))
                                 : found->second.parts;
}

uint32_t ShareTable::parts(plan::Op op, uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  const auto& forced = forced_[static_cast<size_t>(op)];
  if (forced) return in_parts(*forced);
  const ShareKey key = share_key(op, bytes);
  if (trial_ == key) return trial_parts_;
  const uint32_t tuned = tuned_parts(op, bytes);
  const auto found = decided_.find(key);
  if (found == decided_.end()) return tuned;
  if (found->second.parts == 0) return 0;
  const int64_t moved =
      int64_t{found->second.parts} - tuned_parts(op, most_bytes_of(key.size_class));
  return static_cast<uint32_t>(
      std::clamp<int64_t>(int64_t{tuned} + moved, 0, int64_t{plan::kWhole}));
}

uint32_t ShareTable::class_parts(const ShareKey& key) const {
  const std::lock_guard lock(mutex_);
  return in_force(key);
}

bool ShareTable::can_move(const ShareKey& key) const {
  const std::lock_guard lock(mutex_);
  if (forced_[static_cast<size_t>(key.op)]) return false;
  return decided_.contains(key) || in_force(key) > 0;
}

void ShareTable::move(const ShareKey& key, uint32_t parts) {
  const std::lock_guard lock(mutex_);
  Decided& decided = decided_[key];
  decided.parts = std::min(parts, plan::kWhole);
  ++decided.moves;
}

void ShareTable::set_trial(std::optional<ShareKey> key, uint32_t parts) {
  const std::lock_guard lock(mutex_);
  trial_ = key;
  trial_parts_ = parts;
}

std::vector<ShareTable::Moved> ShareTable::moved() const {
  const std::lock_guard lock(mutex_);
  std::vector<Moved> all;
  all.reserve(decided_.size());
  for (const auto& [key, decided] : decided_)
    all.push_back(
        {key, tuned_parts(key.op, most_bytes_of(key.size_class)), decided.parts, decided.moves});
  return all;
}

}  // namespace braid::comm
