#include "comm/device/fault_words.h"

#include <iterator>

namespace braid::comm {
namespace {

/// Slots are those of the host ring, or (`is_of_window`) the halves of moe's windows.
const char* what_was_awaited(nvlink::Wait wait, bool is_of_window) {
  switch (wait) {
    case nvlink::Wait::kBarrier: return "barrier";
    case nvlink::Wait::kSlotFree:
      return is_of_window ? "room in its window" : "free slot of the host ring";
    case nvlink::Wait::kSlotFull:
      return is_of_window ? "rows in our window" : "full slot of the host ring";
    case nvlink::Wait::kPacket: return "packet";
    case nvlink::Wait::kChunk: return "chunk";
    case nvlink::Wait::kTile: return "tile";
    case nvlink::Wait::kAgreement:
    case nvlink::Wait::kArgument:
    case nvlink::Wait::kNone: break;
  }
  return "nothing";
}

/// In the order of moe::FlagWords, the words that ranks compare.
const char* word_name(int32_t number) {
  constexpr const char* kNames[] = {"kind of call",
                                    "dtype",
                                    "num_experts",
                                    "choices of a token",
                                    "num_max_dispatch_tokens_per_rank",
                                    "bytes a row",
                                    "side bytes a row",
                                    "options (weights, ids, scales, partial)",
                                    "handle of phase",
                                    "rows",
                                    "rows in all",
                                    "tokens",
                                    "number of calls"};
  return number >= 0 && number < static_cast<int32_t>(std::size(kNames)) ? kNames[number] : "word";
}
/// What kernels look at in device memory (moe/gpu).
const char* argument_name(int32_t number) {
  constexpr const char* kNames[] = {"topk_idx", "num_worst_tokens"};
  return number >= 0 && number < static_cast<int32_t>(std::size(kNames)) ? kNames[number]
                                                                         : "of a call";
}

}  // namespace

Status in_words(const device::Fault& t) {
  if (t.wait == nvlink::Wait::kAgreement && t.flag != 0)
    return invalid_argument("gpu call: ranks disagree: rank {} has {} {}, rank {} has {}", t.rank,
                            word_name(t.flag - 1), t.expected, t.peer, t.seen);
  if (t.wait == nvlink::Wait::kAgreement)
    return invalid_argument(
        "gpu call: rank {} and rank {} called different collectives or shapes ({:#x} and {:#x})",
        t.rank, t.peer, t.expected, t.seen);
  if (t.wait == nvlink::Wait::kArgument)
    return invalid_argument("gpu call: rank {}: argument {}: expected at most {}, got {} (at {})",
                            t.rank, argument_name(t.flag - 1), t.expected,
                            static_cast<int64_t>(t.seen), t.tile);
  std::string what = what_was_awaited(t.wait, t.flag != 0);
  if (t.wait == nvlink::Wait::kTile) what += fmt::format(" {} by flag {}", t.tile, t.flag);
  const std::string text =
      fmt::format("gpu call: rank {} block {} waited for rank {}: {}: expected {}, seen {}", t.rank,
                  t.block, t.peer, what, t.expected, t.seen);
  if (t.aborted != 0) return peer_lost("{}; the comm had failed", text);
  return timeout("{}", text);
}

}  // namespace braid::comm
