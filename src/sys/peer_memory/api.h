// Copies between the memory of this process and that of another process of the host, without its
// help: one copy, no shared mapping. The kernel allows it where this process may trace the other
// one: the same user, the same container, and nothing (Yama, seccomp) that forbids it; ask by
// trying.
//
// A bad address of either side is an error of the call, never a signal.
//
// Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"

namespace braid::sys {

struct PeerCopy {
  std::byte* local = nullptr;
  uint64_t peer_address = 0;
  uint64_t bytes = 0;
};

/// All of `copies`, in order, or a Status: peer_lost when there is no such process, unavailable when
/// the kernel forbids it, invalid_argument for memory that is not there. What was copied before the
/// error stays copied.
Status read_peer_memory(int process, std::span<const PeerCopy> copies);
Status write_peer_memory(int process, std::span<const PeerCopy> copies);

/// Lets processes of this user that are no ancestors of ours do so, where Yama asks for a word
/// (ptrace_scope 1). Other users stay shut out by the kernel, as ever.
void admit_peers();

}  // namespace braid::sys
