#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/dtype.h"
#include "base/status.h"
#include "comm/comm.h"

namespace braid::coll {

/// One end of a message between this rank and `peer`.
struct Message {
  enum class Way : uint8_t { kSend, kRecv };
  Way way = Way::kSend;
  int peer = 0;
  void* data = nullptr;  // kSend: only read
  uint64_t count = 0;
  Dtype dtype = Dtype::kUint8;
};

/// "send of 5 float32 to rank 3"
std::string to_words(const Message& message);

/// Sends `data` to `peer`, which calls recv with the same count and dtype.
/// Shapes   data [count], contiguous
/// Returns  ok = the peer has all of it; invalid_argument (also where the two disagree: then on
///          both, nothing was written, and the comm stays usable) | timeout | peer_lost
/// Threads  one caller per comm. The k-th send of one rank to another meets that one's k-th recv
///          from it, and no collective may lie between the two: one that does is an error that
///          ends the comm on all ranks.
/// Cost     count elements, and one exchange of small pieces before and one piece after them
Status send(comm::Comm& comm, const void* data, uint64_t count, Dtype dtype, int peer);
/// The other end of it.
Status recv(comm::Comm& comm, void* data, uint64_t count, Dtype dtype, int peer);

/// Several at once, in both directions and with several peers: all move at the same time, so that
/// two ranks may send to each other. Those to one peer go in the order of the list, and so do those
/// from one. What is received shares no byte with any other. The first failure, when all are over.
Status exchange(comm::Comm& comm, std::span<const Message> messages);

}  // namespace braid::coll
