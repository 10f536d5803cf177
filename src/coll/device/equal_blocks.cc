#include "coll/device/equal_blocks.h"

#include "coll/device/rounds.h"

namespace braid::coll::device {

namespace {

/// Where blocks lie.
class EqualBlocks {
 public:
  EqualBlocks(const comm::Device& device, const CollectiveCall& what)
      : device_(device), what_(what) {}

  bool is_gather() const { return what_.op == plan::Op::kAllGather; }
  sys::DevicePtr source(int peer) const {
    return is_gather() ? what_.send : what_.send + offset_of(peer);
  }
  sys::DevicePtr place(int peer) const { return what_.recv + offset_of(peer); }
  uint64_t offset_of(int rank) const { return static_cast<uint64_t>(rank) * what_.bytes; }

  /// Bytes [begin, begin + bytes) of every block.
  comm::LinkPart part(uint64_t begin, uint64_t bytes) const {
    Addresses sources{}, places{};
    for (int r = 0; r < device_.size(); ++r) {
      sources[static_cast<size_t>(r)] = source(r) + begin;
      places[static_cast<size_t>(r)] = place(r) + begin;
    }
    return is_gather() ? all_to_everyone(device_, what_.send + begin, places, bytes)
                       : each_to_each(device_, sources, places, bytes);
  }

 private:
  const comm::Device& device_;
  const CollectiveCall& what_;
};

/// The rank's own block, while the first link that carries something may not be kept waiting by it.
Status copy_own(comm::Device& device, sys::Stream stream, const EqualBlocks& blocks,
                const CollectiveCall& what, const Cut& cut, bool is_registered) {
  const sys::DevicePtr from = blocks.source(device.rank()), to = blocks.place(device.rank());
  if (is_registered)
    for (const auto& link : device.links().beside())
      if (cut.beside[link->index()] > 0) return link->copy_beside(stream, to, from, what.bytes);
  return device.copy(stream, to, from, what.bytes);
}

/// What runs beside the rounds: the other links, and the copy of the rank's own block. That is last:
/// the driver may copy by a kernel that leaves no room for the links' blocks.
Status start_beside(comm::Device& device, Call& call, const EqualBlocks& blocks,
                    const CollectiveCall& what, const Cut& cut, bool is_registered) {
  uint64_t begin = cut.base_of(what.bytes);
  for (const auto& link : device.links().beside()) {
    const uint64_t bytes = cut.beside[link->index()];
    // A link that stage 2 may follow tells of every call, of one without a part for it, too.
    if (bytes > 0 || link->tuning() == comm::LinkTuning::kBySize)
      BRAID_RETURN_IF_ERROR(call.send(*link, blocks.part(begin, bytes)));
    begin += bytes;
  }
  BRAID_ASSIGN_OR_RETURN(const sys::Stream copies, call.fork(comm::CallOrder::kCopies));
  return copy_own(device, copies, blocks, what, cut, is_registered);
}

}  // namespace

Status exchange_equal_blocks(comm::Device& device, sys::Stream stream, Call& call,
                             const CollectiveCall& what, const comm::SymmetricAddress& landing) {
  const EqualBlocks blocks(device, what);
  if (device.size() == 1) return device.copy(stream, blocks.place(0), blocks.source(0), what.bytes);
  const bool is_registered = landing.window != nullptr;
  const bool is_in_place = !blocks.is_gather() && what.send == what.recv;
  Cut cut;
  if (!is_in_place) {
    BRAID_ASSIGN_OR_RETURN(
        cut, counted_cut(device, what.op, what.bytes, {is_registered ? 1 : kBesideTakeOut}));
  }
  Exchange e;
  e.landing = landing;
  e.bytes = cut.base_of(what.bytes);
  e.place_bytes = blocks.offset_of(device.rank());
  e.signature = signature_of(what, landing, cut, is_in_place);
  for (int r = 0; r < device.size(); ++r) e.out[static_cast<size_t>(r)] = blocks.source(r);
  return run_rounds(
      device, stream, e,
      [&] { return start_beside(device, call, blocks, what, cut, is_registered); },
      [&](sys::Stream side, const Piece& piece) {
        return take_out(device, side, piece, what.recv, what.bytes);
      });
}

}  // namespace braid::coll::device
