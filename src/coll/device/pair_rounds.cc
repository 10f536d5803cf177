#include "coll/device/pair_rounds.h"

#include <algorithm>

#include "coll/device/copy_engine_puts.h"
#include "coll/device/round_slots.h"

namespace braid::coll::device {

namespace {

constexpr uint64_t kPairUnit = 4096;
constexpr uint64_t kMostPairPiece = 16 << 20;

uint64_t pair_piece_bytes(const comm::Device& device) {
  const uint64_t most = device.arena().scratch_bytes() / (2 * static_cast<uint64_t>(device.size()));
  return std::min(kMostPairPiece, most) / kPairUnit * kPairUnit;
}

class PairRounds {
 public:
  PairRounds(comm::Device& device, sys::Stream stream, const PairExchange& exchange)
      : device_(device),
        stream_(stream),
        puts_(device, stream),
        side_(device.order().side(comm::CallOrder::kSums)),
        e_(exchange),
        piece_(pair_piece_bytes(device)),
        slots_(device.arena().scratch_bytes(), piece_, device.size()) {}

  Status run() {
    if (partners(0) == 0) return {};  // the push stream would be begun, but never joined
    BRAID_RETURN_IF_ERROR(device_.order().after(side_, stream_));
    BRAID_RETURN_IF_ERROR(puts_.begin());
    for (uint64_t round = 0; partners(round) != 0; ++round) {
      if (round >= slots_.num_slots)
        BRAID_RETURN_IF_ERROR(puts_.wait(landed_[(round + 1) % slots_.num_slots]));
      BRAID_RETURN_IF_ERROR(push(round));
      BRAID_RETURN_IF_ERROR(puts_.join(side_));
      BRAID_RETURN_IF_ERROR(device_.barriers().pairs(side_, partners(round)));
      BRAID_ASSIGN_OR_RETURN(landed_[round % slots_.num_slots], device_.order().mark(side_));
      BRAID_RETURN_IF_ERROR(take_out(round));
    }
    return device_.order().after(stream_, side_);
  }

 private:
  /// Of a block of `bytes`, in a round.
  uint64_t length(uint64_t bytes, uint64_t round) const {
    return bytes <= round * piece_ ? 0 : std::min(piece_, bytes - round * piece_);
  }
  int peer_after(int step) const { return (device_.rank() + step) % device_.size(); }
  /// Ranks that have a piece for this one in a round, or get one: a bit per rank.
  uint32_t partners(uint64_t round) const {
    uint32_t with = 0;
    for (int step = 1; step < device_.size(); ++step) {
      const int peer = peer_after(step);
      const auto index = static_cast<size_t>(peer);
      const uint64_t most = std::max(e_.out_bytes[index], e_.in_bytes[index]);
      if (length(most, round) > 0) with |= 1U << peer;
    }
    return with;
  }
  Status push(uint64_t round) {
    for (int step = 1; step < device_.size(); ++step) {
      const int peer = peer_after(step);
      const auto index = static_cast<size_t>(peer);
      const uint64_t bytes = length(e_.out_bytes[index], round);
      if (bytes == 0) continue;
      puts_.add(peer, slots_.at(device_.arena().scratch().at(peer), round, device_.rank()),
                e_.out[index] + round * piece_, bytes);
    }
    return puts_.send();
  }
  Status take_out(uint64_t round) {
    const sys::DevicePtr own = device_.arena().scratch().at(device_.rank());
    for (int step = 1; step < device_.size(); ++step) {
      const int source = peer_after(device_.size() - step);
      const auto index = static_cast<size_t>(source);
      BRAID_RETURN_IF_ERROR(device_.copy(side_, e_.in[index] + round * piece_,
                                         slots_.at(own, round, source),
                                         length(e_.in_bytes[index], round)));
    }
    return {};
  }

  comm::Device& device_;
  const sys::Stream stream_;
  CopyEnginePuts puts_;
  const sys::Stream side_;
  const PairExchange& e_;
  const uint64_t piece_;
  const RoundSlots slots_;
  std::array<sys::Event, RoundSlots::kMost> landed_{};  // of a round's slot: after its meeting
};

}  // namespace

sys::DevicePtr pair_slot(const comm::Device& device, int rank, int source) {
  return device.arena().scratch().at(rank) +
         static_cast<uint64_t>(source) * pair_piece_bytes(device);
}

Status run_pair_rounds(comm::Device& device, sys::Stream stream, const PairExchange& exchange,
                       const std::function<Status()>& started) {
  BRAID_RETURN_IF_ERROR(device.barriers().of_pairs(stream, kPairsFirstChannel, exchange.meaning));
  BRAID_RETURN_IF_ERROR(started());
  return PairRounds(device, stream, exchange).run();
}

}  // namespace braid::coll::device
