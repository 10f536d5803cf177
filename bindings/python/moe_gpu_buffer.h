// Of braid._braid.moe.GpuBuffer: a buffer, and addresses as pointers.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>

#include "coll/device/entry.h"
#include "comm.h"
#include "errors.h"
#include "moe/gpu/buffer.h"
#include "unlocked.h"

namespace braid::python {

template <typename T>
T* at(uint64_t address) {
  return sys::pointer_to<T>(address);
}

/// Of one launch: the caller's stream and how many multiprocessors it may have at most, 0: all.
inline moe::gpu::Launch launch_on(uint64_t stream, int num_sms) {
  return {{at<void>(stream)}, num_sms};
}

class PyGpuMoe {
 public:
  PyGpuMoe(PyComm& comm, int gpu, uint64_t half_bytes, bool is_small) : comm_(comm), gpu_(gpu) {
    namespace entry = coll::device;
    const auto memory = is_small ? entry::Memory::kSmall : entry::Memory::kAll;
    run_unlocked([&] {
      return entry::on_device(
          comm.get(), gpu,
          [&](comm::Device& device) -> Status {
            BRAID_ASSIGN_OR_RETURN(buffer_, moe::gpu::Buffer::create(device, half_bytes));
            return {};
          },
          memory);
    });
  }
  ~PyGpuMoe() { end(); }
  void close() {
    const Unlocked released;
    end();
  }
  PyGpuMoe(const PyGpuMoe&) = delete;
  PyGpuMoe& operator=(const PyGpuMoe&) = delete;

  moe::gpu::Buffer& get() {
    if (!buffer_) raise_if_failed(invalid_argument("moe buffer: it was destroyed"));
    return *buffer_;
  }
  comm::Comm& comm() { return comm_.get(); }
  template <typename Call>
  void enqueue(Call&& call) {
    moe::gpu::Buffer& buffer = get();
    run_unlocked([&] {
      return coll::device::on_device(
          comm_.get(), gpu_, [&](comm::Device& device) -> Status { return call(buffer, device); });
    });
  }

 private:
  // A comm that is closed or broken has given everything back, or does so at its end.
  void end() {
    if (buffer_ && !comm_.get().is_closed())
      (void)coll::device::on_device(comm_.get(), gpu_, [this](comm::Device& device) {
        buffer_->close(device);
        return Status();
      });
    buffer_.reset();
  }

  PyComm& comm_;
  const int gpu_;
  std::unique_ptr<moe::gpu::Buffer> buffer_;
};

void register_low_latency(nanobind::module_& inner, nanobind::class_<PyGpuMoe>& type);
void register_normal(nanobind::module_& inner, nanobind::class_<PyGpuMoe>& type);

}  // namespace braid::python
