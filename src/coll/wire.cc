#include "coll/wire.h"

#include <cstring>

namespace braid::coll {

namespace {

constexpr uint64_t kTagMagic = 0x4252'4449;  // "BRDI" in the top half of word 1
// Changes with the layout: two versions refuse each other.
constexpr uint32_t kEntryMagic = 0x4252'4446;
constexpr uint32_t kMaxUpdates = 64;

class Writer {
 public:
  void u8(uint8_t v) { put(v, 1); }
  void u16(uint16_t v) { put(v, 2); }
  void u32(uint32_t v) { put(v, 4); }
  void u64(uint64_t v) { put(v, 8); }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  void put(uint64_t v, int width) {
    for (int i = 0; i < width; ++i) bytes_.push_back(static_cast<std::byte>(v >> (8 * i)));
  }
  std::vector<std::byte> bytes_;
};

// Reads zeros past the end and remembers that it did, so that decoding checks once, at the end.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  uint8_t u8() { return static_cast<uint8_t>(get(1)); }
  uint16_t u16() { return static_cast<uint16_t>(get(2)); }
  uint32_t u32() { return static_cast<uint32_t>(get(4)); }
  uint64_t u64() { return get(8); }
  bool holds(uint64_t count, size_t width) const { return count <= (bytes_.size() - at_) / width; }
  bool ran_out() const { return ran_out_; }
  bool at_end() const { return at_ == bytes_.size(); }

 private:
  uint64_t get(size_t width) {
    if (bytes_.size() - at_ < width) {
      ran_out_ = true;
      at_ = bytes_.size();
      return 0;
    }
    uint64_t v = 0;
    for (size_t i = 0; i < width; ++i) v |= static_cast<uint64_t>(bytes_[at_ + i]) << (8 * i);
    at_ += width;
    return v;
  }
  std::span<const std::byte> bytes_;
  size_t at_ = 0;
  bool ran_out_ = false;
};

void write_signature(Writer& w, const Signature& s) {
  w.u8(static_cast<uint8_t>(s.op));
  w.u8(static_cast<uint8_t>(s.form));
  w.u8(static_cast<uint8_t>(s.dtype));
  w.u8(static_cast<uint8_t>(s.redop));
  w.u32(s.root);
  w.u64(s.count);
  w.u8(static_cast<uint8_t>(s.bit_op));
}

Signature read_signature(Reader& r) {
  Signature s;
  s.op = static_cast<plan::Op>(r.u8());
  // NOLINTNEXTLINE(clang-analyzer-optin.core.EnumCastOutOfRange): check_signature() looks at it
  s.form = static_cast<Form>(r.u8());
  s.dtype = static_cast<Dtype>(r.u8());
  s.redop = static_cast<RedOp>(r.u8());
  s.root = r.u32();
  s.count = r.u64();
  // NOLINTNEXTLINE(clang-analyzer-optin.core.EnumCastOutOfRange): the same
  s.bit_op = static_cast<BitOp>(r.u8());
  return s;
}

void write_counts(Writer& w, const std::vector<uint64_t>& counts) {
  w.u16(static_cast<uint16_t>(counts.size()));
  for (uint64_t c : counts) w.u64(c);
}

std::vector<uint64_t> read_counts(Reader& r) {
  const uint16_t n = r.u16();
  std::vector<uint64_t> counts;
  if (!r.holds(n, 8)) {
    (void)r.u64();
    return counts;
  }
  counts.reserve(n);
  for (int i = 0; i < n; ++i) counts.push_back(r.u64());
  return counts;
}

void write_update(Writer& w, const comm::ShareUpdate& u) {
  w.u64(u.from_epoch);
  w.u64(u.up_mask);
  w.u8(u.has_shares ? 1 : 0);
  w.u8(static_cast<uint8_t>(u.op));
  w.u8(static_cast<uint8_t>(u.size_class));
  w.u8(static_cast<uint8_t>(u.shares.size()));
  for (uint32_t s : u.shares) w.u32(s);
}

Result<comm::ShareUpdate> read_update(Reader& r) {
  comm::ShareUpdate u;
  u.from_epoch = r.u64();
  u.up_mask = r.u64();
  u.has_shares = r.u8() != 0;
  const uint8_t op = r.u8();
  u.size_class = r.u8();
  const uint8_t n = r.u8();
  if (op >= plan::kNumOps || u.size_class > 64 || !r.holds(n, 4))
    return internal_error("entry: share update is malformed");
  u.op = static_cast<plan::Op>(op);
  uint64_t sum = 0;
  for (int i = 0; i < n; ++i) sum += u.shares.emplace_back(r.u32());
  if (u.has_shares && sum != plan::kWhole)
    return internal_error("entry: shares sum to {}, not {}", sum, plan::kWhole);
  return u;
}

Status check_signature(const Signature& s) {
  if (static_cast<int>(s.op) >= plan::kNumOps)
    return internal_error("entry: op {} is unknown", static_cast<int>(s.op));
  if (s.form > Form::kRooted)
    return internal_error("entry: form {} is unknown", static_cast<int>(s.form));
  if (!is_valid(s.dtype) || !is_valid(s.redop))
    return internal_error("entry: dtype {} or reduction {} is unknown", static_cast<int>(s.dtype),
                          static_cast<int>(s.redop));
  if (!is_valid(s.bit_op))
    return internal_error("entry: bitwise operator {} is unknown", static_cast<int>(s.bit_op));
  return {};
}

}  // namespace

