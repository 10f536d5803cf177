// The operations that GPU kernels carry out whole, for tests of what is launched for each.
#pragma once

#include "coll/packets/packets.h"

namespace braid::test {

using coll::PacketOp;

inline constexpr PacketOp kPacketOps[] = {PacketOp::kAllReduce, PacketOp::kAllGather,
                                          PacketOp::kReduceScatter, PacketOp::kAllToAll,
                                          PacketOp::kBroadcast};

/// Whether the call's bytes are those of one block of several.
inline bool counts_blocks(PacketOp op) {
  return op != PacketOp::kAllReduce && op != PacketOp::kBroadcast;
}

}  // namespace braid::test
