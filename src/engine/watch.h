// Words that somebody bumps and a thread looks at: a kernel or a CUDA graph says how far it is, and
// a callback on the host begins the transfers that may begin now.
//
// A word is 64 bits of host memory, which a GPU of the engine has mapped; whoever bumps it stores a
// new value, at system scope, behind what it announces. The callback gets the value before and the
// one that is there now: values in between may be passed over, so it must take what has happened
// since, not count calls.
//
// One thread looks at all words. It spins while anything changes, and for some time after; then it
// naps, and the first bump after a pause is seen some 10 us later, behind a second some 100. On a
// host of few processors it naps at once, 50 us, and 500 behind a second.
//
// Threads: watch() and the end of a Watch any; callbacks run on the watcher's thread, one at a
// time, and hold up the other words while they run.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/gpu.h"

namespace braid::engine {

/// False: no more of this word.
using WatchCallback = std::function<bool(uint64_t before, uint64_t now)>;

class Watcher;

/// One word. It ends with this: when the destructor returns the callback does not run any more
/// (unless the callback itself ends it).
class Watch {
 public:
  Watch(Watcher& watcher, size_t index) : watcher_(watcher), index_(index) {}
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  std::atomic<uint64_t>& word() const;
  /// Where a kernel stores; 0 without a GPU.
  sys::DevicePtr address() const;

 private:
  Watcher& watcher_;
  const size_t index_;
};

class Watcher {
 public:
  static constexpr size_t kMostWords = 512;

  /// `gpu` may be null.
  explicit Watcher(Gpu* gpu);
  ~Watcher();

  /// Ends the thread: no callback runs any more.
  void close();
  /// A word that is 0 now. exhausted: kMostWords are in use, or there is no thread
  /// to look at them. cancelled: it was closed.
  Result<std::unique_ptr<Watch>> watch(WatchCallback callback);

 private:
  friend class Watch;
  struct Entry {
    WatchCallback callback;
    uint64_t seen = 0;
    bool is_ended = false;  // by its own callback
  };
  struct alignas(64) Word {  // a cache line each: bumps do not disturb each other
    std::atomic<uint64_t> value = 0;
  };

  void serve();
  bool look();
  void end(size_t index);

  Gpu* const gpu_;
  std::unique_ptr<std::byte[]> memory_;
  Word* words_ = nullptr;
  sys::DevicePtr address_ = 0;
  std::recursive_mutex mutex_;  // held while callbacks run, which may watch and end words
  std::vector<std::unique_ptr<Entry>> entries_;  // by word; null: free
  std::atomic<std::thread::id> running_;
  std::atomic<bool> is_ending_ = false;
  std::thread thread_;  // begins with the first word
};

}  // namespace braid::engine
