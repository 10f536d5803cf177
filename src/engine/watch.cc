#include "engine/watch.h"

#include <sys/prctl.h>

#include <chrono>
#include <exception>
#include <new>

#include "base/clock.h"
#include "base/log.h"
#include "engine/spin.h"
#include "sys/host/thread.h"

namespace braid::engine {
namespace {
constexpr size_t kHostPageBytes = 4096;
constexpr size_t kNobody = SIZE_MAX;

/// How long to sleep until the next look, when nothing has changed for so long. Bumps of layers
/// come some ms apart; a nap between two of them would cost what a spin saves. Behind a second
/// nobody computes, and short naps are not for nothing: of 5 us they take half a processor, or all
/// of one in a virtual machine. Where there are few, whoever moves the bytes needs that one.
std::chrono::microseconds nap(int64_t idle_ns) {
  constexpr int64_t kWatchfulNs = 100'000'000, kIdleNs = 1'000'000'000;
  const bool has_few = has_few_processors();
  if (idle_ns > kIdleNs) return std::chrono::microseconds(has_few ? 500 : 100);
  if (has_few) return std::chrono::microseconds(50);
  return std::chrono::microseconds(idle_ns > kWatchfulNs ? 5 : 0);
}
}  // namespace

Watch::~Watch() { watcher_.end(index_); }
std::atomic<uint64_t>& Watch::word() const { return watcher_.words_[index_].value; }
sys::DevicePtr Watch::address() const {
  return watcher_.address_ == 0 ? 0 : watcher_.address_ + index_ * sizeof(Watcher::Word);
}

Watcher::Watcher(Gpu* gpu) : gpu_(gpu) {
  constexpr size_t kBytes = kMostWords * sizeof(Word);
  static_assert(kBytes % kHostPageBytes == 0);
  memory_ = std::make_unique<std::byte[]>(kBytes + kHostPageBytes);
  const auto raw = reinterpret_cast<uintptr_t>(memory_.get());
  std::byte* base = memory_.get() + (kHostPageBytes - raw % kHostPageBytes) % kHostPageBytes;
  words_ = reinterpret_cast<Word*>(base);
  for (size_t i = 0; i < kMostWords; ++i) new (words_ + i) Word();
  if (gpu_ != nullptr) address_ = gpu_->map_host(base, kBytes);
}

void Watcher::close() {
  {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    is_ending_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

Watcher::~Watcher() {
  close();
  if (address_ != 0) gpu_->unmap_host(reinterpret_cast<std::byte*>(words_));
}

Result<std::unique_ptr<Watch>> Watcher::watch(WatchCallback callback) {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  if (is_ending_) return cancelled("watch: the engine is being closed");
  if (!thread_.joinable()) {
    BRAID_ASSIGN_OR_RETURN(thread_, sys::start_thread("watch", [this] { serve(); }));
  }
  size_t index = kNobody;
  for (size_t i = 0; i < entries_.size() && index == kNobody; ++i)
    if (entries_[i] == nullptr) index = i;
  if (index == kNobody) {
    if (entries_.size() == kMostWords)
      return exhausted("{} words are watched, which is the limit", kMostWords);
    index = entries_.size();
    entries_.emplace_back();
  }
  words_[index].value.store(0, std::memory_order_relaxed);
  entries_[index] = std::make_unique<Entry>(Entry{std::move(callback), 0});
  return std::make_unique<Watch>(*this, index);
}

void Watcher::end(size_t index) {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  if (running_ == std::this_thread::get_id())  // from within a callback, perhaps this word's own
    entries_[index]->is_ended = true;
  else
    entries_[index].reset();
}

bool Watcher::look() {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  bool changed = false;
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i] != nullptr && entries_[i]->is_ended) entries_[i].reset();
    if (entries_[i] == nullptr) continue;
    Entry& entry = *entries_[i];
    if (entry.callback == nullptr) continue;
    const uint64_t now = words_[i].value.load(std::memory_order_acquire);
    if (now == entry.seen) continue;
    const uint64_t before = std::exchange(entry.seen, now);
    changed = true;
    bool goes_on = false;
    try {
      const WatchCallback callback = entry.callback;  // it may end its own word
      goes_on = callback(before, now);
    } catch (const std::exception& thrown) {  // the user's own; the engine has none
      log::error("engine", "a watch's callback threw: {}", thrown.what());
    }
    if (!goes_on) entry.callback = nullptr;
  }
  return changed;
}

void Watcher::serve() {
  // Naps are as short as they are asked to be; by default the kernel adds 50 us.
  (void)::prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
  running_ = std::this_thread::get_id();
  int64_t changed_ns = now_ns();
  while (!is_ending_) {
    const bool changed = look();
    const int64_t now = now_ns();
    if (changed) changed_ns = now;
    if (const auto pause = nap(now - changed_ns); pause.count() != 0)
      std::this_thread::sleep_for(pause);
  }
}

}  // namespace braid::engine
