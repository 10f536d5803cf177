#include "engine/frames.h"

#include <limits>

#include "engine/codec.h"
#include "engine/copy_pages.h"

namespace braid::engine {
namespace {

constexpr uint32_t kMostNics = 64;

/// The body is used up by what was read from it.
template <typename T>
Result<T> whole(const Reader& in, T value, const char* what) {
  if (!in.is_whole()) return invalid_argument("a frame '{}' that is cut or too long", what);
  return value;
}

void write(Writer& out, const Delivery& d) {
  out.number(static_cast<uint8_t>(d.has_immediate)).number(d.immediate).number(d.count);
  out.number(static_cast<uint8_t>(d.kind)).text(d.message);
}

Status read(Reader& in, Delivery& d) {
  d.has_immediate = in.number<uint8_t>() != 0;
  d.immediate = in.number<uint32_t>();
  d.count = in.number<uint32_t>();
  const auto kind = in.number<uint8_t>();
  d.message = in.text();
  if (kind > static_cast<uint8_t>(MessageKind::kMessage) || d.message.size() > kMostMessageBytes)
    return invalid_argument("a message of kind {} with {} bytes", kind, d.message.size());
  d.kind = static_cast<MessageKind>(kind);
  return {};
}

}  // namespace

std::string encode(const Open& o) {
  Writer out;
  out.text(o.name).text(o.host).number(o.process).number(static_cast<uint8_t>(o.wants_local));
  out.number(o.probe_address).number(o.probe_value).number(o.lease_ns);
  out.number(static_cast<uint32_t>(o.nics.size()));
  for (const std::string& nic : o.nics) out.text(nic);
  return out.take();
}

Result<Open> decode_open(std::string_view body) {
  Reader in(body);
  Open o;
  o.name = in.words();
  o.host = in.words();
  o.process = in.number<int32_t>();
  o.wants_local = in.number<uint8_t>() != 0;
  o.probe_address = in.number<uint64_t>();
  o.probe_value = in.number<uint64_t>();
  o.lease_ns = in.number<int64_t>();
  const auto count = in.number<uint32_t>();
  for (uint32_t i = 0; i < count && i < kMostNics && in.is_good(); ++i)
    o.nics.push_back(in.words());
  return whole(in, std::move(o), "open");
}

std::string encode(const Accept& a) {
  Writer out;
  out.number(static_cast<uint8_t>(a.is_local)).text(a.why_not_local);
  out.number(static_cast<uint32_t>(a.rails.size()));
  for (const RailPair& rail : a.rails) out.number(rail.source_nic).number(rail.target_nic);
  return out.take();
}

Result<Accept> decode_accept(std::string_view body) {
  Reader in(body);
  Accept a;
  a.is_local = in.number<uint8_t>() != 0;
  a.why_not_local = in.words();
  const auto count = in.number<uint32_t>();
  for (uint32_t i = 0; i < count && i < kMostNics && in.is_good(); ++i) {
    RailPair pair;
    pair.source_nic = in.number<uint16_t>();
    pair.target_nic = in.number<uint16_t>();
    a.rails.push_back(pair);
  }
  return whole(in, std::move(a), "accept");
}

std::string encode(const RailCall& c) {
  Writer out;
  out.number(c.rail).text(c.endpoint);
  return out.take();
}

Result<RailCall> decode_rail_call(std::string_view body) {
  Reader in(body);
  RailCall c;
  c.rail = in.number<uint16_t>();
  c.endpoint = in.text();
  return whole(in, std::move(c), "rail");
}

std::string encode(const RailReady& r) {
  Writer out;
  out.number(r.rail).text(r.endpoint).number(r.probe_address).number(r.probe_key).text(r.trouble);
  return out.take();
}

Result<RailReady> decode_rail_ready(std::string_view body) {
  Reader in(body);
  RailReady r;
  r.rail = in.number<uint16_t>();
  r.endpoint = in.text();
  r.probe_address = in.number<uint64_t>();
  r.probe_key = in.number<uint64_t>();
  r.trouble = in.words();
  return whole(in, std::move(r), "rail ready");
}

std::string encode(const Work& w) {
  Writer out;
  out.number(static_cast<uint8_t>(w.is_under_way));
  return out.take();
}

Result<Work> decode_work(std::string_view body) {
  Reader in(body);
  const Work w{in.number<uint8_t>() != 0};
  return whole(in, w, "work");
}

std::string encode(const Landed& l) {
  Writer out;
  out.number(l.transfer);
  write(out, l.delivery);
  return out.take();
}

Result<Landed> decode_landed(std::string_view body) {
  Reader in(body);
  Landed l;
  l.transfer = in.number<uint64_t>();
  BRAID_RETURN_IF_ERROR(read(in, l.delivery));
  return whole(in, std::move(l), "landed");
}

std::string encode(const BoardOffer& b) {
  Writer out;
  out.number(b.fd).number(b.bytes);
  return out.take();
}

Result<BoardOffer> decode_board_offer(std::string_view body) {
  Reader in(body);
  BoardOffer b;
  b.fd = in.number<int32_t>();
  b.bytes = in.number<uint64_t>();
  return whole(in, b, "board");
}

std::string encode(const BoardAnswer& a) {
  Writer out;
  out.text(a.trouble);
  return out.take();
}

Result<BoardAnswer> decode_board_answer(std::string_view body) {
  Reader in(body);
  BoardAnswer a{in.words()};
  return whole(in, std::move(a), "board ready");
}

std::string encode(const Loan& l) {
  Writer out;
  out.number(l.region).number(l.base).number(l.bytes).number(l.offset).text(l.handle);
  return out.take();
}

Result<Loan> decode_loan(std::string_view body) {
  Reader in(body);
  Loan l;
  l.region = in.number<uint64_t>();
  l.base = in.number<uint64_t>();
  l.bytes = in.number<uint64_t>();
  l.offset = in.number<uint64_t>();
  l.handle = in.text();
  return whole(in, std::move(l), "lend");
}

std::string encode(const Pull& p) {
  Writer out;
  out.number(p.transfer);
  out.number(p.word_address).number(p.word).number(static_cast<uint8_t>(p.is_last)).number(p.slot);
  write(out, p.delivery);
  out.number(static_cast<uint32_t>(p.planes.size()));
  out.array(std::span<const Plane>(p.planes));
  out.array(std::span<const PageRun>(&p.pages, 1));
  out.number(static_cast<uint32_t>(p.stretches.size()));
  out.array(std::span<const Stretch>(p.stretches));
  return out.take();
}

Result<Pull> decode_pull(std::string_view body) {
  Reader in(body);
  Pull p;
  p.transfer = in.number<uint64_t>();
  p.word_address = in.number<uint64_t>();
  p.word = in.number<uint64_t>();
  p.is_last = in.number<uint8_t>() != 0;
  p.slot = in.number<uint32_t>();
  BRAID_RETURN_IF_ERROR(read(in, p.delivery));
  const auto num_planes = in.number<uint32_t>();
  if (num_planes > kMostPlanes || in.left() < num_planes * sizeof(Plane))
    return invalid_argument("a frame 'pull' of {} planes in {} bytes", num_planes, in.left());
  p.planes.resize(num_planes);
  in.array(std::span(p.planes));
  in.array(std::span(&p.pages, 1));
  const auto count = in.number<uint32_t>();
  if (p.pages.count != 0 && (count != 0 || p.pages.page_bytes == 0))
    return invalid_argument("a frame 'pull' of {} pages of {} bytes and {} stretches",
                            p.pages.count, p.pages.page_bytes, count);
  if (p.pages.count > std::numeric_limits<uint32_t>::max())  // times planes must not overflow
    return invalid_argument("a frame 'pull' of {} pages", p.pages.count);
  if ((p.pages.count != 0 && num_planes == 0) || (count != 0 && num_planes != 1))
    return invalid_argument("a frame 'pull' of {} planes, {} pages and {} stretches", num_planes,
                            p.pages.count, count);
  if (count > kMostStretches || in.left() != count * sizeof(Stretch))
    return invalid_argument("a frame 'pull' of {} stretches in {} bytes", count, in.left());
  p.stretches.resize(count);
  in.array(std::span(p.stretches));
  return whole(in, std::move(p), "pull");
}

std::string encode(const Pulled& p) {
  Writer out;
  out.number(p.transfer).number(p.slot);
  return out.take();
}

Result<Pulled> decode_pulled(std::string_view body) {
  Reader in(body);
  Pulled p;
  p.transfer = in.number<uint64_t>();
  p.slot = in.number<uint32_t>();
  return whole(in, p, "pulled");
}

std::string encode(const TransferNote& n) {
  Writer out;
  out.number(n.transfer);
  return out.take();
}

Result<TransferNote> decode_transfer_note(std::string_view body) {
  Reader in(body);
  const TransferNote n{in.number<uint64_t>()};
  return whole(in, n, "transfer");
}

std::string encode(const Fence& f) {
  Writer out;
  out.number(f.rail);
  for (const uint64_t region : f.regions) out.number(region);
  return out.take();
}

Result<Fence> decode_fence(std::string_view body) {
  Reader in(body);
  Fence f;
  f.rail = in.number<uint16_t>();
  while (in.left() >= sizeof(uint64_t)) f.regions.push_back(in.number<uint64_t>());
  return whole(in, std::move(f), "fence");
}

std::string encode(const RegionNote& n) {
  Writer out;
  out.number(n.region);
  return out.take();
}

Result<RegionNote> decode_region_note(std::string_view body) {
  Reader in(body);
  const RegionNote n{in.number<uint64_t>()};
  return whole(in, n, "region");
}

std::string encode(const Done& d) {
  Writer out;
  for (const uint64_t transfer : d.transfers) out.number(transfer);
  return out.take();
}

Result<Done> decode_done(std::string_view body) {
  Reader in(body);
  Done d;
  while (in.left() >= sizeof(uint64_t)) d.transfers.push_back(in.number<uint64_t>());
  return whole(in, std::move(d), "done");
}

std::string encode(const Refused& r) {
  Writer out;
  out.number(r.transfer).number(static_cast<uint8_t>(r.code)).text(r.why);
  return out.take();
}

Result<Refused> decode_refused(std::string_view body) {
  Reader in(body);
  Refused r;
  r.transfer = in.number<uint64_t>();
  const auto code = in.number<uint8_t>();
  r.why = in.words();
  if (code == 0 || code > static_cast<uint8_t>(Code::kCancelled))
    return invalid_argument("a refusal with code {}", code);
  r.code = static_cast<Code>(code);
  return whole(in, std::move(r), "refused");
}

}  // namespace braid::engine
