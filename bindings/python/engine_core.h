// PyEngine: an engine that Python threads call at once, close at any moment, and let go of anywhere;
// and callables of Python that C++ threads run.
//
// The rule that prevents deadlocks: no thread waits for the engine while it holds the GIL, because
// the engine's own threads take the GIL for callbacks.
//
// Threads: with the GIL, but where a comment says otherwise.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "buffer.h"
#include "engine/engine.h"

namespace braid::python {

/// A callable that C++ threads keep and let go of: each takes the GIL for it.
std::shared_ptr<nanobind::object> keep(nanobind::object callable);
/// Calls with an error or None; empty for None.
engine::Callback callback_of(const nanobind::object& callable);
/// Calls with the word before and now; goes on while it answers true.
engine::WatchCallback watch_callback_of(nanobind::object callable);

class PyEngine {
 public:
  explicit PyEngine(const engine::EngineOptions& options);
  ~PyEngine();
  PyEngine(const PyEngine&) = delete;
  PyEngine& operator=(const PyEngine&) = delete;

  /// Waits for calls that are under way, which end soon, and for callbacks. Again: waits until the
  /// first one is done. InvalidArgument when a callback calls it: it would wait for itself.
  void close();
  bool is_closed() const { return is_closing_; }
  /// close() is through: nothing can land any more.
  bool is_ended() const { return is_ended_; }
  /// In a forked child, where the engine's threads are not: it is never ended there, since that
  /// would wait for them.
  void leave_to_parent();

  /// A call: while one lives, the engine does.
  class Call {
   public:
    /// Throws when the engine is closed.
    explicit Call(const PyEngine& self);
    ~Call() { --*num_calls_; }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    engine::Engine* operator->() const { return engine_; }

   private:
    engine::Engine* engine_;
    std::atomic<int>* num_calls_;
  };

  /// Memory stays its owner's until the region is unregistered or the engine closed.
  void hold(uint64_t region, Buffer buffer) { buffers_.emplace(region, std::move(buffer)); }
  void let_go(uint64_t region) { buffers_.erase(region); }

  using WatchPtr = std::shared_ptr<std::unique_ptr<engine::Watch>>;
  /// A watch that ends with the engine at the latest.
  void hold(WatchPtr watch);

 private:
  void end_watches();

  std::unique_ptr<engine::Engine> engine_;
  std::atomic<bool> is_closing_ = false;
  std::atomic<bool> is_ended_ = false;
  mutable std::atomic<int> num_calls_ = 0;
  std::map<uint64_t, Buffer> buffers_;
  std::list<WatchPtr> watches_;
};

/// A watch as Python has it. Ends with the object, or with its engine.
class PyWatch {
 public:
  explicit PyWatch(PyEngine::WatchPtr watch) : watch_(std::move(watch)) {}
  PyWatch(PyWatch&& other) noexcept = default;
  PyWatch(const PyWatch&) = delete;
  ~PyWatch() { close(); }

  /// When it returns the callback does not run any more.
  void close();
  /// Throws when it has ended.
  const engine::Watch& get() const;

 private:
  PyEngine::WatchPtr watch_;
};

}  // namespace braid::python
