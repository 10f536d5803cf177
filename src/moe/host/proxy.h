// Proxy: the thread that carries what is put in rooms of ranks that share no memory with this one,
// as a host proxy does for GPUs. A parcel is all that was put for one peer since the last signal to
// it, and that signal. It is cut into pieces of the lane; the thread at the other end lands them in
// its window, the signal last: to one peer a lane keeps its order, and a piece is landed before the
// next one is looked at.
//
// Where a piece may land is checked there: rows in the halves, a signal in a line that is its
// source's. A rank that was cut lands nothing.
//
// Threads: room(), signal() and cut() by one thread; health() by any.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "moe/window.h"
#include "transport/lane.h"

namespace braid::moe {

/// Words, then the number with release.
void publish(std::byte* window, uint64_t line, std::span<const std::byte> words, uint64_t number);

class Proxy {
 public:
  /// `landed` is called after every signal that came.
  Proxy(std::unique_ptr<transport::Lane> lane, const WindowLayout& layout, std::byte* own, int rank,
        std::function<void()> landed);
  /// Sends what is left for a moment; then ends the thread.
  ~Proxy();

  std::byte* room(int peer, uint64_t offset, uint64_t bytes);
  void signal(int peer, uint64_t line, std::span<const std::byte> words, uint64_t number);
  void cut(int peer) { cut_.fetch_or(uint64_t{1} << peer, std::memory_order_relaxed); }
  Status health(int peer) const;

 private:
  struct Stretch {
    uint64_t offset = 0;
    const std::byte* data = nullptr;
    uint64_t bytes = 0;
  };
  struct Parcel {
    std::vector<std::unique_ptr<std::byte[]>> blocks;
    uint64_t block_used = 0;
    uint64_t block_bytes = 0;
    std::vector<Stretch> stretches;
    uint64_t line = 0;
    std::array<std::byte, kNumberOffset> words{};
    uint64_t num_words = 0;
    uint64_t number = 0;
  };
  struct Outgoing {
    std::deque<Parcel> parcels;  // under mutex_
    size_t stretch = 0;          // of the first one: how far it is put; the thread's own
    uint64_t done = 0;
  };

  void run();
  bool put_some(int peer);
  bool put_piece(int peer, Parcel& parcel, bool& is_over);
  bool land_all();
  void land(int source, const transport::Arrival& piece);
  bool may_land(int source, uint64_t offset, uint64_t bytes) const;
  bool is_signal_line(int source, uint64_t line) const;
  bool is_cut(int peer) const { return (cut_.load(std::memory_order_relaxed) >> peer & 1) != 0; }
  bool has_parcels();
  void fail(int peer, const Status& why);

  const WindowLayout layout_;
  std::byte* const own_;
  const int rank_;
  const std::function<void()> landed_;
  std::unique_ptr<transport::Lane> lane_;  // the thread's

  std::vector<Parcel> open_;  // by peer: being filled, by the caller's thread
  mutable std::mutex mutex_;
  std::condition_variable has_work_;
  std::vector<Outgoing> outgoing_;
  std::vector<Status> health_;  // under mutex_
  std::atomic<uint64_t> cut_{0};
  std::atomic<bool> is_ending_{false};
  std::thread thread_;
};

}  // namespace braid::moe
