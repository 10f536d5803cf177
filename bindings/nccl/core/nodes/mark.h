// The mark in an ncclUniqueId: where the roll over nodes of its communicator is served, and under
// which secret. The process that makes the id writes it into bytes that NCCL leaves zero, so whoever
// is given the id, by whatever way the program has, is given the mark.
//
//   0    NCCL's own: a number, and the address of its bootstrap (8, 28 bytes; 2.30: 4 more)
//   40   zero
//   80   "braid\0m3" | port, 2 bytes, little-endian | 6 zero | 32 random bytes
//
// The address is that of NCCL's bootstrap, which every rank must reach anyway. NCCL hashes all 128
// bytes of an id alike on every rank, and reads none of ours.
//
// Pure functions of bytes, so that a fuzzer can call them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "sys/net/api.h"

namespace braid::nccl {

inline constexpr size_t kIdBytes = 128;

struct Mark {
  sys::Endpoint at;                    // of the roll
  std::array<std::byte, 32> secret{};  // of this id alone
};

/// The address that NCCL has put into an id, with its own port. unsupported when it is none that we
/// know, or when the bytes of the mark are used.
Result<sys::Endpoint> bootstrap_of(std::span<const std::byte, kIdBytes> id);
/// What a rank tells the others of a roll of its own. invalid_argument when it is none, at an address
/// that means the same on every host.
std::string encode(const Mark& mark);
Result<Mark> decode_mark(std::string_view words);

/// Into an id for which bootstrap_of() is ok. Only the port of `mark.at` is written.
void write_mark(std::span<std::byte, kIdBytes> id, const Mark& mark);
/// Of a communicator's key, which begins with its first id, or its parent's. Nothing: it has none.
std::optional<Mark> read_mark(std::string_view key);

/// The secret that the ranks of the id's communicators share, if they have the job's token.
std::string roll_token(const Mark& mark, std::string_view job_token);
/// The public name of the id's rolls, and of one communicator's, `key`: whoever knows them knows
/// nothing of secrets.
std::string roll_of_id(const Mark& mark);
std::string roll_of_key(const Mark& mark, std::string_view key);

}  // namespace braid::nccl
