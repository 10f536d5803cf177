// The transfer engine for python/braid/engine: thin, but for what only C++ can do: waits without
// the GIL that Ctrl-C ends, callbacks that take the GIL, and page lists without a loop in Python.
#include "engine/engine.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "buffer.h"
#include "engine.h"
#include "engine/nics.h"
#include "engine_core.h"
#include "errors.h"
#include "unlocked.h"

namespace nb = nanobind;

namespace braid::python {
namespace {

using engine::Callback;
using engine::Ticket;
using engine::TicketPtr;
using engine::TransferOptions;
using Ids = nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

TransferOptions options_of(std::optional<uint32_t> immediate, const nb::bytes& notification,
                           int64_t timeout_ns, const nb::object& callback) {
  TransferOptions out;
  out.immediate = immediate;
  out.notification = std::string(notification.c_str(), notification.size());
  out.timeout_ns = timeout_ns;
  out.callback = callback_of(callback);
  return out;
}

std::string text_of(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }
nb::bytes bytes_of(const std::string& text) { return nb::bytes(text.data(), text.size()); }

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
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

bool wait_for(const Ticket& ticket, int64_t timeout_ns) {
  return wait_in_slices(timeout_ns, nullptr, [&](Deadline deadline) {
    (void)ticket.wait(deadline);
    return ticket.is_done();
  });
}

struct PyRegion {
  std::shared_ptr<engine::Region> region;
};

std::unique_ptr<PyEngine> create(const std::string& name, const std::vector<std::string>& hosts,
                                 uint16_t port, const std::string& token,
                                 const std::vector<std::pair<std::string, std::string>>& nics,
                                 int device, bool uses_local, int64_t lease_ns, int64_t timeout_ns,
                                 uint32_t most_transfers, const std::string& host_id,
                                 const std::string& cores) {
  engine::EngineOptions options;
  options.name = name;
  options.hosts = hosts;
  options.port = port;
  options.token = token;
  for (const auto& [provider, address] : nics) options.nics.push_back({provider, address, nullptr});
  options.device = device;
  options.uses_local = uses_local;
  options.lease_ns = lease_ns;
  options.timeout_ns = timeout_ns;
  options.most_transfers = most_transfers;
  options.host_id = host_id;
  options.cores = cores;
  return std::make_unique<PyEngine>(options);
}

PyRegion register_at(const PyEngine& self, uint64_t address, uint64_t bytes, int gpu) {
  const PyEngine::Call call(self);
  if (gpu >= 0 && call->options().device != gpu)
    raise_if_failed(unsupported(
        "register: {} bytes of GPU {}: this engine is of {}", bytes, gpu,
        call->options().device < 0 ? "no GPU" : fmt::format("GPU {}", call->options().device)));
  PyRegion out;
  run_unlocked([&] {
    auto made = gpu >= 0 ? call->register_gpu_memory(address, bytes)
                         : call->register_memory(reinterpret_cast<std::byte*>(address), bytes);
    if (made.ok()) out.region = std::move(made).value();
    return made.status();
  });
  return out;
}

PyRegion register_buffer(PyEngine& self, nb::handle object) {
  Buffer buffer = Buffer::borrow(object, {"register", "buffer"}, Access::kWrite);
  PyRegion out =
      register_at(self, reinterpret_cast<uint64_t>(buffer.data()), buffer.bytes(), buffer.gpu());
  self.hold(out.region->id, std::move(buffer));
  return out;
}

void unregister(PyEngine& self, const PyRegion& region, int64_t timeout_ns) {
  {
    const PyEngine::Call call(self);
    run_unlocked([&] { return call->unregister(*region.region, Deadline::after_ns(timeout_ns)); });
  }
  self.let_go(region.region->id);
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

/// The same for what cannot fail.
template <typename Ask>
auto ask(const PyEngine& self, Ask&& question) {
  const PyEngine::Call call(self);
  const Unlocked released;
  return question(*call.operator->());
}

engine::PageList list_of(uint64_t page_bytes, const Ids& source_ids, const Ids& target_ids,
                         uint64_t source_stride, uint64_t target_stride) {
  engine::PageList list;
  list.page_bytes = page_bytes;
  list.source_ids = {source_ids.data(), source_ids.size()};
  list.target_ids = {target_ids.data(), target_ids.size()};
  list.source_stride = source_stride;
  list.target_stride = target_stride;
  return list;
}

using Remote = std::shared_ptr<engine::RegionDescriptor>;

/// What a list of pages holds in: of each of the four one, which is all planes', or one for each plane.
struct Planes {
  const std::vector<const PyRegion*>& ours;
  const std::vector<Remote>& theirs;
  const Ids &our_offsets, &their_offsets;

  std::vector<engine::PagePlane> each() const {
    const size_t count =
        std::max({ours.size(), theirs.size(), our_offsets.size(), their_offsets.size()});
    const auto of = [](const auto& all, size_t i) { return all.data()[all.size() == 1 ? 0 : i]; };
    std::vector<engine::PagePlane> out;
    out.reserve(count);
    for (size_t i = 0; i < count; ++i)
      out.push_back({of(ours, i)->region, of(theirs, i), of(our_offsets, i), of(their_offsets, i)});
    return out;
  }
};

std::optional<nb::tuple> as_tuple(const std::optional<engine::Message>& message) {
  if (!message) return {};
  return nb::make_tuple(bytes_of(message->bytes), message->sender,
                        nb::bytes(message->incarnation.data(), message->incarnation.size()));
}

nb::dict stats_of(const engine::Stats& s) {
  nb::dict out;
  const auto put = [&](const char* name, const std::atomic<uint64_t>& value) {
    out[name] = value.load();
  };
  put("transfers_begun", s.transfers_begun);
  put("transfers_done", s.transfers_done);
  put("transfers_failed", s.transfers_failed);
  put("bytes_written", s.bytes_written);
  put("bytes_read", s.bytes_read);
  put("counts_arrived", s.counts_arrived);
  put("messages_arrived", s.messages_arrived);
  put("pages_listed", s.pages_listed);
  put("bytes_staged", s.bytes_staged);
  put("rails_fenced", s.rails_fenced);
  put("pieces_again", s.pieces_again);
  put("peers_lost", s.peers_lost);
  put("handshakes_refused", s.handshakes_refused);
  return out;
}

void register_parts(nb::module_& module) {
  nb::class_<Ticket>(module, "Ticket")
      .def("is_done", &Ticket::is_done)
      .def("wait", &wait_for, nb::arg("timeout_ns"))
      .def("raise_if_failed", [](const Ticket& t) { raise_if_failed(t.status()); })
      .def("then",
           [](Ticket& t, const nb::object& callable) {
             Callback call = callback_of(callable);
             const Unlocked released;
             return t.then(std::move(call));
           })
      .def("error", [](const Ticket& t) { return exception_of(t.status()); })
      .def_prop_ro("what", [](const Ticket& t) { return t.what(); });
  nb::class_<PyRegion>(module, "Region")
      .def_prop_ro("id", [](const PyRegion& r) { return r.region->id; })
      .def_prop_ro("nbytes", [](const PyRegion& r) { return r.region->bytes; })
      .def_prop_ro("address",
                   [](const PyRegion& r) { return reinterpret_cast<uint64_t>(r.region->base); })
      .def_prop_ro("device", [](const PyRegion& r) { return r.region->device; });
  nb::class_<engine::RegionDescriptor>(module, "Remote")
      .def_prop_ro("id", [](const engine::RegionDescriptor& r) { return r.id; })
      .def_prop_ro("nbytes", [](const engine::RegionDescriptor& r) { return r.bytes; })
      .def_prop_ro("device", [](const engine::RegionDescriptor& r) { return r.device; })
      .def_prop_ro("owner", [](const engine::RegionDescriptor& r) { return r.owner; });
  nb::class_<engine::Address>(module, "Peer")
      .def_prop_ro("name", [](const engine::Address& a) { return a.name; })
      .def_prop_ro("incarnation",
                   [](const engine::Address& a) {
                     return nb::bytes(a.incarnation.data(), a.incarnation.size());
                   })
      .def_prop_ro("endpoints", [](const engine::Address& a) { return a.endpoints; });
  nb::class_<PyWatch>(module, "Watch")
      .def("close", &PyWatch::close)
      .def_prop_rw(
          "value", [](const PyWatch& w) { return w.get().word().load(); },
          [](const PyWatch& w, uint64_t value) { w.get().word().store(value); })
      .def_prop_ro("address",
                   [](const PyWatch& w) { return reinterpret_cast<uint64_t>(&w.get().word()); })
      .def_prop_ro("gpu_address", [](const PyWatch& w) { return w.get().address(); });
}

void register_transfers(nb::class_<PyEngine>& type) {
  type.def(
      "write",
      [](const PyEngine& self, const PyRegion& source, uint64_t source_offset, const Remote& target,
         uint64_t target_offset, uint64_t bytes, std::optional<uint32_t> imm,
         const nb::bytes& notification, int64_t timeout_ns, const nb::object& callback) {
        auto options = options_of(imm, notification, timeout_ns, callback);
        return begin(self, [&](engine::Engine& e) {
          return e.write({source.region, source_offset}, {target, target_offset}, bytes,
                         std::move(options));
        });
      },
      nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(),
      nb::arg().none());
  type.def(
      "read",
      [](const PyEngine& self, const PyRegion& target, uint64_t target_offset, const Remote& source,
         uint64_t source_offset, uint64_t bytes, const nb::bytes& notification, int64_t timeout_ns,
         const nb::object& callback) {
        auto options = options_of({}, notification, timeout_ns, callback);
        return begin(self, [&](engine::Engine& e) {
          return e.read({target.region, target_offset}, {source, source_offset}, bytes,
                        std::move(options));
        });
      },
      nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
      nb::arg().none());
  type.def(
      "pages",
      [](const PyEngine& self, bool is_read, const std::vector<const PyRegion*>& ours,
         const std::vector<Remote>& theirs, uint64_t page_bytes, const Ids& source_ids,
         const Ids& target_ids, uint64_t source_stride, uint64_t target_stride,
         const Ids& our_offsets, const Ids& their_offsets, std::optional<uint32_t> imm,
         const nb::bytes& notification, int64_t timeout_ns, const nb::object& callback) {
        auto options = options_of(imm, notification, timeout_ns, callback);
        const engine::PageList list =
            list_of(page_bytes, source_ids, target_ids, source_stride, target_stride);
        const std::vector<engine::PagePlane> planes =
            Planes{ours, theirs, our_offsets, their_offsets}.each();
        return begin(self, [&](engine::Engine& e) {
          return is_read ? e.read_pages(planes, list, std::move(options))
                         : e.write_pages(planes, list, std::move(options));
        });
      },
      nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
      nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg().none());
  type.def(
      "message",
      [](const PyEngine& self, const engine::Address& peer, const std::string& kind,
         const nb::bytes& bytes, std::optional<uint32_t> imm, int64_t timeout_ns,
         const nb::object& callback) {
        auto options = options_of(imm, nb::bytes("", 0), timeout_ns, callback);
        const std::string text = text_of(bytes);
        return begin(self, [&](engine::Engine& e) -> Result<TicketPtr> {
          if (kind == "send") return e.send(peer, text, std::move(options));
          if (kind == "notify") return e.notify(peer, text, std::move(options));
          return e.connect(peer, std::move(options));
        });
      },
      nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg().none());
}

/// Parts are (target, target_offset, source_offset, bytes).
using Parts = std::vector<std::tuple<Remote, uint64_t, uint64_t, uint64_t>>;

void register_fans(nb::class_<PyEngine>& type) {
  type.def(
      "scatter",
      [](const PyEngine& self, const PyRegion& source, const Parts& parts,
         std::optional<uint32_t> imm, const nb::bytes& notification, int64_t timeout_ns) {
        const TransferOptions options = options_of(imm, notification, timeout_ns, nb::none());
        std::vector<engine::ScatterPart> list;
        for (const auto& [target, target_offset, source_offset, bytes] : parts)
          list.push_back({bytes, source_offset, {target, target_offset}});
        return begin(self,
                     [&](engine::Engine& e) { return e.scatter(source.region, list, options); });
      },
      nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg());
  type.def(
      "signal", [](const PyEngine& self, const nb::list& peers, uint32_t imm, int64_t timeout_ns) {
        std::vector<engine::Address> addresses;
        for (const nb::handle peer : peers)
          addresses.push_back(nb::cast<const engine::Address&>(peer));
        TransferOptions options;
        options.timeout_ns = timeout_ns;
        return begin(self, [&](engine::Engine& e) { return e.signal(addresses, imm, options); });
      });
}

/// A word that an expectation sets: 8 bytes of the host or of the engine's GPU, which are kept until then.
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

template <typename Take>
std::optional<nb::tuple> take(const PyEngine& self, int64_t timeout_ns, Take&& take_one) {
  const PyEngine::Call call(self);
  return as_tuple(wait_in_slices(timeout_ns, &self, [&](Deadline deadline) {
    return take_one(*call.operator->(), deadline);
  }));
}

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

nb::list choose_nics(const std::vector<std::string>& hosts, bool uses_local) {
  std::vector<engine::NicRequest> found;
  run_unlocked([&] {
    auto nics = engine::find_nics(hosts, uses_local);
    if (nics.ok()) found = std::move(nics).value();
    return nics.status();
  });
  nb::list out;
  for (const engine::NicRequest& nic : found) out.append(nb::make_tuple(nic.provider, nic.address));
  return out;
}

nb::tuple parse_nic(const std::string& text) {
  const auto nic = value_or_raise(engine::parse_nic(text));
  return nb::make_tuple(nic.provider, nic.address);
}

}  // namespace

void register_engine(nb::module_& module) {
  nb::module_ inner = module.def_submodule("engine", "The transfer engine");
  register_parts(inner);
  inner.def("choose_hosts",
            [](bool has_token) { return value_or_raise(engine::find_hosts(has_token)); });
  inner.def("choose_nics", &choose_nics);
  inner.def("parse_nic", &parse_nic);
  nb::class_<PyEngine> type(inner, "Engine");
  type.def(nb::new_(&create));
  type.def("close", &PyEngine::close);
  type.def_prop_ro("is_closed", &PyEngine::is_closed);
  type.def_prop_ro("is_ended", &PyEngine::is_ended);
  type.def("leave_to_parent", &PyEngine::leave_to_parent);
  type.def("address", [](const PyEngine& self) {
    const PyEngine::Call call(self);
    return bytes_of(call->address());
  });
  type.def("register_buffer", &register_buffer, nb::arg().none());
  type.def("register_at", &register_at);
  type.def("unregister", &unregister);
  type.def("descriptor", [](const PyEngine& self, const PyRegion& region) {
    const PyEngine::Call call(self);
    return bytes_of(value_or_raise(call->descriptor(*region.region)));
  });
  type.def("import_region", [](const PyEngine& self, const nb::bytes& bytes) {
    const PyEngine::Call call(self);
    return std::const_pointer_cast<engine::RegionDescriptor>(
        value_or_raise(call->import(text_of(bytes))));
  });
  type.def("import_peer", [](const PyEngine& self, const nb::bytes& bytes) {
    const PyEngine::Call call(self);
    return value_or_raise(call->import_address(text_of(bytes)));
  });
  register_transfers(type);
  register_fans(type);
  register_arrivals(type);
  type.def("cancel", [](const PyEngine& self, const TicketPtr& ticket) {
    ask(self, [&](engine::Engine& e) { e.cancel(ticket); });
  });
  type.def("disconnect", [](const PyEngine& self, const engine::Address& peer) {
    ask(self, [&](engine::Engine& e) { e.disconnect(peer); });
  });
  type.def("health", [](const PyEngine& self) {
    return ask(self,
               [&](engine::Engine& e) { return e.health(Deadline::after_ns(1'000'000'000)); });
  });
  type.def("stats", [](const PyEngine& self) {
    const PyEngine::Call call(self);
    return stats_of(call->stats());
  });
}

}  // namespace braid::python
