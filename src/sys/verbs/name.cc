// The name's bytes, all numbers little-endian:
//
//    0  magic "BQP1"; another layout gets another digit
//    4  GID, 16 bytes as on the wire
//   20  GID type, MTU, reads, 0
//   24  LID, 2 bytes; 0, 2 bytes
//   28  number and first packet of the data queue pair, 4 bytes each
//   36  the same of the message queue pair
#include "sys/verbs/name.h"

#include <algorithm>

namespace braid::sys::verbs {
namespace {

constexpr std::string_view kMagic = "BQP1";
constexpr size_t kNameBytes = 44;
constexpr uint32_t k24Bits = 0xffffff;

void put(std::string& out, uint32_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  uint32_t take(int bytes) {
    uint32_t value = 0;
    for (int i = 0; i < bytes; ++i)
      value |= static_cast<uint32_t>(static_cast<uint8_t>(bytes_[at_++])) << (8 * i);
    return value;
  }

 private:
  std::string_view bytes_;
  size_t at_ = 0;
};

void put(std::string& out, const QueuePairName& pair) {
  put(out, pair.number, 4);
  put(out, pair.first_packet, 4);
}

QueuePairName take_pair(Reader& reader) {
  QueuePairName pair;
  pair.number = reader.take(4);
  pair.first_packet = reader.take(4);
  return pair;
}

bool is_sound(const QueuePairName& pair) {
  return pair.number <= k24Bits && pair.first_packet <= k24Bits;
}

}  // namespace

std::string encode(const EndpointName& name) {
  std::string out(kMagic);
  for (const uint8_t byte : name.gid) out.push_back(static_cast<char>(byte));
  put(out, static_cast<uint32_t>(name.gid_type), 1);
  put(out, name.mtu, 1);
  put(out, name.max_reads, 1);
  put(out, 0, 1);
  put(out, name.lid, 2);
  put(out, 0, 2);
  put(out, name.data);
  put(out, name.messages);
  return out;
}

Result<EndpointName> decode(std::string_view bytes) {
  if (bytes.size() != kNameBytes || !bytes.starts_with(kMagic))
    return invalid_argument("verbs: a peer's name must have {} bytes and begin with {}, found {}",
                            kNameBytes, kMagic, bytes.size());
  Reader reader(bytes.substr(kMagic.size()));
  EndpointName name;
  for (uint8_t& byte : name.gid) byte = static_cast<uint8_t>(reader.take(1));
  const uint32_t type = reader.take(1);
  name.gid_type = static_cast<GidType>(type);
  name.mtu = static_cast<uint8_t>(reader.take(1));
  name.max_reads = static_cast<uint8_t>(reader.take(1));
  const uint32_t zeroes = reader.take(1);
  name.lid = static_cast<uint16_t>(reader.take(2));
  const uint32_t more_zeroes = reader.take(2);
  name.data = take_pair(reader);
  name.messages = take_pair(reader);
  if (type > static_cast<uint32_t>(GidType::kRoceV2) || name.mtu < 1 || name.mtu > 5 ||
      (zeroes | more_zeroes) != 0 || !is_sound(name.data) || !is_sound(name.messages))
    return invalid_argument(
        "verbs: a peer's name holds GID type {}, MTU code {}, queue pairs {:#x} and {:#x}: not a "
        "name of this version",
        type, name.mtu, name.data.number, name.messages.number);
  return name;
}

}  // namespace braid::sys::verbs
