#include "coll/device/dropped_sums.h"

#include <algorithm>

#include "coll/device/collectives.h"

namespace braid::coll::device {

namespace {

/// A call of its own, so that the comm's next one, on whatever stream, comes after it.
Status keep(comm::Device& device, sys::Stream stream, const sys::DeviceCopy& copy) {
  BRAID_RETURN_IF_ERROR(device.begin(stream));
  const Status copied = device.copy(stream, copy.to, copy.from, copy.bytes);
  const Status ended = device.end(stream);
  return copied.ok() ? ended : copied;
}

}  // namespace

Status run_dropped_sum(comm::Device& device, const DroppedSum& sum, sys::Stream stream) {
  const sys::DevicePtr spare = device.arena().spare();
  const uint64_t element = dtype_bytes(sum.dtype);
  const uint64_t most = device.arena().spare_bytes() / element;
  uint64_t begin = 0;
  do {  // once for no elements, too: it is a call that all ranks make
    const uint64_t end = std::min(sum.count, begin + most);
    BRAID_RETURN_IF_ERROR(all_reduce(device, sum.send + begin * element, spare, end - begin,
                                     sum.dtype, sum.op, stream));
    const uint64_t from = std::max(begin, sum.keep_begin), to = std::min(end, sum.keep_end);
    if (from < to)
      BRAID_RETURN_IF_ERROR(keep(device, stream,
                                 {sum.recv + (from - sum.keep_begin) * element,
                                  spare + (from - begin) * element, (to - from) * element}));
    begin = end;
  } while (begin < sum.count);
  return {};
}

}  // namespace braid::coll::device
