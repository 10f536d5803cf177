// The thread that runs users' callbacks, so that a slow one, or one that throws, holds up no
// transfer.
//
// Threads: run() any.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "base/status.h"

namespace braid::engine {

class Notifier {
 public:
  ~Notifier() { close(); }
  /// Once; until then what is to run waits. exhausted: there is no thread to be had.
  Status begin();
  /// Runs what is queued, then ends.
  void close();

  void run(std::function<void()> call);

 private:
  void serve();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> calls_;
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace braid::engine
