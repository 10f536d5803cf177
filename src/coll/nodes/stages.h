// Stages: all_gather and reduce_scatter of GPUs over several nodes, of the collectives inside the
// node (coll/device) and one rail between nodes. The schedule is schedule.h's:
//
//   all_gather      rail    | my block to node + 1 | to node + 2 | ..      each into its final place
//                   inside  | own node's blocks    | blocks of node - 1, as they have come | ..
//
//   reduce_scatter  inside  | sums for node + 1 | for node + 2 | .. | own node's
//                   rail                        | those partials, each as it is there | ..
//                   at last the partials of all nodes are added, in the order of nodes
//
// The two go on side by side, on the caller's stream and on one of our own, joined by events. Long
// blocks go piece by piece, so that neither side waits for a whole block of the other, and what is
// kept beside the caller's buffers is bounded (StageTerms). A piece of a block is not where
// the inside collectives want it: it is gathered into scratch and copied out of it, or copied into
// it and summed there.
//
// A small all_gather is one all_gather of the rail, then one inside for each node, all on the
// caller's stream.
//
// Numbers: in a node fp32 in rank order, one rounding; then fp32 in the order of nodes, one
// rounding; avg divides in the last step, by all ranks. The bits are those of the host's collectives
// over nodes (coll/host/node_sums.h), and follow from operands, type and map alone. With is_exact
// sums of the smaller floats are widened first, and all that follows is fp32 until the last step,
// which rounds: one rounding, and twice or four times the bytes inside and between nodes.
//
// Threads: as Device.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "base/dtype.h"
#include "base/status.h"
#include "coll/nodes/rail.h"
#include "comm/device/device.h"
#include "fabric/node_map.h"
#include "sys/cuda/owned.h"

namespace braid::coll::nodes {

struct StageTerms {
  uint64_t most_scratch_bytes = 96 << 20;
  /// The rail's calls on the caller's stream, too: where streams share a queue of the GPU
  /// (CUDA_DEVICE_MAX_CONNECTIONS=1), one could stand behind what waits for it.
  bool is_on_one_stream = false;
  /// Partials of smaller floats in fp32.
  bool is_exact = false;
  /// Of a block: longer pieces are faster between nodes, and there are many of them.
  uint64_t most_piece_bytes = 8 << 20;
  /// Of what an average adds, for each of its patterns: it is added by as much at a time.
  uint64_t most_nothing_bytes = 1 << 20;
};

/// The memory of Stages: pieces, and behind them what an average adds.
struct StageScratch {
  uint64_t num_pieces, piece_bytes, nothing_bytes, bytes;
};
StageScratch scratch_of(const fabric::NodeMap& map, const StageTerms& terms);

class Stages {
 public:
  /// `device` is of the ranks of this node, its rank the place in the node. Takes memory and makes a
  /// stream: not in a capture. Calls use `device` and `rail`; what goes on after the last call uses
  /// neither.
  static Result<std::unique_ptr<Stages>> make(comm::Device& device, Rail& rail,
                                              const fabric::NodeMap& map, int node,
                                              const StageTerms& terms = {});
  /// Of what is_finished().
  ~Stages() = default;

  /// Contracts of coll/device/collectives.h over all ranks of the map; avg among more than
  /// kMostReduceArrays ranks is unsupported, which has_average() says.
  Status all_gather(sys::DevicePtr send, sys::DevicePtr recv, uint64_t count, Dtype dtype,
                    sys::Stream stream);
  Status reduce_scatter(sys::DevicePtr send, sys::DevicePtr recv, uint64_t count, Dtype dtype,
                        RedOp op, sys::Stream stream);
  /// Behind it on `stream` all ranks of all nodes have come to it.
  Status barrier(sys::Stream stream);
  static bool has_average(const fabric::NodeMap& map);

  /// Every connection that calls will use is made: one passage of some bytes with every node.
  Status warm_up();
  /// Whether all of its own stream's work is done.
  Result<bool> is_idle();
  /// Whether nothing that was enqueued uses its memory any longer, as far as can be known: graphs
  /// may be replayed. Also when the device is gone.
  bool is_finished();
  uint64_t scratch_bytes() const { return sizes_.bytes; }
  /// The longest piece of a block.
  uint64_t piece_bytes() const { return sizes_.piece_bytes; }

