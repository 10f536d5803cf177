// all_to_all with counts per peer on the device: short blocks by one kernel, long ones by copy
// engines over NVLink and their ends over a link beside it. A pair's blocks, there and back, go the
// same way, which both its ranks know. How ranks that know different things get through a call
// together: coll/device/pair_rounds.h.
//
// The share of that link is that of an even call whose blocks are as long. It is looked up for
// every block, and not counted: the balancer counts calls that all ranks make alike.
#include <algorithm>
#include <numeric>
#include <utility>

#include "coll/all_to_all/steps.h"
#include "coll/arguments.h"
#include "coll/device/call.h"
#include "coll/device/collectives.h"
#include "coll/device/pair_rounds.h"

namespace braid::coll::device {

namespace {

/// One call: what it moves, and which part of it how.
class UnevenExchange {
 public:
  UnevenExchange(comm::Device& device, const Blocks& out, const Blocks& in, Dtype dtype)
      : device_(device), out_(out), in_(in) {
    short_.num_parts = nvlink::short_parts(device.size());
    for (int step = 1; step <= device.size(); ++step) {
      const int peer = (device.rank() + step) % device.size();
      const auto index = static_cast<size_t>(peer);
      const bool is_own = peer == device.rank();
      if (is_own && !is_own_alike()) continue;  // nobody agrees with us
      has_long_ = has_long_ || !is_short(index);
      if (is_short(index))
        add_short(peer);
      else if (!is_own)
        cut(index);
      if (!is_own) e_.meaning.signature[peer] = signature_of(meaning_with(peer, dtype));
    }
  }

  Status run(Call& call, sys::Stream stream) {
    if (!has_long_) device_.call_watch().took("short blocks");
    for (int i = 0; i < short_.num_blocks; ++i)
      if (short_.block[i].peer != device_.rank())
        device_.call_watch().sends(comm::CallWatch::kBaseLink, short_.block[i].out_bytes);
    return run_pair_rounds(device_, stream, e_, [&]() -> Status {
      if (!has_long_) return device_.barriers().exchange_short(stream, kPairsFirstChannel, short_);
      BRAID_ASSIGN_OR_RETURN(const sys::Stream copies, call.fork(comm::CallOrder::kCopies));
      BRAID_RETURN_IF_ERROR(device_.barriers().exchange_short(copies, kPairsFirstChannel, short_));
      BRAID_RETURN_IF_ERROR(copy_own(copies));
      const comm::LinkPart part = beside_part();
      return part.is_empty() ? Status() : call.send(*device_.links().for_uneven(), part);
    });
  }

 private:
  size_t own() const { return static_cast<size_t>(device_.rank()); }
  bool is_own_alike() const { return out_.bytes[own()] == in_.bytes[own()]; }
  /// Of a pair, whichever of its ranks asks. A kernel's stores cannot be held to a rate.
  bool is_short(size_t peer) const {
    return device_.lets_kernels_store() &&
           std::max(out_.bytes[peer], in_.bytes[peer]) <= nvlink::short_bytes(device_.size());
  }

  void add_short(int peer) {
    const auto i = static_cast<size_t>(peer);
    const int rank = device_.rank();
    if (out_.bytes[i] == 0 && in_.bytes[i] == 0) return;
    short_.block[short_.num_blocks++] = {sys::pointer_to<std::byte>(out_.at[i]),
                                         sys::pointer_to<std::byte>(pair_slot(device_, peer, rank)),
                                         sys::pointer_to<std::byte>(pair_slot(device_, rank, peer)),
                                         sys::pointer_to<std::byte>(in_.at[i]),
                                         out_.bytes[i],
                                         in_.bytes[i],
                                         peer};
  }

  /// What goes over NVLink is copied out of the scratch by the driver.
  uint64_t beside_part_of(uint64_t bytes) const {
    return uneven_part(device_, bytes, kBesideTakeOut);
  }
  void cut(size_t peer) {
    out_beside_[peer] = beside_part_of(out_.bytes[peer]);
    in_beside_[peer] = beside_part_of(in_.bytes[peer]);
    e_.out[peer] = out_.at[peer];
    e_.in[peer] = in_.at[peer];
    e_.out_bytes[peer] = out_.bytes[peer] - out_beside_[peer];
    e_.in_bytes[peer] = in_.bytes[peer] - in_beside_[peer];
  }

  /// A rank whose block for itself has two lengths agrees with nobody, so that all ranks learn of
  /// it.
  PairMeaning meaning_with(int peer, Dtype dtype) const {
    const auto index = static_cast<size_t>(peer);
    PairMeaning meaning{plan::Op::kAllToAll, dtype,
                        out_.bytes[index],   in_.bytes[index],
                        out_beside_[index],  in_beside_[index]};
    if (device_.rank() > peer) {
      std::swap(meaning.there_bytes, meaning.back_bytes);
      std::swap(meaning.there_beside_bytes, meaning.back_beside_bytes);
    }
    if (!is_own_alike()) meaning.there_bytes = UINT64_MAX - own();
    return meaning;
  }

