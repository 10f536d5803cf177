#include "bindings/nccl/core/join.h"

#include <map>
#include <vector>

#include "bindings/nccl/core/capture.h"
#include "sys/cuda/owned.h"

namespace braid::nccl {

namespace {

// All wait for the first one, which has waited for all.
Status join_alike(sys::Cuda& cuda, std::span<const sys::Stream> streams) {
  if (streams.size() < 2) return {};
  BRAID_ASSIGN_OR_RETURN(
      const auto point, sys::own<sys::OwnedEvent>(cuda, cuda.create_event(sys::EventTiming::kOff)));
  const sys::Stream first = streams[0];
  for (const sys::Stream stream : streams.subspan(1)) {
    BRAID_RETURN_IF_ERROR(cuda.record(point.get(), stream));
    BRAID_RETURN_IF_ERROR(cuda.wait_event(first, point.get()));
  }
  BRAID_RETURN_IF_ERROR(cuda.record(point.get(), first));
  for (const sys::Stream stream : streams.subspan(1))
    BRAID_RETURN_IF_ERROR(cuda.wait_event(stream, point.get()));
  return {};
}

}  // namespace

Status join_streams(sys::Cuda& cuda, std::span<const sys::Stream> streams) {
  std::map<uint64_t, std::vector<sys::Stream>> by_capture;
  for (const sys::Stream stream : streams) {
    uint64_t capture = 0;
    if (!is_default_by_name(stream)) {
      BRAID_ASSIGN_OR_RETURN(capture, cuda.capture_id(stream));
    }
    by_capture[capture].push_back(stream);
  }
  for (const auto& [capture, alike] : by_capture) BRAID_RETURN_IF_ERROR(join_alike(cuda, alike));
  return {};
}

}  // namespace braid::nccl
