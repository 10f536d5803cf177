#include "comm/device/links/link.h"

namespace braid::comm {

Status DeviceLink::make_stream() {
  BRAID_ASSIGN_OR_RETURN(
      stream_, sys::own<sys::OwnedStream>(ground_.cuda,
                                          ground_.cuda.create_stream(sys::StreamPriority::kHigh)));
  return {};
}

void DeviceLink::note_sent(const LinkPart& part) {
  for (size_t i = 0; i < static_cast<size_t>(part.num_flows); ++i)
    if (part.flows[i].source != nullptr)
      ground_.call_watch.sends(CallWatch::beside(index_), part.flows[i].bytes);
}

Status DeviceLink::copy_beside(sys::Stream stream, sys::DevicePtr to, sys::DevicePtr from,
                               uint64_t bytes) {
  return bytes == 0 || to == from ? Status() : ground_.cuda.copy_on_device(to, from, bytes, stream);
}

}  // namespace braid::comm
