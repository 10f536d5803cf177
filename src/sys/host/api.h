// Who and where this process is.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace braid::sys {

/// Equal for processes that can share memory through /proc and loopback: a hash of the kernel's
/// boot id, the pid namespace and the network namespace, as 16 hex digits. `override_id`
/// (BRAID_HOST_ID), when not empty, is returned as it is: for tests that act as several hosts on
/// one. exhausted when this process has no descriptor left to read the boot id: an answer without it
/// would make this host another one.
Result<std::string> host_id(std::string_view override_id);
/// What this machine calls itself; for messages only.
std::string host_name();
/// Cores that this process may run on (its affinity mask), at least 1. Not what the machine has.
int usable_cores();
int process_id();
/// Another one for every process, also for a fork of one that has asked already; nothing secret.
Result<std::array<std::byte, 16>> process_mark();
/// Random bytes from the kernel, fit for nonces and secrets.
Status random_bytes(std::span<std::byte> bytes);
/// So many of them as a word: two lower-case hex digits for each.
Result<std::string> random_hex(size_t num_bytes);
/// Whether all pages of these bytes are mapped, readable or not. One system call, which looks at the list
/// of mappings and at no page: 0.2 us.
bool is_mapped(const std::byte* base, uint64_t bytes);
/// Whether the processor may read these 8 bytes: an address of a GPU's memory is mapped, and nobody may.
/// One system call, which touches the page.
bool is_readable(const void* word);
/// Whether the processor may write this byte. One system call, which touches the page and leaves what is
/// there as it is, beside whoever writes it.
bool is_writable(const void* byte);
/// The user's home directory: $HOME, else the password database; empty when neither knows.
std::string home_directory();

}  // namespace braid::sys
