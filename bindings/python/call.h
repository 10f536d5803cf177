// What the functions over Python buffers have in common: checks of buffers against each other, and
// the way to the GPU or the host that the buffers are on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "buffer.h"
#include "coll/device/entry.h"
#include "comm.h"
#include "errors.h"
#include "sys/cuda/types.h"
#include "unlocked.h"

namespace braid::python {

/// Runs the collective on the GPU that the buffers are on, or on the host when they are there.
/// `stream` is a CUDA stream's handle; the GPU's work is enqueued on it and not waited for.
template <typename OnGpu, typename OnHost>
void run(PyComm& self, const char* function, const Buffer& send, const Buffer& out, OnGpu&& on_gpu,
         OnHost&& on_host) {
  if (send.gpu() != out.gpu())
    raise_if_failed(invalid_argument(
        "{}: asked for both buffers in one memory, found GPU {} and GPU {} (-1 is the host)",
        function, send.gpu(), out.gpu()));
  if (!send.on_gpu()) return run_unlocked(on_host);
  run_unlocked([&] {
    return coll::device::on_device(self.get(), send.gpu(), on_gpu).with_context(function);
  });
}

sys::Stream stream_of(uint64_t handle);
sys::DevicePtr address_of(const Buffer& buffer);

/// `out` must have the type of `send` and `count` elements.
void check_out(const char* function, const Buffer& out, const Buffer& send, uint64_t count);
/// A send buffer that is cut into one block per rank must divide.
void check_blocks(const char* function, const Buffer& send, int size);
/// `part` may be at its own place in `whole`, so many bytes into it.
void check_overlap(const char* function, const Buffer& part, const char* part_name,
                   const Buffer& whole, const char* whole_name, uint64_t offset_bytes = 0);
/// The type that is reduced; throws for one that cannot be.
Dtype reducible(const char* function, const Buffer& buffer);
RedOp op_of(const char* function, const std::string& op);
/// Checks one list of counts against its buffer and turns elements of the object into elements of
/// the wire.
std::vector<uint64_t> wire_counts(const Argument& argument, const std::vector<uint64_t>& counts,
                                  const Buffer& buffer, int size);

}  // namespace braid::python
