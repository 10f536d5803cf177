// The windows of symmetric memory of one communicator (ncclCommWindowRegister with
// NCCL_WIN_COLL_SYMMETRIC), beside the real ones. Making one is collective, and the program
// promises to use the same offsets in it on all ranks: so results may land there in place.
//
// All ranks make them in one order, between the same calls. So whoever comes to a call has the same
// list as all that come to it, and that is where new ones are mapped (shim.cc): not where they are
// made, which may be inside a group, where nothing may wait for another rank. Every window that a
// rank was asked for stands in its list until it was mapped, also one that the real library had no
// use for or that was given back: the other ranks wait for this one there, and nobody maps it then.
//
// Threads: any.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

namespace braid::nccl {

struct WindowSpan {
  void* memory;
  uint64_t bytes;
  bool holds(const void* part, uint64_t part_bytes) const;
};

class Windows {
 public:
  /// The real library has made it: `handle` is null where it had no use for it.
  void add(void* memory, uint64_t bytes, void* handle);
  /// It is at it: the handle is in `*where` later, which learn() reads.
  void add_unfinished(void* memory, uint64_t bytes, void** where);
  /// What was being made is made.
  void learn();

  /// Calls map(memory, bytes) for each one that is new, in their order, which answers whether it
  /// could be; null for memory that must not be.
  template <typename Map>
  void map_new(const Map& map) {
    // Not under the mutex: it waits for the other ranks.
    while (const std::optional<WindowSpan> next = next_new())
      note_mapped(map(next->memory, next->bytes));
  }
  /// Whether all of this memory lies in a window that is mapped; or in one that is new, also one that
  /// nobody will map, for the other ranks may not know that yet.
  bool has(const void* memory, uint64_t bytes) const;
  bool has_new(const void* memory, uint64_t bytes) const;
  bool has_new() const { return has_new_.load(std::memory_order_acquire); }

  /// The program gives it back. Its memory where it is mapped, else null.
  void* drop(void* handle);

 private:
  struct One {
    WindowSpan span;
    void* memory;  // where it begins; null: not to be mapped
    void* handle;  // null: none, or not known
    void** where;  // null: known
    bool is_new = true;
    bool is_mapped = false;
  };
  std::optional<WindowSpan> next_new();
  void note_mapped(bool is_mapped);
  void push(const One& one);

  mutable std::mutex mutex_;
  std::vector<One> all_;  // new ones behind the others
  std::atomic<bool> has_new_{false};
  std::atomic<uint64_t> num_mapped_{0};
};

}  // namespace braid::nccl
