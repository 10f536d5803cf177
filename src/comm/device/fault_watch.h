// FaultWatch: what a kernel that gave up has said, what a lost peer or link has done, and the word
// that ends every wait.
//
//   page    one pinned page of host memory: a kernel's note on why it gave up, and our word that no
//           wait goes on
//   watch   a thread that looks, a thousand times a second, at the page, the group and the links.
//           What it finds it tells the other ranks, and the comm's next call answers with it
//
// Order    a wait that ends in vain lets its stream go on with what nobody may take for a result. So
//          status() has the reason before: the watch notes what it found, tells the others, and only
//          then ends waits; and what a kernel noted is in the page before the kernel ends, where
//          status() looks itself.
//
// Threads: status() and look() by any; the rest as comm::Device.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "base/status.h"
#include "base/units.h"
#include "group/group.h"
#include "sys/cuda/api.h"
#include "transport/nvlink/team.h"

namespace braid::comm {

/// How long calls into the driver are waited for that may stand behind our kernels, before the word that
/// ends those is given (sys::LimitedWait): more than they take in a driver that lets them in.
inline constexpr int64_t kFreeDriver = 150_ms;

class FaultWatch {
 public:
  /// In the context of the GPU `ordinal`, as the destructor. exhausted: the system has no thread
  /// left, which is begun here, where ranks still tell each other whether they can go on.
  static Result<std::unique_ptr<FaultWatch>> create(group::Group& group, sys::Cuda& cuda,
                                                    int ordinal);
  ~FaultWatch();
  FaultWatch(const FaultWatch&) = delete;
  FaultWatch& operator=(const FaultWatch&) = delete;

  /// Where the kernels of a team write and look.
  void give_page_to(nvlink::Team& team) const;
  /// Done once when it has found something, before it ends waits; null: nothing any more. By the
  /// watch's thread, which has no context.
  void before_waits_end(std::function<void()> prepare);
  /// From now on it looks. `links`: ok, or what ended one; any thread may ask it until stop().
  void start(std::function<Status()> links);
  void stop();
  /// Ends every wait of this rank's work, without waiting for any of it: before what else may be on
  /// the streams, another library's kernels perhaps, has been ended, too. Between calls; twice is
  /// fine. What is found from now on is not news for the other ranks.
  void end_waits();

  /// ok, or the first fault that was found, or that a kernel has noted.
  Status status() const;
  /// ok, or what there is to find now.
  Status look();

 private:
  struct Page {
    device::Fault fault;
    uint32_t must_abort;
  };

  FaultWatch(group::Group& group, sys::Cuda& cuda, int ordinal)
      : group_(group), cuda_(cuda), ordinal_(ordinal) {}
  Status make_page();
  Status look_at_links();
  Status noted() const;
  void tell(const Status& found);
  void run();

  group::Group& group_;
  sys::Cuda& cuda_;
  const int ordinal_;
  Page* page_ = nullptr;
  sys::DevicePtr page_on_device_ = 0;
  std::function<Status()> links_;
  std::atomic<bool> may_look_{false};        // links_ is there
  std::atomic<int64_t> link_failed_ns_ = 0;  // 0: not yet
  mutable std::mutex mutex_;                 // of the next
  Status fault_;
  std::mutex preparing_;  // of the next, and held while it runs
  std::function<void()> prepare_;
  std::atomic<bool> must_stop_{false};
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace braid::comm
