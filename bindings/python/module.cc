// The module braid._braid: what python/braid wraps. Users import braid, never this.
#include <nanobind/nanobind.h>

#include "comm.h"
#include "engine.h"
#include "moe.h"

NB_MODULE(_braid, module) {
#ifdef NDEBUG
  // Threads of an engine that nobody closed hold it while the interpreter ends, and the process takes it all back.
  nanobind::set_leak_warnings(false);
#endif
  module.doc() = "braid's C++ core; use the package braid, which wraps it";
  braid::python::register_options(module);
  braid::python::register_comm(module);
  braid::python::register_collectives(module);
  braid::python::register_rooted(module);
  braid::python::register_messages(module);
  braid::python::register_stream_mark(module);
  braid::python::register_on_stream(module);
  braid::python::register_engine(module);
  braid::python::register_moe(module);
  braid::python::register_overlap(module);
  braid::python::register_checksum(module);
}
