// What the pieces of a collective say: the 32-byte tag on each, and the payload of entry pieces.
//
// Everything is little-endian, written field by field; decoders take any bytes and answer a Status,
// never read out of bounds and never allocate more than the bytes they were given can describe
// (they are fuzzed).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "coll/bit_op.h"
#include "comm/message_book.h"
#include "comm/share_book.h"
#include "plan/plan.h"
#include "transport/lane.h"

namespace braid::coll {

enum class PieceKind : uint8_t {
  kEntry = 1,    // "I am in call e, with these arguments"; one to every peer in every call
  kData = 2,     // bytes for their final place
  kOperand = 3,  // bytes to be reduced at the receiver
  // Of messages between two ranks (coll/messages/exchange.h). comm/message_book.h reads these, too.
  kOffer = 4,    // "I have called send to you, with these arguments"
  kWant = 5,     // "I have called recv from you, with these"
  kMessage = 6,  // bytes for their final place
  kArrived = 7,  // all of them are there
};
constexpr bool is_of_message(PieceKind kind) { return kind >= PieceKind::kOffer; }

struct Tag {
  uint64_t epoch = 0;
  PieceKind kind = PieceKind::kEntry;
  bool forward = false;  // broadcast over unicast links: the receiver passes the cell on, see
                         // host/chain.h
  uint16_t block = 0;    // kData: index of the place at the receiver; kOperand: the sender's rank
  uint64_t cell = 0;
  uint64_t number = 0;  // of a message, among those that its sender sends its receiver
};
transport::PieceTag encode_tag(const Tag& tag);
/// internal when the words are not a tag (wrong magic or kind).
Result<Tag> decode_tag(const transport::PieceTag& words);

/// Which call of an operation. What is not even uses the plan of the operation whose busiest rank
/// moves the same bytes: a reduce's root receives what every rank of an all_reduce does, a gather's
/// what one of an all_gather, and a scatter's root sends what every rank of an all_to_all does.
enum class Form : uint8_t {
  kEven = 0,     // the operation itself
  kBarrier = 1,  // of broadcast
  kUneven = 2,   // all_gather, reduce_scatter, all_to_all: the counts travel beside
  kRooted = 3,   // all_reduce: reduce; all_gather: gather; all_to_all: scatter
};

/// What every rank of a call must agree on.
struct Signature {
  plan::Op op = plan::Op::kAllGather;
  Form form = Form::kEven;
  Dtype dtype = Dtype::kInt8;
  RedOp redop = RedOp::kSum;
  uint32_t root = 0;
  uint64_t count = 0;
  BitOp bit_op = BitOp::kNone;  // of an even all_to_all
  friend bool operator==(const Signature&, const Signature&) = default;
};
/// "all_reduce", "all_gather_v", "gather": what the caller called.
const char* call_name(const Signature& signature);
/// "all_reduce of 100 float32, sum" for messages.
std::string to_words(const Signature& signature);

/// How one link did in the sender's previous call.
struct LinkReport {
  uint64_t bytes = 0;
  int64_t finish_ns = 0;
};

/// The payload of an entry piece.
struct Entry {
  Signature signature;
  // Uneven: one per rank. Those of the blocks, equal on all ranks, are send_counts, and there are
  // no recv_counts but in an all_to_all.
  std::vector<uint64_t> send_counts;
  std::vector<uint64_t> recv_counts;
  uint64_t up_mask = ~uint64_t{0};         // links that are usable from the sender
  uint64_t report_epoch = 0;               // 0: no report
  std::vector<LinkReport> report;          // one per link
  std::vector<comm::ShareUpdate> updates;  // from rank 0 only
};
std::vector<std::byte> encode_entry(const Entry& entry);
Result<Entry> decode_entry(std::span<const std::byte> bytes);

/// The payload of offers and wants.
std::vector<std::byte> encode_announcement(const comm::Announcement& said);
Result<comm::Announcement> decode_announcement(std::span<const std::byte> bytes);
/// "5 float32"
std::string to_words(const comm::Announcement& said);

}  // namespace braid::coll
