// Addresses and descriptors: what a user ships to a peer, as opaque bytes, by any means.
//
//   magic u32 | version u16 | job 8 | body | signature 16
//
// The signature is an HMAC under the job's secret over all before it. So bytes that were cut,
// altered, or made by another job are refused at the first look, before anything in them is
// believed; and nobody outside the job can name memory.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/secret.h"

namespace braid::engine {

/// 128 random bits: another one for every engine that was ever made.
using Incarnation = std::array<char, 16>;

struct Address {
  std::string name;  // for messages
  Incarnation incarnation{};
  std::string host;  // sys::host_id()
  int32_t process = 0;
  std::vector<std::string> endpoints;  // "10.0.0.1:4242", where its control port is reached
  uint16_t num_nics = 0;
};

/// How one of the owner's NICs names the region.
struct NicKey {
  uint64_t address = 0;
  uint64_t key = 0;
};

struct RegionDescriptor {
  Address owner;
  uint64_t id = 0;  // never used again by this owner
  uint64_t base = 0;
  uint64_t bytes = 0;
  int32_t device = -1;        // GPU; -1: host memory
  bool is_read_only = false;  // peers read it, and write nothing to it
  std::vector<NicKey> keys;   // by the owner's NICs
};

std::string encode(const Address& address, const Secret& secret);
std::string encode(const RegionDescriptor& region, const Secret& secret);

/// invalid_argument: no such bytes, cut, altered, another version, or another job.
Result<Address> decode_address(std::string_view bytes, const Secret& secret);
Result<std::shared_ptr<const RegionDescriptor>> decode_region(std::string_view bytes,
                                                              const Secret& secret);

}  // namespace braid::engine
