// GEMMs that communicate, by addresses: what braid.overlap calls with tensors' own. OverlapKernels
// launches single kernels and knows no comm, for measurements; overlap_enqueue() is a comm's call.
#include "overlap/calls.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>

#include <string>

#include "coll/device/entry.h"
#include "comm.h"
#include "errors.h"
#include "unlocked.h"

namespace nb = nanobind;

namespace braid::python {
namespace {

using overlap::Choice;
using overlap::Gathered;
using overlap::Gemm;
using overlap::Parted;
using overlap::Sums;

sys::Stream stream_at(uint64_t handle) {
  return {reinterpret_cast<void*>(handle)};  // NOLINT(performance-no-int-to-ptr)
}

/// What bounds a kernel's waits where no comm does: `page` is pinned host memory of 128 bytes, zero
/// before, a Fault at its begin and the word that ends waits at 124; `failed` device memory.
struct Bounds {
  int64_t timeout_ns = 0;
  uint64_t page = 0, failed = 0;
  int32_t rank = 0;
};

device::Watch watch_of(const Bounds& bounds) {
  constexpr uint64_t kMustAbortAt = 124;
  return {bounds.rank, bounds.timeout_ns, sys::pointer_to<device::Fault>(bounds.page),
          sys::pointer_to<const uint32_t>(bounds.page + kMustAbortAt),
          sys::pointer_to<uint32_t>(bounds.failed)};
}

class Kernels {
 public:
  explicit Kernels(int gpu) : launcher_(made(gpu)) {
    run_unlocked([&] { return launcher_.preload(); });
  }
  overlap::Launcher& launcher() { return launcher_; }
  void gather(const Gemm& gemm, const Choice& choice, const Gathered& places, uint64_t epoch,
              const Bounds& bounds, uint64_t stream) {
    raise_if_failed(
        launcher_.gather(gemm, choice, places, epoch, watch_of(bounds), stream_at(stream)));
  }
  void scatter(const Gemm& gemm, const Choice& choice, const Parted& places, uint64_t epoch,
               const Bounds& bounds, uint64_t stream) {
    raise_if_failed(
        launcher_.scatter(gemm, choice, places, epoch, watch_of(bounds), stream_at(stream)));
  }
  void exchange(const Gemm& gemm, const Choice& choice, const Parted& places, uint64_t epoch,
                const Bounds& bounds, uint64_t stream) {
    raise_if_failed(
        launcher_.exchange(gemm, choice, places, epoch, watch_of(bounds), stream_at(stream)));
  }

