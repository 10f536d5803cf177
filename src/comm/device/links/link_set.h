// LinkSet: the links of one comm: the base link, then those beside it, in the order in which they take
// the ends of messages: the first takes what comes behind the base link's beginning, the last the
// end.
//
// Threads: as DeviceLink.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/device/links/link.h"

namespace braid::comm {

class LinkSet {
 public:
  static constexpr size_t kMost = CallWatch::kMostWatched;
  /// Two to kMost, of which the first writes into peers' memory.
  explicit LinkSet(std::vector<std::unique_ptr<DeviceLink>> links);

  size_t size() const { return links_.size(); }
  DeviceLink& operator[](size_t index) const { return *links_[index]; }
  std::span<const std::unique_ptr<DeviceLink>> all() const { return links_; }
  DeviceLink& base() const { return *links_.front(); }
  std::span<const std::unique_ptr<DeviceLink>> beside() const { return all().subspan(1); }
  /// By its facts' name; null: none is called so.
  DeviceLink* find(std::string_view name) const;
  /// The first one beside that is tuned by size: the one whose shares users ask about and force.
  DeviceLink& main() const;
  /// The one beside that carries parts of sums, of blocks whose lengths the ranks of a pair alone know;
  /// null: there is none.
  DeviceLink* for_sums() const;
  DeviceLink* for_uneven() const;

  // ---- making ----
  Status prepare();
  std::string shape() const;
  Status connect(const std::string& shape, Deadline deadline);
  /// After tuning, or where there is none.
  Status start(Deadline deadline);
  bool is_started() const { return is_started_; }
  void drain(sys::Cuda& cuda);
  void stop();
  /// The first that is not ok.
  Status status() const;

  // ---- one call, told to all that are balanced ----
  Status count_call(const BalancedCall& call);
  Status note(CallStage stage, sys::Stream stream);
  /// What was decided since, in words.
  std::vector<std::string> end_call();

 private:
  DeviceLink* first_beside(bool (*is_right)(const DeviceLink&)) const;

  std::vector<std::unique_ptr<DeviceLink>> links_;
  bool is_started_ = false;
};

}  // namespace braid::comm
