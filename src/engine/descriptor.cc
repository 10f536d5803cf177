#include "engine/descriptor.h"

#include "engine/codec.h"
#include "group/keyed_hash.h"

namespace braid::engine {
namespace {

constexpr uint32_t kAddressMagic = 0x41445242;  // "BRDA"
constexpr uint32_t kRegionMagic = 0x52445242;   // "BRDR"
constexpr uint16_t kFormatVersion = 2;
constexpr size_t kSignatureBytes = 16;
constexpr size_t kHeadBytes = sizeof(uint32_t) + sizeof(uint16_t) + sizeof(JobMark);
constexpr size_t kMostParts = 1024;  // endpoints or keys

std::string sign(const std::string& bytes, const Secret& secret) {
  const group::Digest digest = group::hmac(secret.descriptor_key(), bytes);
  return bytes + std::string(reinterpret_cast<const char*>(digest.data()), kSignatureBytes);
}

Writer head(uint32_t magic, const Secret& secret) {
  Writer out;
  out.number(magic).number(kFormatVersion).raw(view(secret.job()));
  return out;
}

void write(Writer& out, const Address& a) {
  out.text(a.name).raw(view(a.incarnation)).text(a.host).number(a.process).number(a.num_nics);
  out.number(static_cast<uint32_t>(a.endpoints.size()));
  for (const std::string& endpoint : a.endpoints) out.text(endpoint);
}

void read(Reader& in, Address& a) {
  a.name = in.words();
  const std::string_view incarnation = in.raw(a.incarnation.size());
  if (in.is_good()) std::memcpy(a.incarnation.data(), incarnation.data(), incarnation.size());
  a.host = in.words();
  a.process = in.number<int32_t>();
  a.num_nics = in.number<uint16_t>();
  const auto count = in.number<uint32_t>();
  for (uint32_t i = 0; i < count && i < kMostParts && in.is_good(); ++i)
    a.endpoints.push_back(in.words());
}

/// Whose it says it is, for messages about bytes that nobody has vouched for; empty where that cannot
/// be read.
std::string claim(std::string_view bytes, uint32_t magic) {
  Reader in(bytes.substr(kHeadBytes));
  Address owner;
  read(in, owner);
  const uint64_t region = magic == kRegionMagic ? in.number<uint64_t>() : 0;
  constexpr size_t kMostName = 128;
  if (!in.is_good() || owner.name.size() > kMostName) return "";
  return magic == kRegionMagic ? fmt::format(" (it says: region {} of '{}')", region, owner.name)
                               : fmt::format(" (it says: '{}')", owner.name);
}

/// What lies between head and signature, when both are right.
Result<std::string_view> open(std::string_view bytes, uint32_t magic, const char* what,
                              const Secret& secret) {
  if (bytes.size() < kHeadBytes + kSignatureBytes)
    return invalid_argument("{}: {} bytes, which is too short: was it cut?", what, bytes.size());
  Reader in(bytes);
  if (in.number<uint32_t>() != magic) return invalid_argument("{}: these bytes are none", what);
  const auto version = in.number<uint16_t>();
  if (version != kFormatVersion)
    return invalid_argument("{}: made by version {} of the format, this build reads {}", what,
                            version, kFormatVersion);
  if (in.raw(sizeof(JobMark)) != view(secret.job()))
    return invalid_argument("{}{}: made by another job (its token is not ours)", what,
                            claim(bytes, magic));
  const std::string_view signed_bytes = bytes.substr(0, bytes.size() - kSignatureBytes);
  const group::Digest digest = group::hmac(secret.descriptor_key(), signed_bytes);
  const std::string_view found = bytes.substr(signed_bytes.size());
  if (!group::is_equal(std::as_bytes(std::span(found)), std::span(digest).first(kSignatureBytes)))
    return invalid_argument("{}{}: {} bytes whose signature does not fit: cut or altered", what,
                            claim(bytes, magic), bytes.size());
  return signed_bytes.substr(kHeadBytes);
}

}  // namespace

std::string encode(const Address& address, const Secret& secret) {
  Writer out = head(kAddressMagic, secret);
  write(out, address);
  return sign(out.bytes(), secret);
}

std::string encode(const RegionDescriptor& region, const Secret& secret) {
  Writer out = head(kRegionMagic, secret);
  write(out, region.owner);
  out.number(region.id).number(region.base).number(region.bytes).number(region.device);
  out.number(uint8_t{region.is_read_only});
  out.number(static_cast<uint32_t>(region.keys.size()));
  for (const NicKey& key : region.keys) out.number(key.address).number(key.key);
  return sign(out.bytes(), secret);
}

Result<Address> decode_address(std::string_view bytes, const Secret& secret) {
  BRAID_ASSIGN_OR_RETURN(const std::string_view body,
                         open(bytes, kAddressMagic, "engine address", secret));
  Reader in(body);
  Address address;
  read(in, address);
  if (!in.is_whole()) return invalid_argument("engine address: its parts do not fill its bytes");
  return address;
}

Result<std::shared_ptr<const RegionDescriptor>> decode_region(std::string_view bytes,
                                                              const Secret& secret) {
  BRAID_ASSIGN_OR_RETURN(const std::string_view body,
                         open(bytes, kRegionMagic, "region descriptor", secret));
  Reader in(body);
  auto region = std::make_shared<RegionDescriptor>();
  read(in, region->owner);
  region->id = in.number<uint64_t>();
  region->base = in.number<uint64_t>();
  region->bytes = in.number<uint64_t>();
  region->device = in.number<int32_t>();
  region->is_read_only = in.number<uint8_t>() != 0;
  const auto count = in.number<uint32_t>();
  for (uint32_t i = 0; i < count && i < kMostParts && in.is_good(); ++i) {
    NicKey key;
    key.address = in.number<uint64_t>();
    key.key = in.number<uint64_t>();
    region->keys.push_back(key);
  }
  if (!in.is_whole()) return invalid_argument("region descriptor: its parts do not fill its bytes");
  return std::shared_ptr<const RegionDescriptor>(std::move(region));
}

}  // namespace braid::engine
