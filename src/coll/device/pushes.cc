#include "coll/device/pushes.h"

#include <utility>

namespace braid::coll::device {

Status Pushes::begin() {
  return device_.size() == 2 ? Status() : device_.order().after(ours(), stream_);
}

Status Pushes::send() {
  return device_.nvlink().push(ours(), {batch_.data(), std::exchange(num_copies_, 0)});
}

Status Pushes::join(sys::Stream stream) {
  return stream.handle == ours().handle ? Status() : device_.order().after(stream, ours());
}

}  // namespace braid::coll::device
