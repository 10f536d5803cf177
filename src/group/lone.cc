#include <atomic>
#include <mutex>

#include "group/member.h"

namespace braid::group {

namespace {

class LoneGroup : public Group {
 public:
  explicit LoneGroup(const Identity& identity) : identity_(identity) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  int local_rank() const override { return identity_.local_rank; }

  Result<std::vector<std::string>> exchange(std::string_view topic, std::string_view blob,
                                            Deadline) override {
    BRAID_RETURN_IF_ERROR(check_exchange(topic, blob));
    if (broken()) return fate();
    return std::vector<std::string>{std::string(blob)};
  }
  Status barrier(std::string_view topic, Deadline deadline) override {
    return exchange(topic, "", deadline).status();
  }
  bool broken() const noexcept override { return is_broken_.load(std::memory_order_relaxed); }
  Status fate() const override {
    const std::lock_guard lock(mutex_);
    return fate_;
  }
  void report(const Status& why) override {
    const std::lock_guard lock(mutex_);
    if (why.ok() || !fate_.ok()) return;
    fate_ = why;
    is_broken_.store(true, std::memory_order_relaxed);
  }
  void leave() override {}

 private:
  const Identity identity_;
  mutable std::mutex mutex_;
  Status fate_;
  std::atomic<bool> is_broken_{false};
};

}  // namespace

std::unique_ptr<Group> make_lone_group(const Identity& identity) {
  return std::make_unique<LoneGroup>(identity);
}

}  // namespace braid::group
