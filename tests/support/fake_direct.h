// The direct kernels for FakeCuda: the same areas, flags and halves (coll/direct/direct.cuh), on
// the thread of the rank that launches them. A rank sends all it has before it waits for anything,
// which is one of the orders that blocks may have.
#pragma once

#include <atomic>
#include <cstring>
#include <functional>
#include <vector>

#include "coll/direct/direct.h"
#include "coll/reduce/reduce.h"
#include "coll/reduce/reduce_names.h"
#include "support/fake_kernels.h"

namespace braid::test {

class FakeDirect {
 public:
  explicit FakeDirect(const coll::DirectArgs& args)
      : args_(args), team_(args.team), epoch_(args.direct.state->epoch + 1) {}

  void all_gather() {
    for_each_chunk(args_.bytes, [&](uint64_t c, uint64_t begin, uint64_t bytes) {
      for (int to = 0; to < size(); ++to)
        if (to != me()) push(to, 0, c, begin, sent(begin), bytes);
    });
    copy(received(block_begin(me())), sent(0), args_.bytes);
    take_out_blocks();
  }
  void all_to_all() {
    for_each_chunk(args_.bytes, [&](uint64_t c, uint64_t begin, uint64_t bytes) {
      for (int to = 0; to < size(); ++to) {
        if (to == me()) continue;
        push(to, 0, c, begin, sent(block_begin(to) + begin), bytes);
        if (args_.is_in_place != 0) tell(me(), coll::kSentRegion, to, c);
      }
    });
    copy(received(block_begin(me())), sent(block_begin(me())), args_.bytes);
    take_out_blocks();
  }
  void reduce(Dtype dtype, RedOp op) {
    const bool is_for_all = args_.shape.path == coll::PacketPath::kOneShot;
    for (int to = 0; to < size(); ++to) {
      const Part part = part_of(to);
      for_each_chunk(part.bytes, [&](uint64_t c, uint64_t begin, uint64_t bytes) {
        if (to != me()) push(to, 0, c, begin, sent(part.begin + begin), bytes);
      });
    }
    const Part own = part_of(me());
    for_each_chunk(own.bytes, [&](uint64_t c, uint64_t begin, uint64_t bytes) {
      std::vector<const void*> operands;
      for (int from = 0; from < size(); ++from) {
        if (from != me() && !await(0, from, c)) return;
        operands.push_back(from == me() ? sent(own.begin + begin) : slot(me(), 0, from) + begin);
      }
      std::byte* to = received((is_scatter() ? 0 : own.begin) + begin);
      coll::reduce(operands, to, bytes / dtype_bytes(dtype), dtype, op);
      for (int peer = 0; !is_for_all && !is_scatter() && peer < size(); ++peer)
        if (peer != me()) push(peer, 1, c, begin, to, bytes);
    });
    if (is_for_all || is_scatter()) return;
    for (int from = 0; from < size(); ++from)
      if (from != me()) take_out(1, from, part_of(from));
  }
  void broadcast() {
    if (me() == args_.root)
      send_slices();
    else
      pass_on_and_take();
  }
  void end() const { args_.direct.state->epoch = epoch_; }

