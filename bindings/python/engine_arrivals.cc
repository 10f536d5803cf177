// What comes in at an engine, for Python: counts, messages, notifications and watched words.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "buffer.h"
#include "engine_calls.h"

namespace nb = nanobind;

namespace braid::python {
namespace {

using engine::Callback;
using engine::TicketPtr;

/// A word that an expectation sets: 8 bytes of the host or of the engine's GPU, which are kept
/// until then.
struct Flag {
  std::shared_ptr<Buffer> buffer;
  std::atomic<uint64_t>* word = nullptr;
};

Flag flag_of(const PyEngine& self, const nb::object& object) {
  if (object.is_none()) return {};
  auto* buffer = new Buffer(Buffer::borrow(object, {"expect", "flag"}, Access::kWrite));
  Flag flag{{buffer, [](Buffer* held) {
               if (!nb::is_alive()) return;
               const nb::gil_scoped_acquire locked;
               delete held;
             }}};
  if (buffer->on_gpu()) {
    const int ours = PyEngine::Call(self)->options().device;
    if (buffer->gpu() != ours)
      raise_if_failed(invalid_argument(
          "expect: argument flag: memory of GPU {}: this engine is of {}", buffer->gpu(),
          ours < 0 ? "no GPU (device=None)" : fmt::format("GPU {}", ours)));
  }
  const auto address = reinterpret_cast<uint64_t>(buffer->data());
  if (buffer->bytes() != sizeof(uint64_t) || address % sizeof(uint64_t) != 0)
    raise_if_failed(invalid_argument(
        "expect: argument flag: asked for 8 aligned bytes, found {} bytes at {:#x}",
        buffer->bytes(), address));
  flag.word = static_cast<std::atomic<uint64_t>*>(buffer->data());
  return flag;
}

TicketPtr expect(const PyEngine& self, uint32_t imm, uint64_t count, const nb::object& callback,
                 const nb::object& flag_object) {
  Callback call = callback_of(callback);
  const Flag flag = flag_of(self, flag_object);
  if (flag.buffer != nullptr)
    call = [call = std::move(call), held = flag.buffer](const Status& ended) {
      if (call) call(ended);
    };
  return begin(self,
               [&](engine::Engine& e) { return e.expect(imm, count, std::move(call), flag.word); });
}

std::optional<nb::tuple> as_tuple(const std::optional<engine::Message>& message) {
  if (!message) return {};
  return nb::make_tuple(bytes_of(message->bytes), message->sender,
                        nb::bytes(message->incarnation.data(), message->incarnation.size()));
}

template <typename Take>
std::optional<nb::tuple> take(const PyEngine& self, int64_t timeout_ns, Take&& take_one) {
  const PyEngine::Call call(self);
  return as_tuple(wait_in_slices(timeout_ns, &self, [&](Deadline deadline) {
    return take_one(*call.operator->(), deadline);
  }));
}

}  // namespace

void register_arrivals(nb::class_<PyEngine>& type) {
  type.def("expect", &expect, nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none());
  type.def(
      "forget",
      [](const PyEngine& self, uint32_t imm, const TicketPtr& only) {
        ask(self, [&](engine::Engine& e) { e.forget(imm, only.get()); });
      },
      nb::arg(), nb::arg().none() = nb::none());
  type.def("discard", [](const PyEngine& self, uint32_t imm) {
    ask(self, [&](engine::Engine& e) { e.discard(imm); });
  });
  type.def("count", [](const PyEngine& self, uint32_t imm) {
    return ask(self, [&](engine::Engine& e) { return e.count(imm); });
  });
  type.def("receive", [](const PyEngine& self, int64_t timeout_ns) {
    return take(self, timeout_ns, [](engine::Engine& e, Deadline d) { return e.receive(d); });
  });
  type.def("take_notification", [](const PyEngine& self, int64_t timeout_ns) {
    return take(self, timeout_ns,
                [](engine::Engine& e, Deadline d) { return e.take_notification(d); });
  });
  type.def("tell", [](const PyEngine& self, bool is_notification, const nb::object& callable) {
    Callback call = callback_of(callable);
    return ask(self, [&](engine::Engine& e) {
      return is_notification ? e.tell_of_notification(std::move(call))
                             : e.tell_of_message(std::move(call));
    });
  });
  type.def("watch", [](PyEngine& self, nb::object callback) {
    const PyEngine::Call open(
        self);  // until it is held: close() ends what is held, then the engine
    auto call = watch_callback_of(std::move(callback));
    auto watch = std::make_shared<std::unique_ptr<engine::Watch>>(
        begin(self, [&](engine::Engine& e) { return e.watch(std::move(call)); }));
    self.hold(watch);
    return PyWatch(std::move(watch));
  });
}

}  // namespace braid::python
