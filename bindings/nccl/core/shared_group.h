// A comm owns its group. Here somebody else must be able to speak to the group while the comm is
// still being made, and when it is gone: an abort comes from another thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "group/group.h"

namespace braid::nccl {

class SharedGroup : public group::Group {
 public:
  explicit SharedGroup(std::shared_ptr<group::Group> group) : group_(std::move(group)) {}

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  int local_rank() const override { return group_->local_rank(); }
  Result<std::vector<std::string>> exchange(std::string_view topic, std::string_view blob,
                                            Deadline deadline) override {
    return group_->exchange(topic, blob, deadline);
  }
  Status barrier(std::string_view topic, Deadline deadline) override {
    return group_->barrier(topic, deadline);
  }
  bool broken() const noexcept override { return group_->broken(); }
  Status fate() const override { return group_->fate(); }
  void report(const Status& why) override { group_->report(why); }
  bool has_left(int rank) const noexcept override { return group_->has_left(rank); }
  void leave() override { group_->leave(); }

 private:
  const std::shared_ptr<group::Group> group_;
};

}  // namespace braid::nccl
