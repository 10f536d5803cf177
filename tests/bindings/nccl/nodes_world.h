// A world of ranks that are threads, from NCCL's functions down: each has a Shim of its own, seats
// over real rolls, groups and comms, fake GPUs that capture graphs, and a library of threads beside
// and beneath it (nccl_of_threads.h). It runs programs and looks at every byte.
//
//   World world({node_of_rank, seed});
//   world.run(programs, families);       // on all ranks
//   world.tally()
//
// A watchdog does what PyTorch's does: it asks for every communicator's error, and aborts all of a
// rank's communicators when one has any.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/units.h"
#include "bindings/nccl/core/capture.h"
#include "bindings/nccl/core/nodes/rolls.h"
#include "bindings/nccl/core/seat.h"
#include "bindings/nccl/core/settings.h"
#include "bindings/nccl/nccl_of_threads.h"
#include "bindings/nccl/random_programs.h"
#include "bindings/nccl/shim.h"
#include "coll/device/all_kernels.h"
#include "coll/device/fake_sums.h"
#include "coll/reduce/reduce.h"
#include "support/fake_direct.h"
#include "support/gpu_ranks.h"
#include "support/graph_cuda.h"
#include "support/tensors.h"

struct braid_nccl_seat {
  std::unique_ptr<braid::nccl::Seat> seat;
};

