// How the engine's functions for Python call it: without the GIL, and in waits that Ctrl-C ends.
// And what these functions share: regions of ours and of peers, and bytes.
//
// Threads: with the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "engine/engine.h"
#include "engine_core.h"
#include "errors.h"
#include "unlocked.h"

namespace braid::python {

struct PyRegion {
  std::shared_ptr<engine::Region> region;
};

using Remote = std::shared_ptr<engine::RegionDescriptor>;

inline std::string text_of(const nanobind::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }
inline nanobind::bytes bytes_of(const std::string& text) {
  return nanobind::bytes(text.data(), text.size());
}

/// Runs call(), which begins one transfer or several, without the GIL.
template <typename Begin>
auto begin(const PyEngine& self, Begin&& call_it) {
  const PyEngine::Call call(self);
  auto begun = [&] {
    const Unlocked released;
    return call_it(*call.operator->());
  }();
  return value_or_raise(std::move(begun));
}

/// The same for a question or an order that cannot fail.
template <typename Ask>
auto ask(const PyEngine& self, Ask&& question) {
  const PyEngine::Call call(self);
  const Unlocked released;
  return question(*call.operator->());
}

/// Waits without the GIL in slices, so that a signal's handler runs in time and may end it.
template <typename Look>
auto wait_in_slices(int64_t timeout_ns, const PyEngine* engine, Look&& look) {
  constexpr int64_t kSliceNs = 50'000'000;
  const Deadline deadline = Deadline::after_ns(timeout_ns);
  while (true) {
    auto found = [&] {
      const Unlocked released;
      return look(Deadline::at_ns(std::min(deadline.at_ns(), now_ns() + kSliceNs)));
    }();
    if (found || deadline.passed() || (engine != nullptr && engine->is_closed())) return found;
    if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
  }
}

/// What begins transfers (engine_transfers.cc).
void register_transfers(nanobind::class_<PyEngine>& type);
/// What comes in: counts, messages, notifications and watched words (engine_arrivals.cc).
void register_arrivals(nanobind::class_<PyEngine>& type);

}  // namespace braid::python
