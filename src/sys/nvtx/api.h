// Ranges for profilers that speak NVTX, such as Nsight Systems.
//
// NVTX version 3 has no library: a tool sets NVTX_INJECTION64_PATH to a library of its own, and
// whoever has ranges to tell opens that and offers it pointers to fill in. This is the asking side
// of it, so nothing of NVIDIA's is needed at build time or at run time, and without a tool there
// is nothing to call.
//
// Threads: any; ranges nest per thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"

namespace braid::sys {

class Nvtx {
 public:
  virtual ~Nvtx() = default;
  /// Opens a range in the calling thread, in the domain "braid". `payload` is a number that tools
  /// show beside the message. Costs what the tool makes of it.
  virtual void push(const char* message, uint64_t payload) = 0;
  /// Closes the calling thread's last one.
  virtual void pop() = 0;
};

/// The tool in the library at `path`, which stays open for the life of the process. One per
/// process. unavailable: it cannot be opened, is no tool, or refuses.
Result<std::unique_ptr<Nvtx>> attach_nvtx(const std::string& path);

/// The tool that NVTX_INJECTION64_PATH names, attached at the first call; unavailable when it names
/// none.
Result<Nvtx*> real_nvtx();

}  // namespace braid::sys
