#include "moe/gpu/memory.h"

#include <utility>

namespace braid::moe::gpu {

Result<std::unique_ptr<Memory>> Memory::create(comm::Device& device, uint64_t half_bytes) {
  std::unique_ptr<Memory> memory(new Memory(device.cuda(), device.ordinal()));
  memory->team_.layout = WindowLayout::with_halves(device.size(), half_bytes);
  memory->team_.region_bytes = memory->team_.layout.region_bytes();
  memory->team_.rank = device.rank();
  const Status own = memory->allocate(device);
  BRAID_RETURN_IF_ERROR(memory->reach(device, own));
  return memory;
}

// Zeros before any peer learns of it.
Status Memory::allocate(comm::Device& device) {
  BRAID_ASSIGN_OR_RETURN(const sys::DeviceFacts facts, cuda_.device(ordinal_));
  num_sms_ = facts.num_sms;
  BRAID_ASSIGN_OR_RETURN(own_, sys::own<sys::DeviceMemory>(cuda_, cuda_.alloc(sizeof(State))));
  BRAID_ASSIGN_OR_RETURN(page_, sys::Pages::map("moe buffer", kPageBytes));
  BRAID_ASSIGN_OR_RETURN(page_on_device_, cuda_.register_host(page_.data(), kPageBytes));
  pinned_ = sys::RegisteredHost(cuda_, page_.data());
  const uint64_t bytes = comm::whole_pages(window_bytes(team_.layout));
  BRAID_ASSIGN_OR_RETURN(window_, cuda_.alloc(bytes));
  window_hold_ = nvlink::lend(cuda_, ordinal_, window_);
  const sys::Stream stream = device.order().side(comm::CallOrder::kCopies);
  BRAID_RETURN_IF_ERROR(cuda_.fill(window_, 0, bytes, stream));
  BRAID_RETURN_IF_ERROR(cuda_.fill(own_.get(), 0, sizeof(State), stream));
  return cuda_.synchronize(stream);
}

Status Memory::reach(comm::Device& device, const Status& own) {
  // A rank without memory tells the others, who wait for it, by an address that is none.
  const sys::DevicePtr offered = own.ok() ? window_ : 0;
  const Status shared = device.registrations().add(offered, window_bytes(team_.layout));
  BRAID_RETURN_IF_ERROR(own);
  BRAID_RETURN_IF_ERROR(shared);
  BRAID_ASSIGN_OR_RETURN(const comm::SymmetricAddress landing,
                         device.registrations().find(window_, window_bytes(team_.layout)));
  for (int r = 0; r < device.size(); ++r)
    team_.windows[r] = sys::pointer_to<std::byte>(landing.at(r));
  team_.state = sys::pointer_to<State>(own_.get());
  const nvlink::Team& found = device.team();
  team_.watch = {found.rank, found.timeout_ns, found.fault, found.must_abort, found.has_failed};
  return {};
}

void Memory::forget(comm::Device& device) { (void)device.registrations().forget(window_); }

Memory::~Memory() {
  const auto scope = sys::CurrentDevice::use(cuda_, ordinal_);
  pinned_.reset();
  own_.reset();
  window_hold_.reset();
}

}  // namespace braid::moe::gpu
