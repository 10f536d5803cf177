#include "coll/device/rounds.h"

#include <algorithm>

namespace braid::coll::device {

namespace {

constexpr int kRoundsChannel = 0;
constexpr uint64_t kPieceUnit = 4096;  // pieces hold whole elements and begin aligned

/// Where rank r's piece of round k lands in a scratch that begins at `base`.
sys::DevicePtr slot(const comm::Device& device, sys::DevicePtr base, uint64_t round, int source) {
  const uint64_t half = round % 2 * (device.scratch_bytes() / 2);
  return base + half + static_cast<uint64_t>(source) * piece_bytes(device);
}

uint64_t left_of(uint64_t bytes, uint64_t begin) { return bytes > begin ? bytes - begin : 0; }

Status push_round(comm::Device& device, sys::Stream stream, const Exchange& e, uint64_t round,
                  uint64_t piece) {
  const uint64_t begin = round * piece;
  for (int step = 1; step < device.size(); ++step) {
    const int peer = (device.rank() + step) % device.size();
    const auto index = static_cast<size_t>(peer);
    const uint64_t length = std::min(piece, left_of(e.bytes[index], begin));
    const sys::DevicePtr to = e.landing.window != nullptr
                                  ? e.landing.at(peer) + e.place_bytes + begin
                                  : slot(device, device.scratch().at(peer), round, device.rank());
    BRAID_RETURN_IF_ERROR(device.copy(stream, to, e.out[index] + begin, length));
  }
  return {};
}

Piece landed_piece(const comm::Device& device, const Exchange& e, uint64_t round, uint64_t piece) {
  Piece landed{round * piece, std::min(piece, left_of(e.most_bytes, round * piece)), {}};
  for (int r = 0; r < device.size(); ++r)
    landed.scratch[static_cast<size_t>(r)] =
        slot(device, device.scratch().at(device.rank()), round, r);
  return landed;
}

}  // namespace

uint64_t piece_bytes(const comm::Device& device) {
  return device.scratch_bytes() / 2 / static_cast<uint64_t>(device.size()) / kPieceUnit *
         kPieceUnit;
}

Status run_rounds(comm::Device& device, sys::Stream stream, const Exchange& e,
                  const std::function<Status()>& started,
                  const std::function<Status(sys::Stream, const Piece&)>& finish) {
  const bool in_place = e.landing.window != nullptr;
  const uint64_t piece = in_place ? std::max<uint64_t>(e.most_bytes, 1) : piece_bytes(device);
  const uint64_t num_rounds = (e.most_bytes + piece - 1) / piece;
  const sys::Stream side = device.side(comm::Device::kSums);
  for (uint64_t round = 0; round <= num_rounds; ++round) {
    // The side stream holds finish(round - 2) and what came before.
    if (!in_place && round >= 2) BRAID_RETURN_IF_ERROR(device.after(stream, side));
    BRAID_RETURN_IF_ERROR(device.barrier(stream, kRoundsChannel, e.signature));
    if (round == 0) BRAID_RETURN_IF_ERROR(started());
    if (!in_place && round >= 1) {
      BRAID_RETURN_IF_ERROR(device.after(side, stream));
      BRAID_RETURN_IF_ERROR(finish(side, landed_piece(device, e, round - 1, piece)));
    }
    if (round < num_rounds) BRAID_RETURN_IF_ERROR(push_round(device, stream, e, round, piece));
  }
  return in_place || num_rounds == 0 ? Status() : device.after(stream, side);
}

}  // namespace braid::coll::device
