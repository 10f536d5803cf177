#include "comm/device/links/link_set.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace braid::comm {

LinkSet::LinkSet(std::vector<std::unique_ptr<DeviceLink>> links) : links_(std::move(links)) {
  BRAID_CHECK(links_.size() >= 2 && links_.size() <= kMost, "{} links", links_.size());
  BRAID_CHECK(base().writes_peer_memory(), "the base link reaches no memory");
  for (size_t i = 0; i < links_.size(); ++i) links_[i]->index_ = i;
}

DeviceLink* LinkSet::find(std::string_view name) const {
  const auto found =
      std::ranges::find(links_, name, [](const auto& link) { return link->facts().name; });
  return found == links_.end() ? nullptr : found->get();
}

DeviceLink* LinkSet::first_beside(bool (*is_right)(const DeviceLink&)) const {
  for (const auto& link : beside())
    if (is_right(*link)) return link.get();
  return nullptr;
}

DeviceLink& LinkSet::main() const {
  DeviceLink* const tuned =
      first_beside([](const DeviceLink& link) { return link.tuning() == LinkTuning::kBySize; });
  return tuned != nullptr ? *tuned : *links_[1];
}

DeviceLink* LinkSet::for_sums() const {
  return first_beside([](const DeviceLink& link) { return link.can_carry(plan::Op::kAllReduce); });
}

DeviceLink* LinkSet::for_uneven() const {
  return first_beside([](const DeviceLink& link) { return link.can_carry_uneven(); });
}

Status LinkSet::prepare() {
  for (const auto& link : links_) BRAID_RETURN_IF_ERROR(link->prepare());
  return {};
}

std::string LinkSet::shape() const {
  std::string all;
  for (const auto& link : links_) all += link->shape() + ",";
  return all;
}

Status LinkSet::connect(const std::string& shape, Deadline deadline) {
  for (const auto& link : links_) BRAID_RETURN_IF_ERROR(link->connect(shape, deadline));
  return {};
}

Status LinkSet::start(Deadline deadline) {
  for (const auto& link : links_) BRAID_RETURN_IF_ERROR(link->start(base(), deadline));
  is_started_ = true;
  return {};
}

void LinkSet::drain(sys::Cuda& cuda) {
  for (const auto& link : links_)
    if (link->stream().handle != nullptr) (void)cuda.synchronize(link->stream());
}

void LinkSet::stop() {
  for (const auto& link : links_) link->stop();
}

Status LinkSet::status() const {
  for (const auto& link : links_) BRAID_RETURN_IF_ERROR(link->status());
  return {};
}

Status LinkSet::count_call(const BalancedCall& call) {
  for (const auto& link : links_)
    if (ShareBalance* const balance = link->balance())
      BRAID_RETURN_IF_ERROR(balance->begin_call(call));
  return {};
}

Status LinkSet::note(CallStage stage, sys::Stream stream) {
  for (const auto& link : links_)
    if (ShareBalance* const balance = link->balance())
      BRAID_RETURN_IF_ERROR(balance->mark(stage, stream));
  return {};
}

std::vector<std::string> LinkSet::end_call() {
  std::vector<std::string> log;
  for (const auto& link : links_) {
    ShareBalance* const balance = link->balance();
    if (balance == nullptr) continue;
    balance->end_call();
    for (std::string& line : balance->take_log()) log.push_back(std::move(line));
  }
  return log;
}

}  // namespace braid::comm
