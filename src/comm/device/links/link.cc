#include "comm/device/links/link.h"

namespace braid::comm {

Status DeviceLink::make_stream(sys::StreamPriority priority) {
  BRAID_ASSIGN_OR_RETURN(
      stream_, sys::own<sys::OwnedStream>(ground_.cuda, ground_.cuda.create_stream(priority)));
  return {};
}

// On our stream: the default one would wait for other comms' calls on the caller's.
Result<sys::DeviceMemory> DeviceLink::zeros(uint64_t bytes) {
  BRAID_ASSIGN_OR_RETURN(sys::DeviceMemory memory,
                         sys::own<sys::DeviceMemory>(ground_.cuda, ground_.cuda.alloc(bytes)));
  BRAID_RETURN_IF_ERROR(ground_.cuda.fill(memory.get(), 0, bytes, stream()));
  BRAID_RETURN_IF_ERROR(ground_.cuda.synchronize(stream()));
  return memory;
}

void DeviceLink::note_sent(const LinkPart& part) {
  for (const Flow& flow : part.all())
    if (flow.source != nullptr && flow.source != flow.destination)
      ground_.call_watch.sends(index_, flow.bytes);
}

Status DeviceLink::copy_beside(sys::Stream stream, sys::DevicePtr to, sys::DevicePtr from,
                               uint64_t bytes) {
  return bytes == 0 || to == from ? Status() : ground_.cuda.copy_on_device(to, from, bytes, stream);
}

}  // namespace braid::comm
