// Proxy: the thread that carries what is put in rooms of ranks that share no memory with this one,
// as a host proxy does for GPUs. A parcel is some of what was put for one rank, in order, and perhaps
// a signal behind it. It is cut into pieces of the lane; the thread at the other end lands them, the
// signal last: to one peer a lane keeps its order, and a piece is landed before the next one is
// looked at. An ack says nothing of what was put, so it goes before the parcels that wait: behind a
// whole round's rows it would come when the link has nothing left to carry.
//
// Several ranks on each node: a lane is used along rails only. What is for a rank of another node
// goes to the rank there that is on this rank's rail, and its thread lands it in the window that it is
// for, which the node's ranks have mapped; so what several of them get crosses the link once.
//
// Who ends its buffer goes on landing until all ranks that its lane speaks with have said that they put
// nothing more: for five seconds where it lands for node mates, else for one.
//
// While the lane makes a way anew all that is for it stays here, and goes on at the piece that was not
// taken: what was is the lane's, which brings every piece once and in order, over its renewals too
// (transport/rdma/lane.h). Nobody hears of it unless it takes longer than a call may; a peer that is
// late for that is late as any other.
//
// Where a piece may land is checked there: rows in the halves, a signal in a line that is its
// source's. A rank that was cut lands nothing.
//
// Threads: room(), put(), signal() and cut() by one thread; health() by any.
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
#include "fabric/node_map.h"
#include "moe/host/stream.h"
#include "moe/window.h"
#include "transport/lane.h"

namespace braid::moe {

/// Words, then the number with release.
void publish(std::byte* window, uint64_t line, std::span<const std::byte> words, uint64_t number);

class Proxy {
 public:
  /// Who is where, as this rank sees it.
  struct Neighbours {
    std::vector<std::byte*> windows;  // by rank, null of ranks on other nodes
    fabric::NodeMap nodes;            // one node of all: everybody is reached directly
    std::function<void(int)> landed;  // called with the rank for which a signal has come
    std::function<bool()> are_over;   // the group is broken: nobody comes any more
    bool is_oversubscribed = false;   // more threads than cores: this one does not spin
  };
  Proxy(std::unique_ptr<transport::Lane> lane, const WindowLayout& layout, Neighbours neighbours,
        int rank);
  /// Sends what is left for a moment, and lands what others still send to their node mates; then
  /// ends the thread.
  ~Proxy();

  std::byte* room(int peer, uint64_t offset, uint64_t bytes);
  /// Of ranks that are reached by the same one.
  void put(std::span<const Windows::Place> places, std::span<const std::byte> bytes);
  void signal(int peer, uint64_t line, std::span<const std::byte> words, uint64_t number);
  void cut(int peer) { cut_.fetch_or(uint64_t{1} << peer, std::memory_order_relaxed); }
  Status health(int peer) const;
  /// Whom the lane takes what is for `peer`.
  int way_to(int peer) const;
  /// Bytes of streams and signals that were put for this rank to land or to hand on.
  uint64_t carried_bytes(int way) const { return carried_bytes_[static_cast<size_t>(way)]; }

 private:
  enum class Ending : uint64_t { kNone = 0, kSignal = 1, kFarewell = 2 };
  struct Block {
    std::unique_ptr<std::byte[]> data;
    uint64_t used = 0;
    uint64_t bytes = 0;
  };
  struct Parcel {
    std::vector<Block> blocks;
    Ending ending = Ending::kNone;
    int target = 0;  // of the signal
    uint64_t line = 0;
    std::array<std::byte, kNumberOffset> words{};
    uint64_t num_words = 0;
    uint64_t number = 0;
  };
  struct Open {  // being filled, by the caller's thread
    Parcel parcel;
    std::byte* record = nullptr;  // the last one, where it may grow
    int peer = 0;
    uint64_t next_offset = 0;
  };
  struct AckLine {
    int target = 0;
    uint64_t line = 0;
    uint64_t number = 0;
  };
  struct Outgoing {
    std::deque<AckLine> acks;    // under mutex_
    std::deque<Parcel> parcels;  // under mutex_
    size_t block = 0;            // of the first one: how far it is put; the thread's own
    uint64_t done = 0;
  };

  std::byte* add_record(int way, std::span<const Windows::Place> places, uint64_t bytes);
  void send(int way);
  void run();
  /// Whether `peer` is one that this rank's lane speaks with.
  bool is_reached(int peer) const;
  bool is_finished(int64_t& ends_ns);
  bool put_some(int peer);
  bool put_acks(int peer);
  bool put_piece(int peer, Parcel& parcel, bool& is_over);
  bool land_all();
  void land(int source, const transport::Arrival& piece);
  void refuse(int source, const Status& why);
  std::byte* target_of(uint64_t rank, uint64_t offset, uint64_t bytes) const;
  bool is_ack_line(int source, uint64_t line) const;
  bool is_signal_line(int source, uint64_t line) const;
  bool is_cut(int peer) const { return (cut_.load(std::memory_order_relaxed) >> peer & 1) != 0; }
  bool has_parcels();
  void fail(int peer, const Status& why);

  const WindowLayout layout_;
  const Neighbours neighbours_;
  const int rank_;
  std::unique_ptr<transport::Lane> lane_;  // the thread's

  std::vector<Open> open_;  // by way
  std::vector<uint64_t> carried_bytes_;
  std::vector<StreamReader> readers_;  // by source; the thread's
  uint64_t farewells_ = 0;             // who has said it; the thread's
  mutable std::mutex mutex_;
  std::condition_variable has_work_;
  std::vector<Outgoing> outgoing_;
  std::vector<Status> health_;  // under mutex_
  std::atomic<uint64_t> cut_{0};
  std::atomic<bool> is_ending_{false};
  std::thread thread_;
};

}  // namespace braid::moe
