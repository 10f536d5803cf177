// DeskLink: the smallest link between GPUs, for tests: from memory to memory, as threads of one process
// can. Senders leave bytes on a desk, readers take them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "comm/device/links/link.h"
#include "comm/device/shares/tuned_share.h"

namespace braid::test {

/// Where senders leave what readers take: by sender, reader and how many flows went there before.
class Desk {
 public:
  using Key = std::tuple<int, int, int>;
  void put(const Key& key, const comm::Flow& flow) {
    const std::lock_guard lock(mutex_);
    left_[key] = {flow.source, flow.source + flow.bytes};
    changed_.notify_all();
  }
  /// False: nobody has left it in time.
  bool take(const Key& key, const comm::Flow& flow, int64_t timeout_ns) {
    std::unique_lock lock(mutex_);
    const auto patience = std::chrono::nanoseconds(timeout_ns);
    if (!changed_.wait_for(lock, patience, [&] { return left_.contains(key); })) return false;
    if (left_[key].size() != flow.bytes) return false;
    if (flow.bytes != 0) std::memcpy(flow.destination, left_[key].data(), flow.bytes);
    return true;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, std::vector<std::byte>> left_;
};

class DeskLink : public comm::DeviceLink {
 public:
  DeskLink(const comm::LinkGround& ground, Desk& desk) : DeviceLink(ground), desk_(desk) {}
  fabric::Link facts() const override {
    fabric::Link link;
    link.name = "desk";
    link.rate_gbps = 1;
    return link;
  }
  Status prepare() override { return make_stream(); }
  Status connect(const std::string& /*shape*/, Deadline /*deadline*/) override { return {}; }
  bool can_carry(plan::Op op) const override {
    return op == plan::Op::kAllGather || op == plan::Op::kBroadcast;
  }
  uint64_t part(const comm::PartRequest& r) const override {
    return can_carry(r.op) ? comm::part_bytes(r.block_bytes, shares().parts(r.op, r.block_bytes),
                                              r.most_bytes, r.used)
                           : 0;
  }
  Status enqueue(const comm::LinkPart& part, sys::Stream /*stream*/) override {
    ++num_parts_;
    for (const comm::Flow& flow : part.all())
      if (flow.source != nullptr) desk_.put({flow.sender, flow.reader, num_parts_}, flow);
    for (const comm::Flow& flow : part.all())
      if (flow.source == nullptr && !take(flow))
        return timeout("desk: rank {} left nothing", flow.sender);
    return {};
  }
  comm::DeviceLinkState state() const override { return {true, "from hand to hand"}; }
  int num_parts() const { return num_parts_; }

 protected:
  virtual bool take(const comm::Flow& flow) {
    return desk_.take({flow.sender, flow.reader, num_parts_}, flow, ground_.team.timeout_ns);
  }

 private:
  Desk& desk_;
  int num_parts_ = 0;
};

}  // namespace braid::test
