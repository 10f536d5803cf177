#include "bindings/nccl/comms.h"

#include <utility>

namespace braid::nccl {

std::string Entry::next_child(const std::string& kind, const std::string& which) {
  return key_ + "/" + kind + std::to_string(num_children_[kind]++) + ":" + which;
}

void Entry::fail(const char* text) {
  const std::lock_guard lock(error_mutex_);
  if (has_failed_) return;
  error_ = text;
  has_failed_ = true;
}

std::shared_ptr<Entry> Comms::find(NcclComm comm) const {
  const std::shared_lock lock(mutex_);
  const auto found = entries_.find(comm);
  return found == entries_.end() ? nullptr : found->second;
}

void Comms::put(NcclComm comm, std::shared_ptr<Entry> entry) {
  const std::unique_lock lock(mutex_);
  entries_[comm].swap(entry);  // the old one ends after the lock
}

std::shared_ptr<Entry> Comms::take(NcclComm comm) {
  const std::unique_lock lock(mutex_);
  const auto found = entries_.find(comm);
  if (found == entries_.end()) return nullptr;
  std::shared_ptr<Entry> entry = std::move(found->second);
  entries_.erase(found);
  return entry;
}

std::vector<std::shared_ptr<Entry>> Comms::part(const std::shared_ptr<Entry>& entry) {
  const std::unique_lock lock(mutex_);
  if (std::exchange(entry->has_parted_, true)) return {};
  std::vector<std::shared_ptr<Entry>>& parting = parting_[entry->key()];
  parting.push_back(entry);
  for (const auto& [comm, other] : entries_)
    if (!other->has_parted_ && other->key() == entry->key()) return {};
  std::vector<std::shared_ptr<Entry>> all = std::move(parting);
  parting_.erase(entry->key());
  return all;
}

}  // namespace braid::nccl