 private:
  static overlap::Launcher made(int gpu) {
    raise_if_failed(sys::real_cuda().use_device(gpu));
    Result<overlap::Launcher> launcher = overlap::Launcher::create(sys::real_cuda(), gpu);
    raise_if_failed(launcher.status());
    return *launcher;
  }
  overlap::Launcher launcher_;
};

/// `shape` is a gemm without addresses, made once for many calls.
void enqueue(PyComm& self, int gpu, Kernels& kernels, int call, uint64_t workspace,
             uint64_t workspace_bytes, const Gemm& shape, const Choice& choice, uint64_t a,
             uint64_t w, uint64_t bias, uint64_t c, uint64_t stream) {
  Gemm gemm = shape;
  gemm.a = a;
  gemm.w = w;
  gemm.bias = bias;
  run_unlocked([&] {
    return coll::device::on_device(self.get(), gpu,
                                   [&](comm::Device& device) {
                                     return overlap::enqueue(static_cast<overlap::Call>(call),
                                                             device, kernels.launcher(),
                                                             {workspace, workspace_bytes}, gemm,
                                                             choice, c, stream_at(stream));
                                   })
        .with_context("overlap");
  });
}

int num_blocks(PyComm& self, int gpu, Kernels& kernels) {
  int found = 0;
  run_unlocked([&] {
    return coll::device::on_device(self.get(), gpu, [&](comm::Device& device) {
      found = overlap::num_blocks(device, kernels.launcher());
      return Status();
    });
  });
  return found;
}

void register_values(nb::module_& module) {
  nb::class_<Gemm>(module, "OverlapGemm")
      .def(nb::init<>())
      .def_prop_rw(
          "dtype", [](const Gemm& gemm) { return static_cast<int>(gemm.dtype); },
          [](Gemm& gemm, int code) { gemm.dtype = static_cast<Dtype>(code); })
      .def_rw("is_kn", &Gemm::is_kn)
      .def_rw("ranks", &Gemm::ranks)
      .def_rw("rank", &Gemm::rank)
      .def_rw("shard_rows", &Gemm::shard_rows)
      .def_rw("columns", &Gemm::columns)
      .def_rw("depth", &Gemm::depth)
      .def_rw("a", &Gemm::a)
      .def_rw("w", &Gemm::w)
      .def_rw("bias", &Gemm::bias);
  nb::class_<Choice>(module, "OverlapChoice")
      .def(nb::init<>())
      .def_prop_rw(
          "form", [](const Choice& choice) { return static_cast<int>(choice.form); },
          [](Choice& choice, int form) { choice.form = static_cast<overlap::Form>(form); })
      .def_rw("band", &Choice::band)
      .def_rw("head", &Choice::head)
      .def_rw("num_blocks", &Choice::num_blocks)
      .def_rw("piece_rows", &Choice::piece_rows)
      .def_rw("by_engines", &Choice::by_engines)
      .def_rw("batches", &Choice::batches)
      .def_rw("batch_tiles", &Choice::batch_tiles)
      .def_rw("splits", &Choice::splits);
  nb::class_<Sums>(module, "OverlapSums")
      .def(nb::init<>())
      .def_rw("at", &Sums::at)
      .def_rw("told", &Sums::told);
  nb::class_<Gathered>(module, "OverlapGathered")
      .def(nb::init<>())
      .def_rw("c", &Gathered::c)
      .def_rw("arrived", &Gathered::arrived)
      .def_rw("piece_rows", &Gathered::piece_rows)
      .def_rw("sums", &Gathered::sums);
  nb::class_<Parted>(module, "OverlapParted")
      .def(nb::init<>())
      .def_rw("parts", &Parted::parts)
      .def_rw("told", &Parted::told)
      .def_rw("c", &Parted::c)
      .def_rw("num_c", &Parted::num_c)
      .def_rw("is_whole", &Parted::is_whole)
      .def_rw("num_slots", &Parted::num_slots)
      .def_rw("outbox", &Parted::outbox)
      .def_rw("finished", &Parted::finished)
      .def_rw("sums", &Parted::sums);
  nb::class_<Bounds>(module, "OverlapBounds")
      .def(nb::init<>())
      .def_rw("timeout_ns", &Bounds::timeout_ns)
      .def_rw("page", &Bounds::page)
      .def_rw("failed", &Bounds::failed)
      .def_rw("rank", &Bounds::rank);
}

}  // namespace

void register_overlap(nb::module_& module) {
  register_values(module);
  nb::class_<Kernels>(module, "OverlapKernels")
      .def(nb::init<int>())
      .def("gather", &Kernels::gather)
      .def("scatter", &Kernels::scatter)
      .def("exchange", &Kernels::exchange);
  module.def("overlap_enqueue", &enqueue);
  module.def("overlap_num_blocks", &num_blocks);
  module.def("overlap_workspace_bytes", [](int call, const Gemm& gemm, const Choice& choice) {
    return overlap::workspace_bytes(static_cast<overlap::Call>(call), gemm, choice);
  });
  module.def("overlap_part_bytes", [](const Gemm& gemm, const Choice& choice) {
    return overlap::room_bytes(overlap::Op::kScatter, gemm, choice, 1) /
           static_cast<uint64_t>(gemm.ranks);
  });
  module.def("overlap_flags_of_one", [](const Gemm& gemm, const Choice& choice) {
    return overlap::flag_bytes(overlap::Op::kScatter, gemm, choice) / 8 /
           static_cast<uint64_t>(gemm.ranks);
  });
  module.def("overlap_pushes", [](const Gemm& gemm, const Choice& choice) {
    nb::list found;  // (shard, counter, first half, halves)
    for (const overlap::Push& push : overlap::pushes_of(gemm, choice))
      found.append(nb::make_tuple(push.shard, push.counter, push.first, push.halves));
    return found;
  });
  module.def("overlap_num_counters", &overlap::num_counters);
  module.def("overlap_sums_bytes", [](const Choice& choice) {
    return overlap::sums_bytes(overlap::shape_of(choice.form));
  });
  module.attr("OVERLAP_SUM_FLAGS_BYTES") = overlap::kSumFlagsBytes;
  module.def("wait_value", [](int gpu, uint64_t stream, uint64_t at, uint32_t value) {
    raise_if_failed(sys::real_cuda().use_device(gpu));
    raise_if_failed(sys::real_cuda().wait_value(stream_at(stream), at, value));
  });
}

}  // namespace braid::python