  Status copy_own(sys::Stream stream) {
    if (!is_own_alike() || is_short(own())) return {};
    return device_.copy(stream, in_.at[own()], out_.at[own()], in_.bytes[own()]);
  }

  comm::LinkPart beside_part() const {
    comm::LinkPart part;
    part.agreed_flows = 2 * (device_.size() - 1);
    for (int step = 1; step < device_.size(); ++step) {
      const int peer = (device_.rank() + step) % device_.size();
      const auto i = static_cast<size_t>(peer);
      const auto* source = sys::pointer_to<std::byte>(out_.at[i] + e_.out_bytes[i]);
      auto* place = sys::pointer_to<std::byte>(in_.at[i] + e_.in_bytes[i]);
      if (out_beside_[i] > 0) part.add({device_.rank(), peer, source, nullptr, out_beside_[i]});
      if (in_beside_[i] > 0) part.add({peer, device_.rank(), nullptr, place, in_beside_[i]});
    }
    return part;
  }

  comm::Device& device_;
  const Blocks& out_;
  const Blocks& in_;
  Lengths out_beside_{}, in_beside_{};
  nvlink::ShortBlocks short_{};
  bool has_long_ = false;
  PairExchange e_;
};

Blocks blocks_of(sys::DevicePtr memory, std::span<const uint64_t> counts, Dtype dtype) {
  Blocks blocks;
  for (size_t r = 0; r < counts.size(); ++r) {
    const auto rank = static_cast<int>(r);
    blocks.at[r] = memory + all_to_all_steps::block_begin(rank, counts) * dtype_bytes(dtype);
    blocks.bytes[r] = counts[r] * dtype_bytes(dtype);
  }
  return blocks;
}

comm::CallShape shape_of(const Blocks& out, const Blocks& in, Dtype dtype) {
  const auto elements = [&](const Blocks& blocks) {
    return std::accumulate(blocks.bytes.begin(), blocks.bytes.end(), uint64_t{0}) /
           dtype_bytes(dtype);
  };
  comm::CallShape shape{plan::Op::kAllToAll, false, dtype};
  shape.count = shape.send_count = elements(out);
  shape.recv_count = elements(in);
  shape.bytes = shape.send_count * dtype_bytes(dtype);
  return shape;
}

Buffer buffer_of(const char* name, sys::DevicePtr memory, uint64_t bytes) {
  return {name, sys::pointer_to<void>(memory), bytes};
}

}  // namespace

Status exchange_blocks(comm::Device& device, const Blocks& sent, const Blocks& received,
                       Dtype dtype, sys::Stream stream) {
  Blocks out = sent, in = received;
  const auto own = static_cast<size_t>(device.rank());
  if (out.at[own] == in.at[own] && out.bytes[own] == in.bytes[own])
    out.bytes[own] = in.bytes[own] = 0;  // it is in its place
  Call call(device, stream, shape_of(out, in, dtype));
  BRAID_RETURN_IF_ERROR(call.begin());
  if (device.size() == 1) {
    if (out.bytes[0] != in.bytes[0])
      return invalid_argument("all_to_all: this rank sends itself {} bytes and expects {}",
                              out.bytes[0], in.bytes[0]);
    BRAID_RETURN_IF_ERROR(device.copy(stream, in.at[0], out.at[0], in.bytes[0]));
    return call.end();
  }
  BRAID_RETURN_IF_ERROR(UnevenExchange(device, out, in, dtype).run(call, stream));
  return call.end();
}

Status all_to_all_v(comm::Device& device, sys::DevicePtr send,
                    std::span<const uint64_t> send_counts, sys::DevicePtr recv,
                    std::span<const uint64_t> recv_counts, Dtype dtype, sys::Stream stream) {
  const int n = device.size();
  BRAID_ASSIGN_OR_RETURN(const uint64_t send_bytes,
                         blocks_bytes("send_counts", send_counts, n, dtype));
  BRAID_ASSIGN_OR_RETURN(const uint64_t recv_bytes,
                         blocks_bytes("recv_counts", recv_counts, n, dtype));
  BRAID_RETURN_IF_ERROR(
      check_disjoint(buffer_of("send", send, send_bytes), buffer_of("recv", recv, recv_bytes))
          .with_context("all_to_all"));
  return exchange_blocks(device, blocks_of(send, send_counts, dtype),
                         blocks_of(recv, recv_counts, dtype), dtype, stream);
}

}  // namespace braid::coll::device
