// The transfer engine for python/braid/engine. It does what only C++ can do: waits without the GIL
// that Ctrl-C ends, callbacks that take the GIL, and page lists without a loop in Python.
#include "engine/engine.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "buffer.h"
#include "engine.h"
#include "engine/nics.h"
#include "engine_calls.h"

namespace nb = nanobind;

namespace braid::python {
namespace {

using engine::Callback;
using engine::Ticket;

bool wait_for(const Ticket& ticket, int64_t timeout_ns) {
  return wait_in_slices(timeout_ns, nullptr, [&](Deadline deadline) {
    (void)ticket.wait(deadline);
    return ticket.is_done();
  });
}

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
  register_arrivals(type);
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
