// What all five collectives on the device have in common: checks, the signature that tells calls
// apart, and how blocks are cut over the links.
#pragma once

#include <array>
#include <cstdint>
#include <numeric>

#include "base/dtype.h"
#include "base/status.h"
#include "coll/device/collective_call.h"
#include "comm/device/device.h"
#include "plan/plan.h"

namespace braid::coll::device {

/// How a block is cut: what the base link carries, then what each of the links beside it does, in
/// their order; multiples of kUnit but for the first.
struct Cut {
  std::array<uint64_t, comm::LinkSet::kMost> beside{};  // by DeviceLink::index()
  uint64_t beside_bytes() const {
    return std::accumulate(beside.begin(), beside.end(), uint64_t{0});
  }
  uint64_t base_of(uint64_t block_bytes) const { return block_bytes - beside_bytes(); }
};

/// Equal on all ranks for one call, different (but for a chance of 2^-64) for different ones, and
/// where ranks would land or cut what is alike at other places: of a call in segments the first's
/// `cut`. Addresses tell nothing but whether a rank works in place, where that matters.
uint64_t signature_of(const CollectiveCall& call, const comm::SymmetricAddress& landing,
                      const Cut& cut, bool is_in_place = false);

/// What two ranks of an uneven exchange mean to send each other: equal on both.
struct PairMeaning {
  plan::Op op;
  Dtype dtype;
  /// From the lower rank to the higher one, and back; and how much of it goes beside NVLink.
  uint64_t there_bytes = 0, back_bytes = 0;
  uint64_t there_beside_bytes = 0, back_beside_bytes = 0;
};
uint64_t signature_of(const PairMeaning& meaning);

/// What an observer is told of a call.
inline comm::CallShape shape_of(const CollectiveCall& call) {
  return {call.op, false, call.dtype, call.redop, call.root, call.count()};
}

/// Begins a call with begin(), ends it with end(); joins the side streams that were used. A call
/// that fails in between still leaves its mark on the stream: what it has enqueued uses the comm's
/// memory, and the comm waits for it before that goes.
class Call {
 public:
  Call(comm::Device& device, sys::Stream stream, const comm::CallShape& shape)
      : device_(device), stream_(stream), shape_(shape) {}
  ~Call() {
    if (!is_open_) return;
    device_.call_watch().end(stream_, false);
    (void)device_.end(stream_);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  Status begin() {
    BRAID_RETURN_IF_ERROR(device_.begin(stream_));
    is_open_ = true;
    const bool is_whole = shape_.send_count + shape_.recv_count > 0;  // blocks that are not equal
    device_.call_watch().begin(is_whole ? shape_ : comm::with_buffers(shape_, device_.size()),
                               stream_, device_.order().is_captured());
    return {};
  }
  /// A side stream that starts after what the caller's stream holds now; joined at the end.
  Result<sys::Stream> fork(comm::CallOrder::Side side);
  /// The same of a link's stream, on which it then moves `part`.
  Status send(comm::DeviceLink& link, const comm::LinkPart& part);
  Status end();

 private:
  comm::Device& device_;
  sys::Stream stream_;
  const comm::CallShape shape_;
  bool is_open_ = false;
  std::array<bool, comm::CallOrder::kNumSides> is_forked_{};
  std::array<bool, comm::LinkSet::kMost> is_link_forked_{};
};

inline constexpr uint64_t kUnit = comm::kCutUnit;

/// What links beside NVLink carry at most: operands of sums wait in a quarter of the scratch, an
/// all-reduce's in an eighth.
uint64_t most_beside_bytes(const comm::Device& device, plan::Op op, uint64_t block_bytes);
/// How a block is cut by the shares that hold; not at all when the message is too small to gain.
/// Depends on nothing that ranks may have differently, such as addresses: all cut their blocks at
/// one place, or the call's signature says that they did not. `used`: of the shares.
Cut cut_of(const comm::Device& device, plan::Op op, uint64_t block_bytes, double used = 1);
/// How a call takes the shares that hold: a part of them; in segments of one size, which run through
/// and are timed as one.
struct Counted {
  double used = 1;
  uint64_t num_segments = 1;
};
/// cut_of() for a call that is to be made, which stage 2 counts: once per call, asked about a block
/// of its first segment.
Result<Cut> counted_cut(comm::Device& device, plan::Op op, uint64_t block_bytes,
                        const Counted& how = {});
/// Of a block of an exchange whose lengths the ranks of a pair alone know: what goes over
/// LinkSet::for_uneven(). Not counted: stage 2 counts calls that all ranks make alike.
uint64_t uneven_part(const comm::Device& device, uint64_t block_bytes, double used);

/// Where the driver copies results out of the scratch the PCIe link stands still meanwhile, so it gets
/// less. 2 H200, an all-gather of 256 MiB that is not registered: 760 us without, 743 with 5 %, 817
/// with the 8 % that a registered one gets.
inline constexpr double kBesideTakeOut = 5. / 8;

/// Whether the link beside NVLink carries so much of an all-reduce's slices as results alone. Among
/// three ranks or more that is faster up to a tenth (4 H200); a link that can carry more, beside a
/// slow NVLink, carries operands too.
constexpr bool sends_results_only(int num_ranks, uint64_t beside_bytes, uint64_t slice_bytes) {
  return num_ranks > 2 && beside_bytes <= slice_bytes / 10;
}

/// A part in which every rank sends its `bytes` at `source` to all, and gets rank r's at
/// destinations[r].
comm::LinkPart all_to_everyone(const comm::Device& device, sys::DevicePtr source,
                               const std::array<sys::DevicePtr, nvlink::kMostRanks>& destinations,
                               uint64_t bytes);
/// A part in which every rank sends `bytes` at sources[r] to rank r.
comm::LinkPart each_to_each(const comm::Device& device,
                            const std::array<sys::DevicePtr, nvlink::kMostRanks>& sources,
                            const std::array<sys::DevicePtr, nvlink::kMostRanks>& destinations,
                            uint64_t bytes);
/// The same for while sums run.
inline comm::LinkPart beside_sums(comm::LinkPart part) {
  part.is_beside_sums = true;
  return part;
}

}  // namespace braid::coll::device