namespace braid::nccl::programs {

// ---- the core's table, over seats of the calling rank's GPU ----

struct RankPlace {
  test::GraphCuda* machine = nullptr;
  std::string host;
};
inline thread_local const RankPlace* the_place = nullptr;  // of the rank whose thread this is

template <typename Body>
int told(braid_nccl_why why, Body&& body) {
  const Status status = body();
  if (!status.ok() && why.bytes > 0)
    std::snprintf(why.text, why.bytes, "%s", status.message().c_str());
  return static_cast<int>(status.code());
}

inline int open_seat(braid_nccl_seat* of, const braid_nccl_place* place, braid_nccl_why why) {
  Seat& seat = *of->seat;
  if (told(why, [&] { return seat.open(*place); }) == 0)
    return BRAID_NCCL_TAKEN | (seat.is_over_nodes() ? BRAID_NCCL_OVER_NODES : 0);
  return seat.is_lost() ? BRAID_NCCL_LOST : seat.is_later() ? BRAID_NCCL_LATER : 0;
}

inline braid_nccl_seat* sign_seat(const void* key, size_t bytes, uint64_t settings,
                                  braid_nccl_why why) {
  braid_nccl_seat* made = nullptr;
  (void)told(why, [&]() -> Status {
    BRAID_ASSIGN_OR_RETURN(Config config, config_for_calls());
    BRAID_RETURN_IF_ERROR(config.set("BRAID_HOST_ID", the_place->host));
    BRAID_ASSIGN_OR_RETURN(auto seat, Seat::sign({static_cast<const char*>(key), bytes}, settings,
                                                 *the_place->machine, std::move(config)));
    made = new braid_nccl_seat{std::move(seat)};
    return {};
  });
  return made;
}

inline const braid_nccl_core* core_of_seats() {
  static const braid_nccl_core core{
      BRAID_NCCL_CORE_VERSION,
      [](char* id, braid_nccl_why why) {
        const std::span<char, kIdBytes> bytes(id, kIdBytes);
        return told(why, [&] { return mark_id(std::as_writable_bytes(bytes), ""); });
      },
      sign_seat,
      [](braid_nccl_seat* of) { of->seat->seal(); },
      open_seat,
      [](braid_nccl_seat* of, int op, int is_large, int, const braid_nccl_real* real,
         braid_nccl_choice* choice, braid_nccl_why why) {
        *choice = {};
        return told(why, [&] { return of->seat->race(op, {is_large != 0}, real, *choice); });
      },
      [](braid_nccl_seat* of, const braid_nccl_call* call, braid_nccl_why why) {
        return told(why, [&] { return of->seat->run(*call); });
      },
      [](braid_nccl_seat*, void*, uint64_t, braid_nccl_why) { return 0; },
      [](braid_nccl_seat*, void*, braid_nccl_why) { return 0; },
      [](braid_nccl_seat* of, void* const* streams, size_t num, braid_nccl_why why) {
        return told(why, [&] { return of->seat->join({streams, num}); });
      },
      [](int device, void* stream) {
        return is_capturing(*the_place->machine, device, {stream}) ? 1 : 0;
      },
      [](braid_nccl_seat* of, braid_nccl_why why) {
        return told(why, [&] { return of->seat->status(); });
      },
      [](braid_nccl_seat* of) { of->seat->interrupt(); },
      [](braid_nccl_seat* of, int in_peace) { of->seat->close(in_peace != 0); },
      [](braid_nccl_seat* of) { delete of; }};
  return &core;
}

// ---- data, and what must become of it ----

using Bytes = std::vector<std::byte>;

/// A rank's operand of a call, of any bits; `turn` is a replay's.
inline Bytes operand_of(int rank, uint64_t call, int turn, uint64_t num_bytes) {
  Bytes made(num_bytes);
  for (uint64_t i = 0; i < num_bytes; i += 8) {
    const uint64_t word = test::mixed(call * 16 + static_cast<uint64_t>(turn), rank + 1, i);
    std::memcpy(made.data() + i, &word, std::min<uint64_t>(8, num_bytes - i));
  }
  return made;
}

/// The sum of operands' bytes from `at` on: in rank order, or node by node.
inline Bytes sum_of(const std::vector<Bytes>& operands, uint64_t at, const PlannedCall& call,
                    const fabric::NodeMap& map) {
  const uint64_t bytes = call.count * dtype_bytes(call.dtype);
  const auto add = [&](size_t first, size_t num, RedOp op) {
    std::vector<const void*> from;
    for (size_t i = first; i < first + num; ++i) from.push_back(operands[i].data() + at);
    Bytes sum(bytes);
    coll::reduce(from, sum.data(), call.count, call.dtype, op);
    return sum;
  };
  if (!map.has_stages()) return add(0, operands.size(), call.redop);
  std::vector<Bytes> partials;
  std::vector<const void*> from;
  for (int node = 0; node < map.num_nodes; ++node)
    partials.push_back(add(static_cast<size_t>(map.rank_at(node, 0)),
                           static_cast<size_t>(map.per_node),
                           call.redop == RedOp::kAvg ? RedOp::kSum : call.redop));
  for (const Bytes& partial : partials) from.push_back(partial.data());
  Bytes sum(bytes);
  coll::reduce_partials(from, sum.data(), call.count, call.dtype, call.redop, operands.size());
  return sum;
}

/// One call of one rank: its memory, which is looked at when the call is done.
class RankCall {
 public:
  RankCall(const PlannedCall& call, const Family& family, int rank, test::GraphCuda& machine)
      : call_(call), members_(family.members(rank)), rank_(rank) {
    const auto found = std::find(members_.begin(), members_.end(), rank);
    place_ = static_cast<uint64_t>(found - members_.begin());
    call_.root %= static_cast<int>(members_.size());
    const uint64_t all = block() * members_.size();
    const bool sends_all = call.op == Op::kReduceScatter || call.op == Op::kAllToAll;
    const bool receives_all = call.op == Op::kAllGather || call.op == Op::kAllToAll;
    send_bytes_ = sends_all ? all : block();
    recv_bytes_ = receives_all ? all : block();
    const bool is_one = call_.is_in_place;
    send_.emplace(machine, is_one ? std::max(send_bytes_, recv_bytes_) : send_bytes_);
    if (!is_one) recv_.emplace(machine, recv_bytes_);
  }