 private:
  Stages(comm::Device& device, Rail& rail, const fabric::NodeMap& map, int node,
         const StageTerms& terms)
      : device_(device),
        cuda_(device.cuda()),
        rail_(rail),
        map_(map),
        node_(node),
        terms_(terms),
        sizes_(scratch_of(map, terms)) {}
  Status take_memory();
  int me() const { return map_.rank_at(node_, device_.rank()); }
  /// The blocks of a node's ranks, of `block_bytes` each, in a buffer of all.
  uint64_t node_at(int node, uint64_t block_bytes) const {
    return static_cast<uint64_t>(map_.rank_at(node, 0)) * block_bytes;
  }

  // The order of calls, which is the device's, and of the two streams.
  Status begin(sys::Stream stream);
  Status end(sys::Stream stream, const Status& enqueued);
  sys::Stream rail_stream(sys::Stream users) const {
    return terms_.is_on_one_stream ? users : stream_.get();
  }
  Status meet(sys::Stream stream);
  /// What is on `stream` is done before what `other` gets from now on.
  Status pass(sys::Stream stream, sys::Stream other, const sys::OwnedEvent& by);

  struct Gather {
    sys::DevicePtr send, recv;
    uint64_t block_bytes;
    sys::Stream stream;
  };
  Status gather_small(const Gather& call);
  Status gather_long(const Gather& call);
  Status spread_own(const Gather& call);
  Status spread(const Gather& call, int node, uint64_t at, uint64_t bytes);
  Status gather_inside(sys::DevicePtr send, sys::DevicePtr recv, uint64_t bytes,
                       sys::Stream stream);

  struct Sum {
    sys::DevicePtr send, recv;
    uint64_t count;
    Dtype dtype;
    RedOp op;
    sys::Stream stream;
    Dtype wire;  // of partials
    bool is_wide() const { return wire != dtype; }
    uint64_t wire_bytes(uint64_t elements) const { return elements * dtype_bytes(wire); }
  };
  struct Piece {
    uint64_t begin, count;  // elements of every block
    size_t half;            // of the scratch
  };
  Status sum_by_pieces(const Sum& call);
  Piece piece_of(const Sum& call, uint64_t number) const;
  Status take_operands(const Sum& call, const Piece& piece, int node);
  Status reduce_inside(const Sum& call, const Piece& piece, int node, sys::DevicePtr to);
  Status send_partials(const Sum& call, const Piece& piece);
  Status add_partials(const Sum& call, const Piece& piece);
  Status add(const Sum& call, const Piece& piece, sys::DevicePtr to);

  // The scratch, in pieces: per_node for what goes through it, the own node's partial, and two
  // halves, in turn, of partials for and from the other nodes; behind them what an average adds.
  sys::DevicePtr scratch_at(uint64_t piece) const { return scratch_.get() + piece * piece_bytes(); }
  uint64_t num_others() const { return static_cast<uint64_t>(map_.num_nodes - 1); }
  uint64_t own_piece() const { return static_cast<uint64_t>(map_.per_node); }
  sys::DevicePtr nothing_at(uint64_t kind) const {
    return scratch_at(sizes_.num_pieces) + kind * sizes_.nothing_bytes;
  }
  sys::DevicePtr out_at(size_t half, int node) const;
  sys::DevicePtr in_at(size_t half, int node) const;
  Status write_nothing();

  comm::Device& device_;
  sys::Cuda& cuda_;
  Rail& rail_;
  const fabric::NodeMap map_;
  const int node_;
  const StageTerms terms_;
  const StageScratch sizes_;
  sys::DeviceMemory scratch_;
  sys::OwnedStream stream_;
  sys::OwnedEvent done_;                      // of the last eager call
  sys::OwnedEvent to_rail_;                   // what lies on the caller's stream is done
  sys::OwnedEvent arrived_;                   // what an all_gather's passage brought
  std::array<sys::OwnedEvent, 2> from_rail_;  // by half: its partials are here, and have left
  bool has_last_ = false, has_captures_ = false;
};

}  // namespace braid::coll::nodes
