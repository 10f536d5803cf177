#include "bindings/nccl/core/nodes/mark.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "group/keyed_hash.h"

namespace braid::nccl {

namespace {

constexpr size_t kAddressAt = 8, kSpareFrom = 40, kMarkAt = 80;
// Its last figure changes with what ranks of several nodes do together: who speaks another one is
// left to NCCL. 2: a rail's all_gather is sends and receives. 3: who is through with a step of its
// node goes on exchanging until all are (comm/node_group.h).
constexpr char kMagic[8] = {'b', 'r', 'a', 'i', 'd', '\0', 'm', '3'};
constexpr size_t kPortAt = kMarkAt + sizeof kMagic, kSecretAt = kMarkAt + 16;
static_assert(kSecretAt + 32 == kIdBytes);

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string hex_of(const group::Digest& digest, size_t num_bytes) {
  std::string hex;
  for (size_t i = 0; i < num_bytes; ++i)
    hex += fmt::format("{:02x}", static_cast<unsigned>(digest[i]));
  return hex;
}

/// NCCL's union of sockaddr_in and sockaddr_in6; nothing when it is neither.
std::optional<sys::Endpoint> address_in(std::span<const std::byte, kIdBytes> id) {
  sa_family_t family = 0;
  std::memcpy(&family, id.data() + kAddressAt, sizeof family);
  if (family != AF_INET && family != AF_INET6) return std::nullopt;
  sockaddr_storage address{};
  const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::memcpy(&address, id.data() + kAddressAt, length);
  return sys::Endpoint(reinterpret_cast<const sockaddr*>(&address), length);
}

/// Of a literal, so that no resolver is asked; nothing when it is none.
std::optional<sys::Endpoint> literal_address(const std::string& host) {
  sockaddr_in four{};
  four.sin_family = AF_INET;
  if (inet_pton(AF_INET, host.c_str(), &four.sin_addr) == 1)
    return sys::Endpoint(reinterpret_cast<const sockaddr*>(&four), sizeof four);
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  if (inet_pton(AF_INET6, host.c_str(), &six.sin6_addr) == 1)
    return sys::Endpoint(reinterpret_cast<const sockaddr*>(&six), sizeof six);
  return std::nullopt;
}

}  // namespace

Result<sys::Endpoint> bootstrap_of(std::span<const std::byte, kIdBytes> id) {
  const auto at = address_in(id);
  if (!at) return unsupported("NCCL's id holds no address that braid knows");
  const auto is_zero = [](std::byte b) { return b == std::byte{0}; };
  if (!std::all_of(id.begin() + kSpareFrom, id.end(), is_zero))
    return unsupported("NCCL's id has no spare bytes");
  return *at;
}

std::string encode(const Mark& mark) {
  return fmt::format("{}{} {}", as_text(mark.secret), mark.at.port(), mark.at.host());
}

Result<Mark> decode_mark(std::string_view words) {
  Mark mark;
  const size_t space = words.find(' ', std::min(words.size(), mark.secret.size()));
  if (space == std::string_view::npos) return invalid_argument("no mark of a roll");
  std::memcpy(mark.secret.data(), words.data(), mark.secret.size());
  uint16_t port = 0;
  const char* const end = words.data() + space;
  const auto read = std::from_chars(words.data() + mark.secret.size(), end, port);
  if (read.ec != std::errc() || read.ptr != end) return invalid_argument("no mark of a roll");
  const auto at = literal_address(std::string(words.substr(space + 1)));
  if (!at) return invalid_argument("no mark of a roll");
  mark.at = *at;
  mark.at.set_port(port);
  return mark;
}

void write_mark(std::span<std::byte, kIdBytes> id, const Mark& mark) {
  std::memcpy(id.data() + kMarkAt, kMagic, sizeof kMagic);
  const uint16_t port = mark.at.port();
  id[kPortAt] = static_cast<std::byte>(port & 0xff);
  id[kPortAt + 1] = static_cast<std::byte>(port >> 8);
  std::copy(mark.secret.begin(), mark.secret.end(), id.begin() + kSecretAt);
}

std::optional<Mark> read_mark(std::string_view key) {
  if (key.size() < kIdBytes) return std::nullopt;
  const auto id = std::as_bytes(std::span(key.data(), key.size())).first<kIdBytes>();
  if (std::memcmp(id.data() + kMarkAt, kMagic, sizeof kMagic) != 0) return std::nullopt;
  auto at = address_in(id);
  const auto port = static_cast<uint16_t>(static_cast<unsigned>(id[kPortAt]) |
                                          static_cast<unsigned>(id[kPortAt + 1]) << 8);
  if (!at || port == 0) return std::nullopt;
  at->set_port(port);
  Mark mark{*at, {}};
  std::copy(id.begin() + kSecretAt, id.end(), mark.secret.begin());
  return mark;
}

std::string roll_token(const Mark& mark, std::string_view job_token) {
  const std::string of_id = group::derive_key(as_text(mark.secret), "braid nccl roll");
  return group::derive_key(of_id, job_token);
}

std::string roll_of_id(const Mark& mark) {
  return hex_of(group::hmac(as_text(mark.secret), "braid nccl id"), 16);
}

std::string roll_of_key(const Mark& mark, std::string_view key) {
  return roll_of_id(mark) + "/" + hex_of(group::hmac(as_text(mark.secret), key), 16);
}

}  // namespace braid::nccl
