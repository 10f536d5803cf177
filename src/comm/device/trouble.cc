#include "comm/device/trouble.h"

namespace braid::comm {
namespace {

const char* what_was_awaited(nvlink::Wait wait) {
  switch (wait) {
    case nvlink::Wait::kBarrier: return "barrier";
    case nvlink::Wait::kSlotFree: return "free slot of the host ring";
    case nvlink::Wait::kSlotFull: return "full slot of the host ring";
    case nvlink::Wait::kPacket: return "packet";
    case nvlink::Wait::kChunk: return "chunk";
    case nvlink::Wait::kTile: return "tile";
    case nvlink::Wait::kAgreement:
    case nvlink::Wait::kArgument:
    case nvlink::Wait::kNone: break;
  }
  return "nothing";
}

}  // namespace

Status in_words(const nvlink::Trouble& t) {
  if (t.wait == nvlink::Wait::kAgreement)
    return invalid_argument(
        "gpu call: rank {} and rank {} called different collectives or shapes ({:#x} and {:#x})",
        t.rank, t.peer, t.expected, t.seen);
  if (t.wait == nvlink::Wait::kArgument)
    return invalid_argument("gpu call: rank {}: argument {} at {}: expected at most {}, got {}",
                            t.rank, t.flag, t.tile, t.expected, static_cast<int64_t>(t.seen));
  std::string what = what_was_awaited(t.wait);
  if (t.wait == nvlink::Wait::kTile) what += fmt::format(" {} by flag {}", t.tile, t.flag);
  const std::string text =
      fmt::format("gpu call: rank {} block {} waited for rank {}: {}: expected {}, seen {}", t.rank,
                  t.block, t.peer, what, t.expected, t.seen);
  if (t.aborted != 0) return peer_lost("{}; the comm had failed", text);
  return timeout("{}", text);
}

}  // namespace braid::comm
