// PyComm: a comm::Comm as Python holds it, and the registration functions of this module, one per
// concept.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "comm/comm.h"

namespace braid::python {

class PyComm {
 public:
  /// Joins the group that `identity` describes, or the environment where it is None. `identity` is
  /// a dict of rank, size, local_rank, store_address, store_port, job_id. `options` are BRAID_
  /// names and values that win over the environment's; `progress(done, what)` is called on rank 0
  /// while the links are measured, or is None.
  PyComm(const nanobind::dict& options, const nanobind::object& progress,
         const nanobind::object& identity);
  /// Closes it where nobody has; other threads of Python run meanwhile.
  ~PyComm();
  PyComm(const PyComm&) = delete;
  PyComm& operator=(const PyComm&) = delete;

  comm::Comm& get() { return *comm_; }
  void close(bool say_farewell = true);

 private:
  std::unique_ptr<comm::Comm> comm_;
};

void register_comm(nanobind::module_& module);         // comm.cc: the class, its life and its facts
void register_collectives(nanobind::module_& module);  // coll.cc: functions over a comm
void register_rooted(nanobind::module_& module);       // rooted.cc: with a root, or uneven
void register_messages(nanobind::module_& module);     // messages.cc: between two ranks
void register_stream_mark(nanobind::module_& module);  // stream_mark.cc: points in a CUDA stream
void register_on_stream(nanobind::module_& module);    // on_stream.cc: the same by addresses
void register_overlap(nanobind::module_& module);      // overlap.cc: GEMMs that communicate
void register_checksum(nanobind::module_& module);     // checksum.cc: of memory
void register_options(
    nanobind::module_& module);  // options.cc: the option registry and build facts

}  // namespace braid::python
