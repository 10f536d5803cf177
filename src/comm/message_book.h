// MessageBook: what is known of messages between this rank and each other one: how many are over,
// and what a peer has called that this rank has not. Their protocol is coll/messages/exchange.h.
//
// Threads: the comm's lock.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/dtype.h"
#include "transport/lane.h"

namespace braid::comm {

/// What a rank says of a message that it has called send or recv for.
struct Announcement {
  Dtype dtype = Dtype::kUint8;
  uint64_t count = 0;
  friend bool operator==(const Announcement&, const Announcement&) = default;
};

struct PeerMessages {
  uint64_t num_sent = 0;  // messages to the peer that are over: the next one's number
  uint64_t num_received = 0;
  std::optional<Announcement> offer;  // of message num_received, by the peer
  std::optional<Announcement> want;   // of message num_sent
};

/// By peer; empty until the comm's first message.
using MessageBook = std::vector<PeerMessages>;

/// Whether a piece from `source` is a late copy of a message that is over. Of its tag (coll/wire.h)
/// word 1 ends in the kind, and word 3 is the message's number. Offers and cells, kinds 4 and 6,
/// are of messages that the source sends; wants and their like, 5 and 7, of those that it gets.
inline bool is_over(const MessageBook& messages, int source, const transport::PieceTag& tag) {
  const uint64_t kind = tag.words[1] & 0xff;
  if (kind < 4 || kind > 7 || messages.empty()) return false;
  const PeerMessages& known = messages[static_cast<size_t>(source)];
  return tag.words[3] < (kind % 2 == 0 ? known.num_received : known.num_sent);
}

}  // namespace braid::comm