transport::PieceTag encode_tag(const Tag& tag) {
  transport::PieceTag words;
  words.words[0] = tag.epoch;
  words.words[1] = kTagMagic << 32 | uint64_t{tag.block} << 16 | uint64_t{tag.forward} << 8 |
                   static_cast<uint64_t>(tag.kind);
  words.words[2] = tag.cell;
  words.words[3] = tag.number;
  return words;
}

Result<Tag> decode_tag(const transport::PieceTag& words) {
  const uint64_t w = words.words[1];
  const auto kind = static_cast<uint8_t>(w);
  if (w >> 32 != kTagMagic || kind < 1 || kind > 7)
    return internal_error("piece tag {:#x} is not one of braid's", w);
  Tag tag;
  tag.epoch = words.words[0];
  // NOLINTNEXTLINE(clang-analyzer-optin.core.EnumCastOutOfRange): the check above covers the enum
  tag.kind = static_cast<PieceKind>(kind);
  tag.forward = ((w >> 8) & 1) != 0;
  tag.block = static_cast<uint16_t>(w >> 16);
  tag.cell = words.words[2];
  tag.number = words.words[3];
  return tag;
}

const char* call_name(const Signature& s) {
  using plan::Op;
  if (s.form == Form::kBarrier) return "barrier";
  if (s.form == Form::kUneven)
    return s.op == Op::kAllGather       ? "all_gather_v"
           : s.op == Op::kReduceScatter ? "reduce_scatter_v"
                                        : "all_to_all_v";
  if (s.form == Form::kRooted)
    return s.op == Op::kAllReduce ? "reduce" : s.op == Op::kAllGather ? "gather" : "scatter";
  return plan::op_name(s.op);
}

std::string to_words(const Signature& s) {
  if (s.form == Form::kBarrier) return "barrier";
  const bool is_uneven = s.form == Form::kUneven;  // the counts have words of their own
  std::string text = is_uneven
                         ? fmt::format("{} of {}", call_name(s), dtype_name(s.dtype))
                         : fmt::format("{} of {} {}", call_name(s), s.count, dtype_name(s.dtype));
  if (s.op == plan::Op::kAllReduce || s.op == plan::Op::kReduceScatter)
    text += fmt::format(", {}", redop_name(s.redop));
  if (s.bit_op != BitOp::kNone) text += fmt::format(", {}", bit_op_name(s.bit_op));
  const bool is_from_root = s.op == plan::Op::kBroadcast || s.op == plan::Op::kAllToAll;
  if (s.op == plan::Op::kBroadcast || s.form == Form::kRooted)
    text += fmt::format(" {} root {}", is_from_root ? "from" : "to", s.root);
  return text;
}

std::vector<std::byte> encode_announcement(const comm::Announcement& said) {
  Writer w;
  w.u8(static_cast<uint8_t>(said.dtype));
  w.u64(said.count);
  return w.take();
}

Result<comm::Announcement> decode_announcement(std::span<const std::byte> bytes) {
  Reader r(bytes);
  comm::Announcement said;
  said.dtype = static_cast<Dtype>(r.u8());
  said.count = r.u64();
  if (r.ran_out() || !r.at_end() || !is_valid(said.dtype))
    return internal_error("a message's announcement of {} bytes is malformed", bytes.size());
  return said;
}

std::string to_words(const comm::Announcement& said) {
  return fmt::format("{} {}", said.count, dtype_name(said.dtype));
}

std::vector<std::byte> encode_entry(const Entry& entry) {
  Writer w;
  w.u32(kEntryMagic);
  write_signature(w, entry.signature);
  write_counts(w, entry.send_counts);
  write_counts(w, entry.recv_counts);
  w.u64(entry.up_mask);
  w.u64(entry.report_epoch);
  w.u8(static_cast<uint8_t>(entry.report.size()));
  for (const LinkReport& link : entry.report) {
    w.u64(link.bytes);
    w.u64(static_cast<uint64_t>(link.finish_ns));
  }
  w.u8(static_cast<uint8_t>(entry.updates.size()));
  for (const comm::ShareUpdate& update : entry.updates) write_update(w, update);
  return w.take();
}

Result<Entry> decode_entry(std::span<const std::byte> bytes) {
  Reader r(bytes);
  if (r.u32() != kEntryMagic)
    return internal_error("entry piece of {} bytes has no entry magic", bytes.size());
  Entry entry;
  entry.signature = read_signature(r);
  BRAID_RETURN_IF_ERROR(check_signature(entry.signature));
  entry.send_counts = read_counts(r);
  entry.recv_counts = read_counts(r);
  entry.up_mask = r.u64();
  entry.report_epoch = r.u64();
  const uint8_t num_links = r.u8();
  for (int i = 0; i < num_links && !r.ran_out(); ++i) {
    LinkReport link;
    link.bytes = r.u64();
    link.finish_ns = static_cast<int64_t>(r.u64());
    entry.report.push_back(link);
  }
  const uint8_t num_updates = r.u8();
  if (num_updates > kMaxUpdates)
    return internal_error("entry: {} share updates, at most {}", num_updates, kMaxUpdates);
  for (int i = 0; i < num_updates && !r.ran_out(); ++i) {
    BRAID_ASSIGN_OR_RETURN(comm::ShareUpdate update, read_update(r));
    entry.updates.push_back(std::move(update));
  }
  if (r.ran_out() || !r.at_end())
    return internal_error("entry piece of {} bytes is cut or has a tail", bytes.size());
  return entry;
}

}  // namespace braid::coll