 private:
  struct Part {
    uint64_t begin, bytes;
  };
  void send_slices() const {
    for (int to = 0; to < size(); ++to) {
      if (to == me()) continue;
      const Part part = slice_behind_root(to);
      for_each_chunk(part.bytes, [&](uint64_t c, uint64_t begin, uint64_t bytes) {
        push(to, 0, c, begin, sent(part.begin + begin), bytes);
      });
    }
    for (int from = 0; from < size(); ++from)
      if (from != me()) (void)await(1, from, 0);
  }
  void pass_on_and_take() const {
    tell(args_.root, 1, me(), 0);
    const Part own = slice_behind_root(me());
    for_each_chunk(own.bytes, [&](uint64_t c, uint64_t begin, uint64_t bytes) {
      if (!await(0, args_.root, c)) return;
      const std::byte* from = slot(me(), 0, args_.root) + begin;
      for (int peer = 0; peer < size(); ++peer)
        if (peer != me() && peer != args_.root) push(peer, 1, c, begin, from, bytes);
      copy(received(own.begin + begin), from, bytes);
    });
    for (int from = 0; from < size(); ++from)
      if (from != me() && from != args_.root) take_out(1, from, slice_behind_root(from));
  }
  /// A broadcast's root owns no slice.
  Part slice_behind_root(int owner) const {
    return slice((owner - args_.root - 1 + size()) % size());
  }
  int me() const { return args_.team.rank; }
  int size() const { return args_.team.size; }
  bool is_scatter() const { return args_.shape.path == coll::PacketPath::kReduceScatter; }
  uint64_t block_begin(int of) const { return static_cast<uint64_t>(of) * args_.stride_bytes; }
  Part part_of(int owner) const {
    if (args_.shape.path == coll::PacketPath::kOneShot) return {0, args_.bytes};
    if (is_scatter()) return {block_begin(owner), args_.bytes};
    return slice(owner);
  }
  Part slice(int index) const {
    const uint64_t begin = static_cast<uint64_t>(index) * args_.shape.slot_bytes;
    return begin >= args_.bytes
               ? Part{0, 0}
               : Part{begin, std::min(args_.shape.slot_bytes, args_.bytes - begin)};
  }
  const std::byte* sent(uint64_t at) const {
    return static_cast<const std::byte*>(args_.send) + at;
  }
  std::byte* received(uint64_t at) const { return static_cast<std::byte*>(args_.recv) + at; }
  std::byte* slot(int at, int region, int from) const {
    const auto index = static_cast<uint64_t>(region * size() + from);
    return args_.direct.area[at] + coll::kDirectFlagBytes + epoch_ % 2 * args_.direct.half_bytes +
           index * args_.shape.slot_bytes;
  }
  uint64_t* flag(int at, int region, int from, uint64_t chunk) const {
    const auto row = static_cast<uint64_t>(region * nvlink::kMostRanks + from);
    return reinterpret_cast<uint64_t*>(args_.direct.area[at]) + row * coll::kMostDirectChunks +
           chunk;
  }
  /// body(chunk, begin, bytes), for chunks of 0 bytes too: every peer hears of every call.
  void for_each_chunk(uint64_t part_bytes,
                      const std::function<void(uint64_t, uint64_t, uint64_t)>& body) const {
    for (uint64_t c = 0; c < args_.shape.num_chunks; ++c) {
      const uint64_t begin = std::min(c * args_.shape.chunk_bytes, part_bytes);
      body(c, begin, std::min(args_.shape.chunk_bytes, part_bytes - begin));
    }
  }
  static void copy(std::byte* to, const std::byte* from, uint64_t bytes) {
    if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
  }
  void push(int to, int region, uint64_t chunk, uint64_t begin, const std::byte* from,
            uint64_t bytes) const {
    copy(slot(to, region, me()) + begin, from, bytes);
    tell(to, region, me(), chunk);
  }
  void tell(int at, int region, int from, uint64_t chunk) const {
    std::atomic_ref(*flag(at, region, from, chunk))
        .store(epoch_, std::memory_order_release);  // FakeWait::look()
  }
  bool await(int region, int from, uint64_t chunk) const {
    FakeWait wait(nvlink::Wait::kChunk, from, flag(me(), region, from, chunk), epoch_, 0);
    for (Pause pause;; pause()) {
      const FakeWait::Outcome outcome = wait.look(team_);
      if (outcome != FakeWait::Outcome::kPending) return outcome == FakeWait::Outcome::kArrived;
    }
  }
  void take_out(int region, int from, Part part) const {
    for_each_chunk(part.bytes, [&](uint64_t c, uint64_t begin, uint64_t bytes) {
      if (!await(region, from, c)) return;
      if (args_.is_in_place != 0 && !await(coll::kSentRegion, from, c)) return;
      copy(received(part.begin + begin), slot(me(), region, from) + begin, bytes);
    });
  }
  void take_out_blocks() const {
    for (int from = 0; from < size(); ++from)
      if (from != me()) take_out(0, from, {block_begin(from), args_.bytes});
  }

  const coll::DirectArgs& args_;
  const FakeTeam team_;
  const uint64_t epoch_;
};

/// `launched(args)` sees each launch.
inline void define_direct(sys::FakeCuda& cuda,
                          const std::function<void(const coll::DirectArgs&)>& launched) {
  const auto define = [&](const std::string& name, const std::function<void(FakeDirect&)>& body) {
    cuda.define_kernel(name, [=](const sys::LaunchShape&, std::span<void*> args) {
      const auto direct = argument<coll::DirectArgs>(args, 0);
      launched(direct);
      if (FakeTeam(direct.team).has_failed()) return Status();
      FakeDirect call(direct);
      body(call);
      call.end();
      return Status();
    });
  };
  define("braid_direct_all_gather", [](FakeDirect& call) { call.all_gather(); });
  define("braid_direct_all_to_all", [](FakeDirect& call) { call.all_to_all(); });
  define("braid_direct_broadcast", [](FakeDirect& call) { call.broadcast(); });
  for (const Dtype dtype : kAllDtypes)
    for (const RedOp op : kAllRedOps)
      define(coll::direct_reduce_kernel_name(dtype, op),
             [=](FakeDirect& call) { call.reduce(dtype, op); });
}

}  // namespace braid::test
