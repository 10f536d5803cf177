#include "comm/device/arena.h"

#include <algorithm>
#include <utility>

namespace braid::comm {

SymmetricArena::~SymmetricArena() {
  if (local_ != 0) (void)cuda_.free(local_);
  room_.reset();
  if (spare_ != 0) (void)cuda_.free(spare_);
}

Status SymmetricArena::allocate(const ArenaRequest& request, CallOrder& order) {
  order_ = &order;
  arena_.layout = MemoryLayout(kArenaScratchAt, request);
  if (arena_.layout.areas().size() > kMostAreas)
    return internal_error("gpu arena: {} areas, at most {}", arena_.layout.areas().size(),
                          kMostAreas);
  BRAID_RETURN_IF_ERROR(allocate(arena_));
  const sys::Stream stream = order_->side(CallOrder::kCopies);
  BRAID_RETURN_IF_ERROR(cuda_.fill(arena_.at, 0, kArenaScratchAt, stream));
  BRAID_ASSIGN_OR_RETURN(local_, cuda_.alloc(sizeof(LocalMemory)));
  BRAID_RETURN_IF_ERROR(cuda_.fill(local_, 0, sizeof(LocalMemory), stream));
  BRAID_ASSIGN_OR_RETURN(spare_, cuda_.alloc(request.spare_bytes));
  spare_bytes_ = request.spare_bytes;
  return cuda_.synchronize(stream);  // before any peer learns of it
}

// Not on the default stream, which would wait for other comms' calls on the caller's.
Status SymmetricArena::allocate(Memory& memory) {
  BRAID_ASSIGN_OR_RETURN(memory.at, cuda_.alloc(memory.layout.bytes()));
  memory.hold = nvlink::lend(cuda_, ordinal_, memory.at);
  for (const MemoryLayout::Placed& placed : memory.layout.areas())
    if (placed.area.zero_bytes > 0)
      BRAID_RETURN_IF_ERROR(cuda_.fill(memory.at + placed.begin, 0, placed.area.zero_bytes,
                                       order_->side(CallOrder::kCopies)));
  return {};
}

Result<nvlink::Window> SymmetricArena::share(const char* topic, const Memory& memory, Status own,
                                             Deadline deadline) {
  return nvlink::share_window(
      group_, cuda_, {topic, ordinal_, memory.at, memory.layout.bytes(), std::move(own)}, deadline);
}

Status SymmetricArena::share(Status own, Deadline deadline) {
  BRAID_ASSIGN_OR_RETURN(arena_.window, share("gpu arena", arena_, std::move(own), deadline));
  return {};
}

void SymmetricArena::close() {
  arena_.window = {};
  if (room_) room_->window = {};
}

std::string SymmetricArena::lacks_whole_stores() {
  has_whole_stores_ = false;
  std::string names;
  for (const auto& [area, begin] : arena_.layout.areas())
    if (area.needs_whole_stores && area.limit_bytes > 0)
      names += fmt::format("{}{}", names.empty() ? "" : " and ", area.name);
  return names;
}

std::string SymmetricArena::shape() const {
  std::string all = fmt::format("spare:{},", spare_bytes_);
  for (const auto& [area, begin] : arena_.layout.areas())
    all += fmt::format("{}:{},", area.name, area.limit_bytes);
  return all;
}

SymmetricAddress SymmetricArena::scratch() const {
  return {&newest().window, newest().layout.scratch_at()};
}

const MemoryLayout::Placed* SymmetricArena::find(const Memory& memory, std::string_view name) {
  const auto& areas = memory.layout.areas();
  const auto found = std::ranges::find(
      areas, name, [](const MemoryLayout::Placed& placed) { return placed.area.name; });
  return found == areas.end() ? nullptr : &*found;
}

// What its kernels count goes on in a room, so the counters are the arena's.
Area SymmetricArena::area(std::string_view name) const {
  const MemoryLayout::Placed* const first = find(arena_, name);
  if (first == nullptr) return {};
  const MemoryLayout::Placed* const larger = room_ ? find(*room_, name) : nullptr;
  const MemoryLayout::Placed& placed = larger != nullptr ? *larger : *first;
  const auto index = static_cast<uint64_t>(first - arena_.layout.areas().data());
  return {placed.area.bytes,
          placed.area.needs_whole_stores && !has_whole_stores_ ? 0 : placed.area.limit_bytes,
          local_at(offsetof(LocalMemory, counters) + index * sizeof(CallCounters)),
          {larger != nullptr ? &room_->window : &arena_.window, placed.begin}};
}

Status SymmetricArena::make_room(const ArenaRequest& request, Deadline deadline) {
  BRAID_RETURN_IF_ERROR(cuda_.use_device(ordinal_));
  Memory room;
  room.layout = MemoryLayout(0, {whole_pages(request.scratch_bytes), request.areas});
  Status own = allocate(room);
  if (own.ok())
    own = cuda_.synchronize(order_->side(CallOrder::kCopies));  // before peers know of it
  BRAID_ASSIGN_OR_RETURN(room.window, share("gpu room", room, std::move(own), deadline));
  room_ = std::move(room);
  return {};
}

Status SymmetricArena::give_back_room(Deadline deadline) {
  if (!room_) return {};
  BRAID_RETURN_IF_ERROR(cuda_.use_device(ordinal_));
  BRAID_RETURN_IF_ERROR(order_->finish_last_call());
  room_->window = {};
  BRAID_RETURN_IF_ERROR(group_.barrier("gpu room", deadline));  // no peer has it any longer
  room_.reset();
  return {};
}

nvlink::SignalPad SymmetricArena::signal_pad() const {
  nvlink::SignalPad pad{};
  for (int r = 0; r < group_.size(); ++r)
    pad.signals[r] = sys::pointer_to<nvlink::Signal>(arena_.window.at(r));
  pad.numbers = sys::pointer_to<uint64_t>(local_at(offsetof(LocalMemory, numbers)));
  pad.pair_numbers = sys::pointer_to<uint64_t>(local_at(offsetof(LocalMemory, pair_numbers)));
  return pad;
}

}  // namespace braid::comm
