#include "moe/gpu/entries.h"

#include <string>

#include "moe/gpu/fatbins.h"

namespace braid::moe::gpu {

namespace {

constexpr Dtype kSummable[] = {Dtype::kBfloat16, Dtype::kFloat16, Dtype::kFloat32};

const char* suffix(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBfloat16: return "_bf16";
    case Dtype::kFloat16: return "_fp16";
    default: return "_fp32";
  }
}

struct Found {
  std::span<const std::byte> fatbin;
  const char* name;
  bool is_typed;
};

Found place_of(Entry entry, ScaleForm form) {
  switch (entry) {
    case Entry::kLayout: return {kernels::layout_counts_fatbin(), "braid_moe_layout", false};
    case Entry::kSend:
      return {kernels::low_latency_dispatch_fatbin(), "braid_moe_ll_send",
              form != ScaleForm::kNone};
    case Entry::kFanOut:
      return {kernels::low_latency_dispatch_fatbin(), "braid_moe_ll_fan_out", false};
    case Entry::kReturn:
      return {kernels::low_latency_combine_fatbin(), "braid_moe_ll_return", false};
    case Entry::kSum: return {kernels::low_latency_combine_fatbin(), "braid_moe_ll_sum", true};
    case Entry::kRankReturn:
      return {kernels::rank_combine_fatbin(), "braid_moe_ll_rank_return", true};
    case Entry::kRankSum: return {kernels::rank_combine_fatbin(), "braid_moe_ll_rank_sum", true};
    case Entry::kBegin:
      return {kernels::normal_dispatch_fatbin(), "braid_moe_dispatch_begin", false};
    case Entry::kFinish:
      return {kernels::normal_dispatch_fatbin(), "braid_moe_dispatch_finish", false};
    case Entry::kCombine: break;
  }
  return {kernels::normal_combine_fatbin(), "braid_moe_combine", true};
}

}  // namespace

Result<sys::Kernel> find_entry(comm::KernelCache& kernels, Entry entry, Dtype dtype, ScaleForm form,
                               uint32_t shared_bytes) {
  const Found found = place_of(entry, form);
  if (!found.is_typed) return kernels.find(found.fatbin, found.name, shared_bytes);
  return kernels.find(found.fatbin, (std::string(found.name) + suffix(dtype)).c_str(),
                      shared_bytes);
}

Status preload(comm::KernelCache& kernels, uint32_t bulk_bytes) {
  for (const Entry entry :
       {Entry::kLayout, Entry::kSend, Entry::kFanOut, Entry::kReturn, Entry::kSum,
        Entry::kRankReturn, Entry::kRankSum, Entry::kBegin, Entry::kFinish, Entry::kCombine})
    for (const Dtype dtype : kSummable)
      for (const ScaleForm form : {ScaleForm::kNone, ScaleForm::kFloat})
        BRAID_RETURN_IF_ERROR(
            find_entry(kernels, entry, dtype, form, moves_in_bulk(entry) ? bulk_bytes : 0)
                .status());
  return {};
}

}  // namespace braid::moe::gpu
