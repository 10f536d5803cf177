#include "engine/stage.h"

namespace braid::engine {

Result<std::unique_ptr<Stage>> Stage::create(Gpu& gpu, Regions& regions) {
  constexpr uint64_t kBytes = kSlots * kSlotBytes;
  BRAID_ASSIGN_OR_RETURN(const size_t queue, gpu.next_queue());
  BRAID_ASSIGN_OR_RETURN(const sys::DevicePtr memory, gpu.cuda().alloc(kBytes));
  std::unique_ptr<Stage> stage(new Stage(gpu, queue, memory));
  for (size_t i = 0; i < kSlots; ++i) stage->slots_[i].address = memory + i * kSlotBytes;
  BRAID_ASSIGN_OR_RETURN(stage->region_, regions.add_own(memory, kBytes));
  return stage;
}

Stage::~Stage() {
  const Result<sys::CurrentDevice> current = sys::CurrentDevice::use(gpu_.cuda(), gpu_.device());
  (void)current;
  gpu_.settle();  // a kernel of ours may still write into it
  (void)gpu_.cuda().free(memory_);
}

uint32_t Stage::take(uint64_t transfer) {
  for (uint32_t i = 0; i < kSlots; ++i) {
    if (slots_[i].transfer != 0) continue;
    slots_[i].transfer = transfer;
    return i + 1;
  }
  return 0;
}

void Stage::give_back(uint64_t transfer, uint32_t number) {
  if (number == 0 || number > kSlots) return;
  Slot& slot = slots_[number - 1];
  if (slot.transfer == transfer) slot.transfer = 0;
}

void Stage::give_back(uint64_t transfer) {
  for (Slot& slot : slots_)
    if (slot.transfer == transfer) slot.transfer = 0;
}

}  // namespace braid::engine