  void fill(int turn) {
    const Bytes own = operand_of(rank_, call_.number, turn, send_bytes_);
    if (recv_) std::fill_n(recv_->data(), recv_bytes_, kUntouched);
    if (!recv_) std::fill_n(send_->data(), send_->bytes(), kUntouched);
    std::copy(own.begin(), own.end(), sent());
  }
  Call as_call(NcclComm comm, CudaStream stream) const {
    return {call_.op,
            sent(),
            received(),
            call_.count,
            static_cast<int>(call_.dtype),
            static_cast<int>(call_.redop),
            call_.root,
            comm,
            stream};
  }
  /// Bit 0: as on one node, bit 1: as over nodes. None: wrong.
  unsigned look(int turn, const std::vector<int>& node_of_rank) const {
    if (!is_guarded()) return 0;
    const auto [flat, staged] = wanted(turn, node_of_rank);
    const auto is_here = [this](const Bytes& bytes) {
      return std::memcmp(received(), bytes.data(), bytes.size()) == 0;
    };
    return (is_here(flat) ? 1U : 0U) | (is_here(staged) ? 2U : 0U);
  }
  /// From what it is over nodes.
  std::string what_differs(int turn, const std::vector<int>& node_of_rank) const {
    if (!is_guarded()) return "memory beside it was written";
    const Bytes due = wanted(turn, node_of_rank).second;
    uint64_t first = due.size(), num = 0, num_untouched = 0;
    for (uint64_t i = 0; i < due.size(); ++i) {
      if (received()[i] == due[i]) continue;
      first = std::min(first, i);
      ++num;
      num_untouched += received()[i] == kUntouched ? 1 : 0;
    }
    if (num == 0) return "right by now";
    return fmt::format(
        "{} of {} bytes differ, {} of them were not written; byte {} is {:02x}, not {:02x}", num,
        due.size(), num_untouched, first, static_cast<int>(received()[first]),
        static_cast<int>(due[first]));
  }

 private:
  static constexpr std::byte kUntouched{0xee};

  uint64_t block() const { return call_.count * dtype_bytes(call_.dtype); }
  std::byte* sent() const {
    return send_->data() + (!recv_ && call_.op == Op::kAllGather ? place_ * block() : 0);
  }
  std::byte* received() const {
    if (recv_) return recv_->data();
    return send_->data() + (call_.op == Op::kReduceScatter ? place_ * block() : 0);
  }
  /// Nodes are numbered by their first rank.
  static fabric::NodeMap map_of(const std::vector<int>& nodes) {
    std::vector<int> seen, numbered;
    for (const int node : nodes) {
      auto found = std::find(seen.begin(), seen.end(), node);
      if (found == seen.end()) found = seen.insert(seen.end(), node);
      numbered.push_back(static_cast<int>(found - seen.begin()));
    }
    return fabric::node_map_of(numbered);
  }
  bool is_guarded() const { return send_->is_guarded() && (!recv_ || recv_->is_guarded()); }
  /// As on one node, and as over nodes.
  std::pair<Bytes, Bytes> wanted(int turn, const std::vector<int>& node_of_rank) const {
    std::vector<Bytes> operands;
    std::vector<int> nodes;
    for (const int member : members_) {
      operands.push_back(operand_of(member, call_.number, turn, send_bytes_));
      nodes.push_back(node_of_rank[static_cast<size_t>(member)]);
    }
    Bytes flat = result(operands, {1, static_cast<int>(members_.size())});
    const fabric::NodeMap map = map_of(nodes);
    if (call_.op != Op::kReduceScatter || !map.has_stages()) return {flat, flat};
    return {std::move(flat), result(operands, map)};
  }
  Bytes result(const std::vector<Bytes>& operands, const fabric::NodeMap& map) const {
    if (call_.op == Op::kAllReduce) return sum_of(operands, 0, call_, map);
    if (call_.op == Op::kReduceScatter) return sum_of(operands, place_ * block(), call_, map);
    if (call_.op == Op::kBroadcast) return operands[static_cast<size_t>(call_.root)];
    const uint64_t at = call_.op == Op::kAllToAll ? place_ * block() : 0;
    Bytes all;
    for (const Bytes& operand : operands)
      all.insert(all.end(), operand.begin() + static_cast<long>(at),
                 operand.begin() + static_cast<long>(at + block()));
    return all;
  }

  PlannedCall call_;
  const std::vector<int> members_;
  const int rank_;
  uint64_t place_ = 0, send_bytes_ = 0, recv_bytes_ = 0;
  std::optional<test::GuardedMemory> send_, recv_;  // one where it is in place
};

}  // namespace braid::nccl::programs
