// StreamMark: a point in a CUDA stream, for the handle of an asynchronous call on a GPU.
#include <cstdint>

#include "call.h"
#include "comm.h"
#include "comm/device/device.h"
#include "errors.h"
#include "sys/cuda/api.h"
#include "sys/cuda/owned.h"
#include "unlocked.h"

namespace nb = nanobind;

namespace braid::python {

namespace {

class StreamMark {
 public:
  /// Where the stream is now.
  StreamMark(int gpu, uint64_t stream) : gpu_(gpu) {
    sys::Cuda& cuda = sys::real_cuda();
    run_unlocked([&]() -> Status {
      BRAID_ASSIGN_OR_RETURN(const auto scope, sys::CurrentDevice::use(cuda, gpu));
      BRAID_ASSIGN_OR_RETURN(
          event_, sys::own<sys::OwnedEvent>(cuda, cuda.create_event(sys::EventTiming::kOff)));
      return cuda.record(event_.get(), stream_of(stream));
    });
  }
  ~StreamMark() {
    const auto scope = sys::CurrentDevice::use(sys::real_cuda(), gpu_);
    event_.reset();
  }
  StreamMark(const StreamMark&) = delete;
  StreamMark& operator=(const StreamMark&) = delete;

  bool is_done() const {
    bool is_done = false;
    run_unlocked([&]() -> Status {
      BRAID_ASSIGN_OR_RETURN(const auto scope, sys::CurrentDevice::use(sys::real_cuda(), gpu_));
      BRAID_ASSIGN_OR_RETURN(is_done, sys::real_cuda().is_done(event_.get()));
      return {};
    });
    return is_done;
  }

 private:
  const int gpu_;
  sys::OwnedEvent event_;
};

/// Raises what the comm's work on the GPU has met by now.
void check_gpu(PyComm& self, int gpu) {
  run_unlocked([&] {
    return coll::device::on_device(self.get(), gpu,
                                   [](comm::Device& device) { return device.faults().status(); });
  });
}

}  // namespace

void register_stream_mark(nb::module_& module) {
  nb::class_<StreamMark>(module, "StreamMark")
      .def(nb::init<int, uint64_t>(), nb::arg("gpu"), nb::arg("stream"))
      .def("is_done", &StreamMark::is_done);
  module.def("check_gpu", &check_gpu, nb::arg("comm"), nb::arg("gpu"));
}

}  // namespace braid::python
