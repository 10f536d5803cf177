// All-gather, all-to-all and broadcast by lines (lines.cuh). A warp sends and receives rows of the
// same numbers: what it writes into recv in place is what it alone has read.
#include "coll/lines/lines.cuh"
#include "coll/lines/wide.cuh"

namespace braid::coll::device {

using RowBatch = Vector[kRowsAtOnce];

__device__ ArrayPart<const char> sent_block(const BlockCall& call, int of) {
  const uint64_t begin = static_cast<uint64_t>(of) * call.args.bytes;
  return {static_cast<const char*>(call.args.send) + begin, call.args.bytes};
}
__device__ ArrayPart<char> received_block(const BlockCall& call, int of) {
  const uint64_t begin = static_cast<uint64_t>(of) * call.args.bytes;
  return {static_cast<char*>(call.args.recv) + begin, call.args.bytes};
}

/// Rows of what each rank sent to its slot of ours, into its block of recv. False: gave up.
__device__ __forceinline__ bool receive_blocks(const BlockCall& call, uint64_t slot,
                                               const Rows& rows) {
#pragma unroll 1
  for (int turn = 1; turn < call.size(); ++turn) {
    const int from = call.source(turn);
    RowBatch data;
    if (!receive_rows(call, from, static_cast<uint64_t>(from) * slot, rows, data)) return false;
    store_rows(received_block(call, from), rows, data);
  }
  return true;
}

/// A row of each peer, as receive_blocks().
__device__ __forceinline__ bool receive_row_of_blocks(const BlockCall& call, uint64_t slot,
                                                      uint64_t row) {
  const auto slot_of = [&](int from) { return static_cast<uint64_t>(from) * slot; };
  const auto place_of = [&](int from) { return received_block(call, from); };
  return take_rows(call, -1, slot_of, place_of, row);
}

__device__ void all_gather_wide(const BlockCall& call) {
  const uint64_t slot = num_rows(call.args.bytes);
  const ArrayPart<const char> own{static_cast<const char*>(call.args.send), call.args.bytes};
  const ArrayPart<char> place = received_block(call, call.rank());
  const auto send = [&](const Rows& rows) {
    Vector data[1];
    load_rows(own, rows, data);
#pragma unroll 1
    for (int turn = 1; turn < call.size(); ++turn)
      send_rows(call, call.peer(turn), static_cast<uint64_t>(call.rank()) * slot, rows, data);
    if (own.base != place.base) store_rows(place, rows, data);
  };
  const auto receive = [&](const Rows& rows) {
    return receive_row_of_blocks(call, slot, rows.first);
  };
  for_rows<1>(slot, send, receive, Nothing{});
}

__device__ void all_to_all_wide(const BlockCall& call) {
  const uint64_t slot = num_rows(call.args.bytes);
  const auto block_of = [&](int to) { return sent_block(call, to); };
  const auto slot_of = [&](int) { return static_cast<uint64_t>(call.rank()) * slot; };
  const auto send = [&](const Rows& rows) {
#pragma unroll 1
    for (int first = 0; first < call.size(); first += kPeersAtOnce) {
      RowOfEach<kPeersAtOnce> data;
      load_row_of_each(call, first, block_of, rows.first, data);
      send_row_of_each(call, first, slot_of, rows.first, data);
    }
    store_lane(received_block(call, call.rank()), rows.first,
               load_lane(block_of(call.rank()), rows.first));
  };
  const auto receive = [&](const Rows& rows) {
    return receive_row_of_blocks(call, slot, rows.first);
  };
  for_rows<1>(slot, send, receive, Nothing{});
}

__device__ void all_gather(const BlockCall& call) {
  const uint64_t slot = num_rows(call.args.bytes);
  const ArrayPart<const char> own{static_cast<const char*>(call.args.send), call.args.bytes};
  const ArrayPart<char> place = received_block(call, call.rank());
  const auto send = [&](const Rows& rows) {
    RowBatch data;
    load_rows(own, rows, data);
#pragma unroll 1
    for (int turn = 1; turn < call.size(); ++turn)
      send_rows(call, call.peer(turn), static_cast<uint64_t>(call.rank()) * slot, rows, data);
    if (own.base != place.base) store_rows(place, rows, data);
  };
  const auto receive = [&](const Rows& rows) { return receive_blocks(call, slot, rows); };
  for_rows<kRowsAtOnce>(slot, send, receive, Nothing{});
}

__device__ void all_to_all(const BlockCall& call) {
  const uint64_t slot = num_rows(call.args.bytes);
  const auto send = [&](const Rows& rows) {
    RowBatch data;
#pragma unroll 1
    for (int turn = 1; turn < call.size(); ++turn) {
      const int to = call.peer(turn);
      load_rows(sent_block(call, to), rows, data);
      send_rows(call, to, static_cast<uint64_t>(call.rank()) * slot, rows, data);
    }
    load_rows(sent_block(call, call.rank()), rows, data);
    store_rows(received_block(call, call.rank()), rows, data);
  };
  const auto receive = [&](const Rows& rows) { return receive_blocks(call, slot, rows); };
  for_rows<kRowsAtOnce>(slot, send, receive, Nothing{});
}

// A broadcast: the root sends everything to all (kCopy), or slice i to the i-th rank behind it,
// which takes it and sends it on (kTwoShot). Slots: of the root's rows, then by source of what is
// passed on, then a row of greeting per rank, because everyone must hear of everyone in every call.

struct Cast {
  uint64_t slot;     // rows from one rank to another
  bool is_two_shot;  // then a slice is a slot

