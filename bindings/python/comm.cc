#include "comm.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "coll/tune/tune.h"
#include "errors.h"
#include "fabric/hash.h"
#include "fabric/merge.h"
#include "group/group.h"
#include "plan/plan.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT(google-build-using-namespace): "_a" has no other way

namespace braid::python {

namespace {

Config config_of(const nb::dict& options) {
  std::vector<std::string> warnings;
  Config config = value_or_raise(Config::from_environment(&warnings));
  for (const std::string& warning : warnings) log::warn("base", "{}", warning);
  for (const auto& [name, value] : options)
    raise_if_failed(config.set(nb::cast<std::string>(name), nb::cast<std::string>(value)));
  return config;
}

/// Python's own check (braid.Identity) has seen the fields; Group::join checks what they say.
group::Identity identity_of(const nb::object& given, const Config& config) {
  if (given.is_none()) return value_or_raise(group::identity_from_environment(config));
  const auto field = [&](const char* name) { return given[nb::str(name)]; };
  group::Identity identity;
  identity.rank = nb::cast<int>(field("rank"));
  identity.size = nb::cast<int>(field("size"));
  identity.local_rank = nb::cast<int>(field("local_rank"));
  identity.store_address = nb::cast<std::string>(field("store_address"));
  identity.store_port = nb::cast<uint16_t>(field("store_port"));
  identity.job_id = nb::cast<std::string>(field("job_id"));
  identity.job_token = config.text("BRAID_JOB_TOKEN");
  return identity;
}

/// The callback runs inside ensure_tuned, without the GIL. An error of it is printed, not passed on:
/// half a tuning on one rank would leave the others waiting. What is to end the program (Ctrl-C,
/// sys.exit()) stays set in this thread, look_for_signals() sees it, and nothing is called any more.
coll::TuneProgress progress_of(const nb::object& callback) {
  if (callback.is_none()) return nullptr;
  return [callback](double done, const std::string& what) {
    const nb::gil_scoped_acquire gil;
    if (PyErr_Occurred() != nullptr) return;
    try {
      callback(done, what);
    } catch (nb::python_error& error) {
      if (error.matches(PyExc_Exception))
        error.discard_as_unraisable("braid.init(progress=...)");
      else
        error.restore();
    }
  };
}

/// Runs Python's signal handlers while a call waits. When one raises (Ctrl-C), the exception stays
/// set in this thread and the call ends; raise_if_failed() then passes that exception on. Costs two
/// clock reads between looks.
Status look_for_signals() {
  constexpr int64_t kEveryNs = 20'000'000;
  thread_local int64_t next_ns = 0;
  if (now_ns() < next_ns) return {};
  next_ns = now_ns() + kEveryNs;
  if (is_ending()) return unavailable("interrupted by the end of the program");
  const nb::gil_scoped_acquire gil;
  if (PyErr_Occurred() == nullptr && PyErr_CheckSignals() == 0) return {};
  return unavailable("interrupted by a signal");
}

plan::Request request_of(comm::Comm& comm, const std::string& op, uint64_t bytes) {
  return {.op = value_or_raise(plan::parse_op(op)), .bytes = bytes, .num_ranks = comm.size()};
}

// What may wait for a call that another thread is in, must not hold the GIL: that call asks for it
// to look for signals.
template <typename Answer>
auto unlocked(Answer answer) {
  const Unlocked released;
  return answer();
}

nb::dict use_dict(const std::string& link, uint32_t share, const comm::LinkUse& use) {
  nb::dict d;
  d["name"] = link;
  d["share"] = static_cast<double>(share) / plan::kWhole;
  d["sent_bytes"] = use.sent_bytes;
  d["received_bytes"] = use.received_bytes;
  d["finish_ns"] = use.finish_ns;
  d["resent_pieces"] = use.resent_pieces;
  return d;
}

nb::dict last_call_of(PyComm& self) {
  const comm::CallReport report = unlocked([&] { return self.get().last_call(); });
  nb::dict d;
  d["op"] = plan::op_name(report.plan.request.op);
  d["bytes"] = report.plan.request.bytes;
  d["epoch"] = report.epoch;
  d["duration_ns"] = report.duration_ns;
  nb::list links;
  for (size_t i = 0; i < report.links.size(); ++i)
    links.append(use_dict(self.get().link_name(i),
                          i < report.plan.shares.size() ? report.plan.shares[i] : 0,
                          report.links[i]));
  d["links"] = links;
  return d;
}

void force_shares(PyComm& self, const std::vector<uint32_t>& shares) {
  raise_if_failed(unlocked([&] { return self.get().force_shares(shares); }));
}

}  // namespace

PyComm::PyComm(const nb::dict& options, const nb::object& progress,
               const nb::object& identity_given) {
  const Config config = config_of(options);
  const group::Identity identity = identity_of(identity_given, config);
  const coll::TuneProgress callback = progress_of(progress);
  Status status;
  {
    const Unlocked released;
    Result<std::unique_ptr<comm::Comm>> made =
        comm::Comm::create(identity, config, &look_for_signals);
    status = made.status();
    if (status.ok()) {
      comm_ = std::move(made).value();
      status = coll::ensure_tuned(*comm_, callback);
    }
  }
  // The last callback may have left what ends the program, and no look at signals came after it.
  if (PyErr_Occurred() != nullptr) status = unavailable("interrupted by a signal");
  if (!status.ok() && comm_ != nullptr) {
    const Unlocked released;
    (void)comm_->close(/*say_farewell=*/false);  // a farewell would wait for ranks that go on
    comm_.reset();
  }
  raise_if_failed(status);
}

// A farewell may wait for others, which may be threads of this process.
PyComm::~PyComm() {
  if (comm_ == nullptr) return;
  const Unlocked released;
  comm_.reset();
}

void PyComm::close(bool say_farewell) {
  Status status;
  {
    const Unlocked released;
    status = comm_->close(say_farewell);
  }
  raise_if_failed(status);
}

void register_comm(nb::module_& module) {
  nb::class_<PyComm>(module, "Comm")
      .def(nb::init<const nb::dict&, const nb::object&, const nb::object&>(), "options"_a,
           "progress"_a.none(), "identity"_a.none() = nb::none())
      .def_prop_ro("rank", [](PyComm& self) { return self.get().rank(); })
      .def_prop_ro("size", [](PyComm& self) { return self.get().size(); })
      .def_prop_ro("local_rank", [](PyComm& self) { return self.get().local_rank(); })
      .def_prop_ro("store_address", [](PyComm& self) { return self.get().store_address(); })
      .def_prop_ro("closed", [](PyComm& self) { return self.get().is_closed(); })
      .def_prop_ro("has_ended_in_peace",
                   [](PyComm& self) { return self.get().has_ended_in_peace(); })
      .def_prop_ro("is_one_host",
                   [](PyComm& self) { return fabric::is_one_host(self.get().fabric()); })
      .def("close", &PyComm::close, "say_farewell"_a = true)
      .def(
          "abort", [](PyComm& self, const std::string& why) { self.get().abort(why); }, "why"_a)
      .def(
          "links_json",
          [](PyComm& self, bool on_gpu) {
            return unlocked([&] { return self.get().links_json(on_gpu); });
          },
          "on_gpu"_a)
      .def("fabric_hash", [](PyComm& self) { return fabric::fabric_hash(self.get().fabric()); })
      .def("health_json",
           [](PyComm& self) { return unlocked([&] { return self.get().health_json(); }); })
      .def("balance_log",
           [](PyComm& self) { return unlocked([&] { return self.get().balance_log(); }); })
      .def("explain_words",
           [](PyComm& self, const std::string& op, uint64_t bytes) {
             const plan::Request request = request_of(self.get(), op, bytes);
             return value_or_raise(unlocked([&] { return self.get().explain_words(request); }));
           })
      .def("explain_json",
           [](PyComm& self, const std::string& op, uint64_t bytes) {
             const plan::Request request = request_of(self.get(), op, bytes);
             return value_or_raise(unlocked([&] { return self.get().explain_json(request); }));
           })
      .def("trace_json",
           [](PyComm& self) {
             return value_or_raise(unlocked([&] { return self.get().trace_json(); }));
           })
      .def("flight_json",
           [](PyComm& self) {
             return value_or_raise(unlocked([&] { return self.get().flight_json(); }));
           })
      .def(
          "call_it", [](PyComm& self, const std::string& name) { self.get().call_it(name); },
          "name"_a)
      .def("last_call", &last_call_of)
      .def("force_shares", &force_shares, "shares"_a);
}

}  // namespace braid::python
