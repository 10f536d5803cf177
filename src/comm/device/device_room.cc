// Room for large messages, where a comm began with little memory: made when the first of them comes,
// and given back when it is of no use.
//
// Nothing that is under way is moved. Calls know the scratch and the area of direct kernels by their
// addresses, which they are launched with: those before go on where they were, and those behind use
// the new ones. What direct kernels count goes on, too: an area that begins as zeros is one in which
// all calls before have been heard of.
#include <utility>

#include "comm/device/device.h"
#include "group/agree.h"

namespace braid::comm {

Status Device::make_room(const RoomSizes& sizes, Deadline deadline) {
  BRAID_RETURN_IF_ERROR(cuda_.use_device(ordinal_));
  Room room;
  room.sizes = sizes;
  room.sizes.scratch_bytes = whole_pages(sizes.scratch_bytes);
  const uint64_t bytes = whole_pages(room.sizes.scratch_bytes + sizes.direct_bytes);
  const Result<sys::DevicePtr> memory = cuda_.alloc(bytes);
  Status own = memory.status();
  if (own.ok()) {
    room.hold = nvlink::lend(cuda_, ordinal_, memory.value());
    own = cuda_.fill(memory.value() + room.sizes.scratch_bytes, 0, sizes.direct_flag_bytes,
                     sides_[kCopies]);
  }
  if (own.ok()) own = cuda_.synchronize(sides_[kCopies]);  // before any peer learns of it
  BRAID_ASSIGN_OR_RETURN(
      room.window,
      nvlink::share_window(*state_.group, cuda_,
                           {"gpu room", ordinal_, memory.ok() ? memory.value() : 0, bytes, own},
                           deadline));
  room_ = std::move(room);
  return {};
}

Status Device::give_back_room(Deadline deadline) {
  if (!room_) return {};
  BRAID_RETURN_IF_ERROR(cuda_.use_device(ordinal_));
  BRAID_RETURN_IF_ERROR(finish_last_call());
  room_->window = {};
  BRAID_RETURN_IF_ERROR(state_.group->barrier("gpu room", deadline));  // no peer has it any longer
  room_.reset();
  return {};
}

}  // namespace braid::comm