  __device__ explicit Cast(const BlockCall& call) {
    is_two_shot = call.args.path == PacketPath::kTwoShot;
    slot = num_rows(call.args.bytes);
    const uint64_t owners = static_cast<uint64_t>(call.size()) - 1;
    if (is_two_shot) slot = (slot + owners - 1) / owners;
  }
  __device__ uint64_t passed_on(int from) const { return (1 + static_cast<uint64_t>(from)) * slot; }
  __device__ uint64_t greeting(const BlockCall& call, int from) const {
    const uint64_t size = static_cast<uint64_t>(call.size());
    return (is_two_shot ? 1 + size : 1) * slot + static_cast<uint64_t>(from);
  }
  template <typename Byte>
  __device__ ArrayPart<Byte> slice(const BlockCall& call, Byte* base, int owner) const {
    if (!is_two_shot) return {base, call.args.bytes};
    const int behind = owner - call.args.root - 1;
    const uint64_t begin =
        static_cast<uint64_t>(behind < 0 ? behind + call.size() : behind) * slot * kRowDataBytes;
    if (begin >= call.args.bytes) return {base, 0};
    return {base + begin, min(slot * kRowDataBytes, call.args.bytes - begin)};
  }
};

__device__ bool is_first_warp() { return blockIdx.x == 0 && threadIdx.x < 32; }

__device__ void greet(const BlockCall& call, const Cast& cast) {
  if (!is_first_warp()) return;
  const Vector nothing{};
  __syncwarp();
#pragma unroll 1
  for (int turn = 1; turn < call.size(); ++turn)
    send_row(call, row_at(call, call.peer(turn), cast.greeting(call, call.rank())), nothing);
}

__device__ void await_greetings(const BlockCall& call, const Cast& cast) {
  if (!is_first_warp()) return;
#pragma unroll 1
  for (int turn = 1; turn < call.size(); ++turn) {
    const int from = call.source(turn);
    Vector nothing[1];
    const char* at = row_at(call, call.rank(), cast.greeting(call, from));
    if (!await_rows(call, at, 0, 1, from, nothing)) return;
  }
}

__device__ __forceinline__ void send_message(const BlockCall& call, const Cast& cast,
                                             const Rows& rows) {
  const char* const send = static_cast<const char*>(call.args.send);
  char* const recv = static_cast<char*>(call.args.recv);
  RowBatch data;
#pragma unroll 1
  for (int turn = 1; turn < call.size(); ++turn) {
    const int to = call.peer(turn);
    if (cast.is_two_shot || turn == 1) {
      load_rows(cast.slice(call, send, to), rows, data);
      if (send != recv) store_rows(cast.slice(call, recv, to), rows, data);
    }
    send_rows(call, to, 0, rows, data);
  }
}

__device__ __forceinline__ bool receive_message(const BlockCall& call, const Cast& cast,
                                                const Rows& rows) {
  RowBatch data;
  if (!receive_rows(call, call.args.root, 0, rows, data)) return false;
  if (cast.is_two_shot) {
#pragma unroll 1
    for (int turn = 1; turn < call.size(); ++turn) {
      const int to = call.peer(turn);
      if (to != call.args.root) send_rows(call, to, cast.passed_on(call.rank()), rows, data);
    }
  }
  store_rows(cast.slice(call, static_cast<char*>(call.args.recv), call.rank()), rows, data);
  return true;
}

/// Of a batch's rows one after the other, each of all peers.
__device__ __forceinline__ bool receive_passed_on_wide(const BlockCall& call, const Cast& cast,
                                                       const Rows& rows) {
  const auto slot_of = [&](int from) { return cast.passed_on(from); };
  const auto place_of = [&](int from) {
    return cast.slice(call, static_cast<char*>(call.args.recv), from);
  };
#pragma unroll 1
  for (int u = 0; u < rows.present; ++u)
    if (!take_rows(call, call.args.root, slot_of, place_of,
                   rows.first + static_cast<uint64_t>(u) * row_stride()))
      return false;
  return true;
}

__device__ __forceinline__ bool receive_passed_on(const BlockCall& call, const Cast& cast,
                                                  const Rows& rows) {
#pragma unroll 1
  for (int turn = 1; turn < call.size(); ++turn) {
    const int from = call.source(turn);
    if (from == call.args.root) continue;
    RowBatch data;
    if (!receive_rows(call, from, cast.passed_on(from), rows, data)) return false;
    store_rows(cast.slice(call, static_cast<char*>(call.args.recv), from), rows, data);
  }
  return true;
}

template <typename Finish>
__device__ __forceinline__ void broadcast_and(const BlockCall& call, const Finish& receive_others) {
  const Cast cast(call);
  const bool is_root = call.rank() == call.args.root;
  const auto send = [&](const Rows& rows) {
    if (is_root) send_message(call, cast, rows);
  };
  const auto receive = [&](const Rows& rows) {
    return is_root || receive_message(call, cast, rows);
  };
  const auto finish = [&](const Rows& rows) {
    return is_root || !cast.is_two_shot || receive_others(call, cast, rows);
  };
  greet(call, cast);
  for_rows<kRowsAtOnce>(cast.slot, send, receive, finish);
  await_greetings(call, cast);
}

__device__ void broadcast(const BlockCall& call) {
  broadcast_and(call, [](const BlockCall& of, const Cast& cast, const Rows& rows) {
    return receive_passed_on(of, cast, rows);
  });
}
__device__ void broadcast_wide(const BlockCall& call) {
  broadcast_and(call, [](const BlockCall& of, const Cast& cast, const Rows& rows) {
    return receive_passed_on_wide(of, cast, rows);
  });
}

}  // namespace braid::coll::device

// Kernels for few ranks leave room for another block on a multiprocessor; wide ones need all
// registers.
#define BRAID_LINE_KERNEL(name, num_blocks)                                           \
  extern "C" __global__ void __launch_bounds__(braid::coll::kLineThreads, num_blocks) \
      braid_lines_##name(const __grid_constant__ braid::coll::PacketArgs args) {      \
    using namespace braid::coll::device;                                              \
    const Before before = look_before(args);                                          \
    if (warp_sees_failure(before)) return;                                            \
    const BlockCall call = begin_call(args, before);                                  \
    name(call);                                                                       \
    end_call(call);                                                                   \
  }
BRAID_LINE_KERNEL(all_gather, 2)
BRAID_LINE_KERNEL(all_to_all, 2)
BRAID_LINE_KERNEL(broadcast, 2)
BRAID_LINE_KERNEL(all_gather_wide, 1)
BRAID_LINE_KERNEL(all_to_all_wide, 1)
BRAID_LINE_KERNEL(broadcast_wide, 1)
