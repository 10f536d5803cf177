#include "coll/device/rounds.h"

#include <algorithm>

#include "base/rounding.h"
#include "coll/device/copy_engine_puts.h"
#include "coll/device/round_slots.h"

namespace braid::coll::device {

namespace {

constexpr int kStartChannel = 0;
constexpr int kLandedChannel = 1;
constexpr uint64_t kPieceUnit = 4096;  // pieces hold whole elements and begin aligned
constexpr uint64_t kMostPiece = 64 << 20;
// A round costs about 20 us beside its bytes (4 H200), as much as a last finish() of this takes.
constexpr uint64_t kLastPiece = 22 << 20;

/// One exchange under way.
class Rounds {
 public:
  Rounds(comm::Device& device, sys::Stream stream, const Exchange& exchange)
      : device_(device),
        stream_(stream),
        puts_(device, stream),
        side_(device.order().side(comm::CallOrder::kSums)),
        e_(exchange),
        in_place_(exchange.landing.window != nullptr),
        piece_(in_place_ ? std::max<uint64_t>(e_.bytes, 1)
                         : piece_bytes(device, e_.bytes,
                                       device.arena().scratch_bytes() - e_.reserved_bytes)),
        slots_(device.arena().scratch_bytes() - e_.reserved_bytes, piece_, device.size()) {}

  Status run_in_place() {
    BRAID_RETURN_IF_ERROR(puts_.begin());
    BRAID_RETURN_IF_ERROR(push(0, 0, e_.bytes));
    BRAID_RETURN_IF_ERROR(puts_.join(stream_));
    BRAID_RETURN_IF_ERROR(device_.links().note(comm::CallStage::kBaseDone, stream_));
    return device_.barriers().all(stream_, kStartChannel, e_.signature);
  }

  Status run_through_scratch(const std::function<Status(sys::Stream, const Piece&)>& finish) {
    if (e_.bytes == 0) return {};  // the push stream would be begun, but never joined
    BRAID_RETURN_IF_ERROR(device_.order().after(side_, stream_));
    BRAID_RETURN_IF_ERROR(puts_.begin());
    uint64_t length = 0;
    for (uint64_t round = 0, begin = 0; begin < e_.bytes; ++round, begin += length) {
      length = next_piece_bytes(e_.bytes - begin, piece_);
      if (round >= slots_.num_slots)
        BRAID_RETURN_IF_ERROR(puts_.wait(landed_[(round + 1) % slots_.num_slots]));
      BRAID_RETURN_IF_ERROR(push(round, begin, length));
      BRAID_RETURN_IF_ERROR(puts_.join(side_));
      BRAID_RETURN_IF_ERROR(device_.barriers().all(side_, kLandedChannel, e_.signature));
      BRAID_ASSIGN_OR_RETURN(landed_[round % slots_.num_slots], device_.order().mark(side_));
      BRAID_RETURN_IF_ERROR(finish(side_, landed_piece(round, begin, length)));
    }
    BRAID_RETURN_IF_ERROR(device_.links().note(comm::CallStage::kBaseDone, side_));
    return device_.order().after(stream_, side_);
  }

 private:
  Status push(uint64_t round, uint64_t begin, uint64_t length) {
    for (int step = 1; step < device_.size(); ++step) {
      const int peer = (device_.rank() + step) % device_.size();
      const auto index = static_cast<size_t>(peer);
      const sys::DevicePtr to =
          in_place_ ? e_.landing.at(peer) + e_.place_bytes + begin
                    : slots_.at(device_.arena().scratch().at(peer), round, device_.rank());
      puts_.add(peer, to, e_.out[index] + begin, length);
    }
    return puts_.send();
  }

  Piece landed_piece(uint64_t round, uint64_t begin, uint64_t length) const {
    Piece landed{begin, length, begin + length == e_.bytes, {}};
    for (int r = 0; r < device_.size(); ++r)
      landed.scratch[static_cast<size_t>(r)] =
          slots_.at(device_.arena().scratch().at(device_.rank()), round, r);
    return landed;
  }

  comm::Device& device_;
  const sys::Stream stream_;
  CopyEnginePuts puts_;
  const sys::Stream side_;
  const Exchange& e_;
  const bool in_place_;
  const uint64_t piece_;
  const RoundSlots slots_;
  std::array<sys::Event, RoundSlots::kMost> landed_{};  // of a round's slot: after its barrier
};

}  // namespace

uint64_t piece_bytes(const comm::Device& device, uint64_t block_bytes, uint64_t scratch_bytes) {
  const uint64_t most = scratch_bytes / (2 * static_cast<uint64_t>(device.size()));
  const uint64_t wanted = std::clamp(round_up(block_bytes, kPieceUnit), kPieceUnit, kMostPiece);
  return std::min(wanted, most) / kPieceUnit * kPieceUnit;
}

// What is left is divided seven to three: the sum of the first part then hides behind the second's
// push. Little more than a piece, too: behind a whole one a few bytes would hide nothing.
uint64_t next_piece_bytes(uint64_t left, uint64_t piece_bytes) {
  const uint64_t larger = round_up(left / 10 * 7 + 1, kPieceUnit);
  if (larger > piece_bytes) return piece_bytes;
  return left <= std::min(piece_bytes, kLastPiece) ? left : larger;
}

Status take_out(comm::Device& device, sys::Stream side, const Piece& piece, sys::DevicePtr recv,
                uint64_t block_bytes) {
  const int n = device.size();
  for (int step = 1; step < n; ++step) {
    const int source = (device.rank() + n - step) % n;
    const sys::DevicePtr place = recv + static_cast<uint64_t>(source) * block_bytes;
    BRAID_RETURN_IF_ERROR(device.copy(side, place + piece.begin,
                                      piece.scratch[static_cast<size_t>(source)], piece.length));
  }
  return {};
}

Status run_rounds(comm::Device& device, sys::Stream stream, const Exchange& exchange,
                  const std::function<Status()>& started,
                  const std::function<Status(sys::Stream, const Piece&)>& finish) {
  Rounds rounds(device, stream, exchange);
  BRAID_RETURN_IF_ERROR(device.barriers().all(stream, kStartChannel, exchange.signature));
  BRAID_RETURN_IF_ERROR(device.links().note(comm::CallStage::kStart, stream));
  BRAID_RETURN_IF_ERROR(started());
  return exchange.landing.window != nullptr ? rounds.run_in_place()
                                            : rounds.run_through_scratch(finish);
}

}  // namespace braid::coll::device
