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
#include "comm/share_book.h"
#include "plan/plan.h"
#include "transport/lane.h"

namespace braid::coll {

enum class PieceKind : uint8_t {
  kEntry = 1,    // "I am in call e, with these arguments"; one to every peer in every call
  kData = 2,     // bytes for their final place
  kOperand = 3,  // bytes to be reduced at the receiver
};

struct Tag {
  uint64_t epoch = 0;
  PieceKind kind = PieceKind::kEntry;
  bool forward = false;  // broadcast over unicast links: the receiver passes the cell on, see
                         // broadcast/steps.h
  uint16_t block = 0;    // kData: index of the place at the receiver; kOperand: the sender's rank
  uint64_t cell = 0;
};
transport::PieceTag encode_tag(const Tag& tag);
/// internal when the words are not a tag (wrong magic or kind).
Result<Tag> decode_tag(const transport::PieceTag& words);

/// What every rank of a call must agree on.
struct Signature {
  plan::Op op = plan::Op::kAllGather;
  bool is_barrier = false;
  bool is_uneven = false;  // all_to_all_v: the counts travel beside
  Dtype dtype = Dtype::kInt8;
  RedOp redop = RedOp::kSum;
  uint32_t root = 0;
  uint64_t count = 0;
  friend bool operator==(const Signature&, const Signature&) = default;
};
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
  std::vector<uint64_t> send_counts;  // with is_uneven: one per rank
  std::vector<uint64_t> recv_counts;
  uint64_t up_mask = ~uint64_t{0};         // links that are usable from the sender
  uint64_t report_epoch = 0;               // 0: no report
  std::vector<LinkReport> report;          // one per link
  std::vector<comm::ShareUpdate> updates;  // from rank 0 only
};
std::vector<std::byte> encode_entry(const Entry& entry);
Result<Entry> decode_entry(std::span<const std::byte> bytes);

}  // namespace braid::coll
