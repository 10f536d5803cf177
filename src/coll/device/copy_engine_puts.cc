#include "coll/device/copy_engine_puts.h"

namespace braid::coll::device {

Status CopyEnginePuts::begin() {
  return device_.size() == 2 ? Status() : device_.order().after(ours(), stream_);
}

Status CopyEnginePuts::send() {
  const Status sent = device_.links().base().enqueue(batch_, ours());
  batch_.num_flows = 0;
  return sent;
}

Status CopyEnginePuts::join(sys::Stream stream) {
  return stream.handle == ours().handle ? Status() : device_.order().after(stream, ours());
}

}  // namespace braid::coll::device
