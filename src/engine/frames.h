// What the control frames say (docs/engine_protocol.md tells when). Bodies in, structures out, and back:
// pure functions of bytes, so that a fuzzer can call them. Lengths are looked at before anything is
// allocated for them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/status.h"

namespace braid::engine {

/// A message of a peer, or a notification: bytes that come behind a transfer.
enum class MessageKind : uint8_t { kNone = 0, kNotification = 1, kMessage = 2 };
inline constexpr size_t kMostMessageBytes = 64 << 10;

/// What the target is told when a transfer has landed.
struct Delivery {
  bool has_immediate = false;
  uint32_t immediate = 0;
  uint32_t count = 0;  // by how much the immediate's count grows
  MessageKind kind = MessageKind::kNone;
  std::string message;
};

/// A stretch of a transfer; addresses of the source's memory, offsets into the target's region.
struct Stretch {
  uint64_t source_address = 0;
  uint64_t target_offset = 0;
  uint64_t bytes = 0;
};
inline constexpr size_t kMostStretches = 8192;  // of one frame

struct Open {
  std::string name;
  std::string host;
  int32_t process = 0;
  bool wants_local = false;
  uint64_t probe_address = 0;  // where the target, if it can read our memory, finds probe_value
  uint64_t probe_value = 0;
  int64_t lease_ns = 0;
  std::vector<std::string> nics;  // the provider of each
};
struct RailPair {
  uint16_t source_nic = 0, target_nic = 0;
};
struct Accept {
  bool is_local = false;
  std::string why_not_local;
  std::vector<RailPair> rails;
};
struct RailCall {  // an endpoint, made anew, of the source
  uint16_t rail = 0;
  std::string endpoint;
};
struct RailReady {
  uint16_t rail = 0;
  std::string endpoint;
  uint64_t probe_address = 0, probe_key = 0;  // 8 bytes that the source may write
  std::string trouble;                        // not empty: there is no endpoint, and why
};
struct Work {
  bool is_under_way = false;
};
struct Landed {
  uint64_t transfer = 0;
  Delivery delivery;
};
/// A region of the source, of a GPU, before pulls and fetches name it.
struct Loan {
  uint64_t region = 0;
  uint64_t base = 0, bytes = 0;
  uint64_t offset = 0;  // of the region in its allocation
  std::string handle;   // of the allocation: sys::IpcHandle
};
/// Memory of the source that lists of pages lie in (board.h).
struct BoardOffer {
  int32_t fd = -1;
  uint64_t bytes = 0;
};
struct BoardAnswer {
  std::string trouble;  // not empty: the target cannot use it, and why
};
/// Pages by their numbers: a list on the board, which holds in every plane of its pull.
struct PageRun {
  uint64_t count = 0;    // 0: none
  uint64_t list_at = 0;  // entry of the board
  uint64_t page_bytes = 0;
  uint64_t source_stride = 0, target_stride = 0;  // from one page to the next
  uint64_t is_by_place = 0;  // 1: on the source's side pages lie in the order of the list
};
/// Between which memory a pull moves bytes; kMostPlanes at most (copy_pages.h).
struct Plane {
  uint64_t region = 0;          // of the target
  uint64_t source_region = 0;   // that was lent; 0: memory of the source's host
  uint64_t source_address = 0;  // of page 0, as the next; stretches have their own
  uint64_t target_offset = 0;
};
struct Pull {  // and fetch
  uint64_t transfer = 0;
  // In the source's memory: holds `word` for as long as somebody waits for the transfer. 0: none.
  uint64_t word_address = 0, word = 0;
  bool is_last = false;
  uint32_t slot = 0;  // of the source's stage, from 1: PULLED is to tell when it was read; 0: none
  Delivery delivery;  // of the last
  std::vector<Plane> planes;
  PageRun pages;                   // of each plane; or else:
  std::vector<Stretch> stretches;  // of the only one
};
struct Pulled {
  uint64_t transfer = 0;
  uint32_t slot = 0;
};
struct TransferNote {  // cancel, cancelled
  uint64_t transfer = 0;
};
struct Fence {  // and its answer
  uint16_t rail = 0;
  std::vector<uint64_t> regions;  // that were written to; in the answer those that are gone
};
struct RegionNote {  // gone, gone seen
  uint64_t region = 0;
};
struct Done {
  std::vector<uint64_t> transfers;
};
struct Refused {
  uint64_t transfer = 0;
  Code code = Code::kInternal;
  std::string why;
};

std::string encode(const Open& open);
std::string encode(const Accept& accept);
std::string encode(const RailCall& call);
std::string encode(const RailReady& ready);
std::string encode(const Work& work);
std::string encode(const Landed& landed);
std::string encode(const BoardOffer& offer);
std::string encode(const BoardAnswer& answer);
std::string encode(const Loan& loan);
std::string encode(const Pull& pull);
std::string encode(const Pulled& pulled);
std::string encode(const TransferNote& note);
std::string encode(const Fence& fence);
std::string encode(const RegionNote& note);
std::string encode(const Done& done);
std::string encode(const Refused& refused);

/// invalid_argument when a body is short, long, or holds what no engine would send.
Result<Open> decode_open(std::string_view body);
Result<Accept> decode_accept(std::string_view body);
Result<RailCall> decode_rail_call(std::string_view body);
Result<RailReady> decode_rail_ready(std::string_view body);
Result<Work> decode_work(std::string_view body);
Result<Landed> decode_landed(std::string_view body);
Result<BoardOffer> decode_board_offer(std::string_view body);
Result<BoardAnswer> decode_board_answer(std::string_view body);
Result<Loan> decode_loan(std::string_view body);
Result<Pull> decode_pull(std::string_view body);
Result<Pulled> decode_pulled(std::string_view body);
Result<TransferNote> decode_transfer_note(std::string_view body);
Result<Fence> decode_fence(std::string_view body);
Result<RegionNote> decode_region_note(std::string_view body);
Result<Done> decode_done(std::string_view body);
Result<Refused> decode_refused(std::string_view body);

/// Gives take() what a body says. Not ok: it could not be decoded, or take() answers so.
template <typename Body, typename Take>
Status take_body(Result<Body> body, Take&& take) {
  if (!body.ok()) return body.status();
  if constexpr (std::is_void_v<std::invoke_result_t<Take, Body>>) {
    take(std::move(body).value());
    return {};
  } else {
    return take(std::move(body).value());
  }
}

}  // namespace braid::engine
