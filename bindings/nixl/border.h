// The border between NIXL's compiled code and ours: what a backend answers, without what it throws.
//
// The library throws nothing itself, but the allocator and the standard library do, and NIXL is not to
// unwind what it calls through a table of functions.
#pragma once

#include <exception>
#include <memory>
#include <type_traits>

#include "abi.h"

namespace braid::nixl {

void log_thrown(const char* function, const char* what) noexcept;

/// What `body` answers; `otherwise` where it throws, and the log says what.
template <typename Body, typename Answered = std::invoke_result_t<const Body&>>
Answered guarded(const char* function, std::type_identity_t<Answered> otherwise,
                 const Body& body) noexcept {
  try {
    return body();
  } catch (const std::exception& thrown) {
    log_thrown(function, thrown.what());
  } catch (...) {
    log_thrown(function, "what was thrown is no exception");
  }
  return otherwise;
}

/// `inner` behind the border: its answer is "backend" (kFailed) where it throws. Throws only where there
/// is no memory for the border itself.
std::unique_ptr<Backend> behind_border(const Birth& birth, std::unique_ptr<Backend> inner);

}  // namespace braid::nixl
