// The table that libbraid-nccl-core.so gives to libbraid-nccl.so: C in, Seat calls, codes out. No
// exception leaves this file.
#include <algorithm>
#include <cstring>
#include <exception>
#include <string>

#include "bindings/nccl/core/capture.h"
#include "bindings/nccl/core/nodes/rolls.h"
#include "bindings/nccl/core/seat.h"
#include "bindings/nccl/core/settings.h"
#include "sys/cuda/api.h"

struct braid_nccl_seat {
  std::unique_ptr<braid::nccl::Seat> seat;
};

namespace {

using braid::Code;
using braid::Status;
using braid::nccl::Seat;

void tell(braid_nccl_why why, const std::string& text) {
  if (why.bytes == 0) return;
  const size_t kept = std::min(text.size(), why.bytes - 1);
  std::memcpy(why.text, text.data(), kept);
  why.text[kept] = '\0';
}

/// Runs `body`, which returns a Status.
template <typename Body>
int guarded(braid_nccl_why why, Body&& body) noexcept {
  try {
    const Status status = body();
    if (!status.ok()) tell(why, status.message());
    return static_cast<int>(status.code());
  } catch (const std::exception& e) {
    tell(why, e.what());
  } catch (...) {
    tell(why, "an exception without a name");
  }
  return static_cast<int>(Code::kInternal);
}

int mark(char* id, braid_nccl_why why) {
  return guarded(why, [&]() -> Status {
    BRAID_ASSIGN_OR_RETURN(const braid::Config config, braid::nccl::config_for_calls());
    const std::span<char, braid::nccl::kIdBytes> bytes(id, braid::nccl::kIdBytes);
    return braid::nccl::mark_id(std::as_writable_bytes(bytes), config.text("BRAID_JOB_TOKEN"));
  });
}

braid_nccl_seat* sign(const void* key, size_t key_bytes, uint64_t settings, braid_nccl_why why) {
  braid_nccl_seat* made = nullptr;
  (void)guarded(why, [&]() -> Status {
    BRAID_RETURN_IF_ERROR(braid::nccl::check_machine());
    BRAID_ASSIGN_OR_RETURN(auto seat,
                           Seat::sign({static_cast<const char*>(key), key_bytes}, settings));
    made = new braid_nccl_seat{std::move(seat)};
    return {};
  });
  return made;
}

void seal(braid_nccl_seat* seat) { seat->seat->seal(); }

int open(braid_nccl_seat* seat, const braid_nccl_place* place, braid_nccl_why why) {
  Seat& opened = *seat->seat;
  const int code = guarded(why, [&] { return opened.open(*place); });
  if (code == 0)
    return BRAID_NCCL_TAKEN | (opened.has_sharp() ? BRAID_NCCL_HAS_SHARP : 0) |
           (opened.is_over_nodes() ? BRAID_NCCL_OVER_NODES : 0);
  if (opened.is_lost()) return BRAID_NCCL_LOST;
  return opened.is_later() ? BRAID_NCCL_LATER : 0;
}

int race(braid_nccl_seat* seat, int op, int is_large, int in_windows, const braid_nccl_real* real,
         braid_nccl_choice* choice, braid_nccl_why why) {
  *choice = {};
  return guarded(
      why, [&] { return seat->seat->race(op, {is_large != 0, in_windows != 0}, real, *choice); });
}

int run(braid_nccl_seat* seat, const braid_nccl_call* call, braid_nccl_why why) {
  return guarded(why, [&] { return seat->seat->run(*call); });
}

int add_window(braid_nccl_seat* seat, void* memory, uint64_t bytes, braid_nccl_why why) {
  return guarded(why, [&] { return seat->seat->add_window(memory, bytes); });
}

int drop_window(braid_nccl_seat* seat, void* memory, braid_nccl_why why) {
  return guarded(why, [&] { return seat->seat->drop_window(memory); });
}

int join(braid_nccl_seat* seat, void* const* streams, size_t num_streams, braid_nccl_why why) {
  return guarded(why, [&] { return seat->seat->join({streams, num_streams}); });
}

int is_capturing(int device, void* stream) {
  int answer = 1;
  (void)guarded({}, [&] {
    answer = braid::nccl::is_capturing(braid::sys::real_cuda(), device, {stream}) ? 1 : 0;
    return Status();
  });
  return answer;
}

int status(braid_nccl_seat* seat, braid_nccl_why why) {
  return guarded(why, [&] { return seat->seat->status(); });
}

void interrupt(braid_nccl_seat* seat) {
  (void)guarded({}, [&] {
    seat->seat->interrupt();
    return Status();
  });
}

void close(braid_nccl_seat* seat, int is_in_peace) {
  (void)guarded({}, [&] {
    seat->seat->close(is_in_peace != 0);
    return Status();
  });
}

void release(braid_nccl_seat* seat) {
  (void)guarded({}, [&] {
    delete seat;
    return Status();
  });
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const braid_nccl_core* braid_nccl_core_table() {
  // NOLINTNEXTLINE(readability-identifier-naming): the struct in C, not a constant of ours
  static const braid_nccl_core table{BRAID_NCCL_CORE_VERSION,
                                     mark,
                                     sign,
                                     seal,
                                     open,
                                     race,
                                     run,
                                     add_window,
                                     drop_window,
                                     join,
                                     is_capturing,
                                     status,
                                     interrupt,
                                     close,
                                     release};
  return &table;
}
