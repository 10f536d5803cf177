#include "engine_core.h"

#include <chrono>
#include <thread>

#include "errors.h"
#include "unlocked.h"

namespace nb = nanobind;

namespace braid::python {
namespace {
// Whether this thread runs a callback: it must not wait for the thread of callbacks to end.
thread_local bool is_in_callback = false;

class InCallback {
 public:
  InCallback() : was_(std::exchange(is_in_callback, true)) {}
  ~InCallback() { is_in_callback = was_; }
  InCallback(const InCallback&) = delete;
  InCallback& operator=(const InCallback&) = delete;

 private:
  const bool was_;
};

// It would be found on a thread of ours, which can tell nobody.
void refuse_uncallable(const nb::object& callable) {
  if (PyCallable_Check(callable.ptr()) != 0) return;
  const auto found = nb::cast<std::string>(nb::str(callable.type().attr("__name__")));
  raise_if_failed(
      invalid_argument("engine: callback: asked for what can be called, found {}", found));
}
}  // namespace

std::shared_ptr<nb::object> keep(nb::object callable) {
  return {new nb::object(std::move(callable)), [](nb::object* object) {
            if (!nb::is_alive()) return;  // the interpreter is gone, and the object with it
            const nb::gil_scoped_acquire locked;
            delete object;
          }};
}

engine::Callback callback_of(const nb::object& callable) {
  if (callable.is_none()) return {};
  refuse_uncallable(callable);
  return [kept = keep(callable)](const Status& status) {
    if (!nb::is_alive()) return;
    const nb::gil_scoped_acquire locked;
    const InCallback here;
    try {
      (*kept)(exception_of(status));
    } catch (nb::python_error& raised) {
      raised.discard_as_unraisable(*kept);
    }
  };
}

engine::WatchCallback watch_callback_of(nb::object callable) {
  return [kept = keep(std::move(callable))](uint64_t before, uint64_t now) {
    if (!nb::is_alive()) return false;
    const nb::gil_scoped_acquire locked;
    const InCallback here;
    try {
      return nb::cast<bool>((*kept)(before, now));
    } catch (nb::python_error& raised) {
      raised.discard_as_unraisable(*kept);
      return false;
    }
  };
}

PyEngine::PyEngine(const engine::EngineOptions& options) {
  run_unlocked([&] {
    auto made = engine::Engine::create(options);
    if (made.ok()) engine_ = std::move(made).value();
    return made.status();
  });
}

// The collector may let go of an engine in a callback, whose thread the engine's end waits for.
PyEngine::~PyEngine() {
  if (!is_in_callback) close();
  if (is_closing_.exchange(true)) return;
  end_watches();
  std::thread([engine = std::move(engine_), buffers = std::move(buffers_)]() mutable {
    engine.reset();
    if (!nb::is_alive()) return;
    const nb::gil_scoped_acquire locked;
    buffers.clear();
  }).detach();
}

void PyEngine::close() {
  if (is_in_callback) {
    if (is_closing_) return;  // whoever closes it waits for us
    raise_if_failed(
        invalid_argument("engine: a callback may not close it; it would wait for itself"));
  }
  if (is_closing_.exchange(true)) {  // by another thread: peers may write until it is through
    const Unlocked released;
    while (!is_ended_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return;
  }
  end_watches();
  {
    const Unlocked released;
    while (num_calls_ != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  end_watches();  // of a call that was under way
  {
    const Unlocked released;
    engine_.reset();
  }
  buffers_.clear();
  is_ended_ = true;
}

void PyEngine::leave_to_parent() {
  is_closing_ = true;
  for (const WatchPtr& watch : watches_) (void)watch->release();
  (void)engine_.release();
  is_ended_ = true;
}

void PyEngine::hold(WatchPtr watch) {
  watches_.remove_if([](const WatchPtr& held) { return *held == nullptr; });
  watches_.push_back(std::move(watch));
}

void PyEngine::end_watches() {
  std::vector<std::unique_ptr<engine::Watch>> ending;
  for (const WatchPtr& watch : watches_) ending.push_back(std::move(*watch));
  watches_.clear();
  const Unlocked released;  // a callback that runs needs it
  ending.clear();
}

PyEngine::Call::Call(const PyEngine& self)
    : engine_(self.engine_.get()), num_calls_(&self.num_calls_) {
  if (self.is_closing_) raise_if_failed(invalid_argument("engine: it is closed"));
  ++*num_calls_;
}

void PyWatch::close() {
  if (watch_ == nullptr || *watch_ == nullptr) return;
  std::unique_ptr<engine::Watch> ended = std::move(*watch_);
  const Unlocked released;  // a callback that runs needs it
  ended.reset();
}

const engine::Watch& PyWatch::get() const {
  if (watch_ == nullptr || *watch_ == nullptr)
    raise_if_failed(invalid_argument("watch: it has ended"));
  return **watch_;
}

}  // namespace braid::python
