#include "moe/gpu/checks.h"

#include "moe/gpu/args.h"

namespace braid::moe::gpu {

namespace {
constexpr uint64_t kVectorBytes = 16;
}  // namespace

Status check_place(const void* at, const char* argument) {
  const auto address = reinterpret_cast<uint64_t>(at);
  if (address % kVectorBytes == 0) return {};
  return invalid_argument("argument {}: expected an address that is a multiple of {}, got {:#x}",
                          argument, kVectorBytes, address);
}

Status check_counts(int num_experts, int num_topk) {
  if (num_experts > kMostExperts)
    return invalid_argument("argument num_experts: expected at most {} on GPUs, got {}",
                            kMostExperts, num_experts);
  if (num_topk > kMostTopk)
    return invalid_argument("argument topk_idx: expected at most {} experts a token, got {}",
                            kMostTopk, num_topk);
  return {};
}

}  // namespace braid::moe::gpu
