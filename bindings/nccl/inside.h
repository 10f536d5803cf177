// Whether the real library runs on this thread: what it calls of its own public names goes straight
// on, for it may come back to our hooks.
#pragma once

#include "bindings/nccl/abi.h"
#include "bindings/nccl/core.h"

namespace braid::nccl {

bool is_inside();

class ReentryGuard {
 public:
  ReentryGuard();
  ~ReentryGuard();
  ReentryGuard(const ReentryGuard&) = delete;
  ReentryGuard& operator=(const ReentryGuard&) = delete;
};

/// Room for the core's words.
class ErrorText {
 public:
  operator braid_nccl_why() { return {text_, sizeof text_}; }  // NOLINT: implicit by design
  const char* text() const { return text_; }

 private:
  char text_[1024] = "";
};

/// What NCCL answers where the core answers a braid_code.
NcclResult result_of(int code);

}  // namespace braid::nccl
