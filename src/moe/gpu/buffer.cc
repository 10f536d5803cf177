#include "moe/gpu/buffer.h"

#include <algorithm>

#include "moe/gpu/checks.h"
#include "moe/gpu/launch.h"

namespace braid::moe::gpu {

namespace {
constexpr uint64_t kBytesOfBlock = 16384;  // that are worth a block of a low-latency kernel
}  // namespace

Result<std::unique_ptr<Buffer>> Buffer::create(comm::Device& device, uint64_t half_bytes) {
  if (device.size() > kMostRanks)
    return unsupported("moe buffer: {} ranks: on GPUs at most {}", device.size(), kMostRanks);
  BRAID_RETURN_IF_ERROR(device.faults().status());
  const uint32_t stage_bytes = bulk_stage_bytes(device.gpus().most_shared_bytes);
  BRAID_RETURN_IF_ERROR(preload(device.kernels(), kStagesOfBlock * stage_bytes));
  BRAID_ASSIGN_OR_RETURN(auto memory, Memory::create(device, half_bytes));
  return std::unique_ptr<Buffer>(new Buffer(std::move(memory)));
}

// A call comes here several times: words are made of what failed alone.
Status Buffer::in_rank(const char* call, const Status& status) const {
  if (status.ok()) return {};
  return status.with_context(fmt::format("{} on rank {}", call, memory_->team().rank));
}

// All blocks of all ranks must have a place at once, where ranks share a GPU. Those of a kernel that
// moves `bytes` have something to do each: what a block costs at the end of a step is not worth less.
uint32_t Buffer::blocks(const comm::Device& device, const Launch& launch, uint64_t bytes) const {
  const int most = device.gpus().are_shared ? static_cast<int>(device.gpus().shared_blocks())
                                            : memory_->num_sms();
  const int asked = launch.num_blocks > 0 ? std::min(launch.num_blocks, most) : most;
  const uint64_t busy = bytes / kBytesOfBlock + 1;
  return static_cast<uint32_t>(
      std::min<uint64_t>(static_cast<uint64_t>(std::clamp(asked, 1, kMostBlocks)), busy));
}

Status Buffer::start_in_bulk(comm::Device& device, Entry entry, DispatchArgs args,
                             const Launch& launch) {
  args.stage_bytes = bulk_stage_bytes(device.gpus().most_shared_bytes);
  const uint32_t shared_bytes = kStagesOfBlock * args.stage_bytes;
  BRAID_ASSIGN_OR_RETURN(const sys::Kernel kernel,
                         find_entry(device.kernels(), entry, {}, ScaleForm::kNone, shared_bytes));
  const uint32_t num_blocks = blocks(device, launch, kMuch);
  return sys::launch(device.cuda(), kernel, {num_blocks, kThreads, shared_bytes}, launch.stream,
                     args);
}

Status Buffer::check_half() const {
  if (is_begun_) return invalid_argument("a dispatch was begun and not finished");
  if (!is_open_[num_sent_ % kHalves]) return {};
  return invalid_argument(
      "two results are alive: the receive half (hook) of an earlier call was not called yet");
}

uint64_t Buffer::open_half() {
  is_open_[num_sent_ % kHalves] = true;
  return num_sent_++;
}

Status Buffer::check_received(uint64_t number) const {
  if (number < num_sent_ && number + kHalves >= num_sent_ && is_open_[number % kHalves]) return {};
  return invalid_argument("its hook was called already");
}

Status Buffer::check_nothing_is_open() const {
  if (is_begun_) return invalid_argument("a dispatch was begun and not finished");
  if (!is_open_[0] && !is_open_[1]) return {};
  return invalid_argument(
      "a low-latency result is alive: its receive half (hook) was not called yet");
}

Status Buffer::count(comm::Device& device, const int64_t* ids, int num_tokens, int num_topk,
                     int num_experts, const LayoutCounts& out, const Launch& launch) {
  constexpr const char* kName = "get_dispatch_layout";
  BRAID_RETURN_IF_ERROR(in_rank(kName, check_experts(num_experts, size(), num_topk)));
  BRAID_RETURN_IF_ERROR(in_rank(kName, check_counts(num_experts, num_topk)));
  const LayoutArgs args{ids,
                        num_tokens,
                        num_topk,
                        size(),
                        num_experts,
                        out.per_rank,
                        out.per_expert,
                        out.is_in_rank,
                        memory_->team().watch};
  const Launch alone{launch.stream, 1};
  return in_rank(kName, enqueue(device, alone, [&] {
                   return start(device, find_entry(device.kernels(), Entry::kLayout, {}), args,
                                alone);
                 }));
}

}  // namespace braid::moe::gpu
