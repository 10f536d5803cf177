// all_reduce on the device, in segments of what the scratch holds. In a segment every rank owns one
// slice, cut into a few pieces:
//
//   caller's stream  barrier                                                             barrier
//   push stream      operands 0, operands 1, ...            results 0, results 1, ...
//   side stream                  barrier, sum 0     barrier, sum 1 ...
//   copies' stream                                               barrier, out 0   barrier, out 1
//
// so that a sum runs while the copy engines carry the next piece, and only the last sum's tail is
// exposed. The end of a segment goes over the host link, on a stream of its own; among three ranks
// or more, where that is little, the first results of every slice instead. Results go straight into
// peers' registered memory; otherwise into their scratch, from where each piece is copied out when
// everyone's has landed.
#include <algorithm>

#include "base/rounding.h"
#include "coll/device/call.h"
#include "coll/device/collectives.h"
#include "coll/device/direct.h"
#include "coll/device/pushes.h"
#include "coll/device/rounds.h"
#include "coll/device/sums.h"

namespace braid::coll::device {

namespace {

constexpr int kSegmentChannel = 0;
constexpr int kSumsChannel = 1;
constexpr int kResultsChannel = 3;
constexpr uint64_t kSmallPiece = 4 << 20;   // a copy below it pays more for its start than it hides
constexpr uint64_t kLargePiece = 32 << 20;  // two of them, and the last sum hides behind the first
constexpr uint64_t kMostPieces = 3;         // a 256 MiB call on 2 H200: 728 us, 736 with four
constexpr uint64_t kLastingBlocks = 16;     // a sum has twice as long as one of reduce_scatter
constexpr uint64_t kBlocksBesideResults = 12;  // and the ring's four: 16 in all

/// What one half of the scratch holds.
uint64_t segment_bytes(const comm::Device& device) {
  const uint64_t unit = static_cast<uint64_t>(device.size()) * kUnit;
  return device.scratch_bytes() / 2 / unit * unit;
}

/// The scratch: operands of my slice, one slot per source, in its first part; others' results of a
/// segment, laid out as the segment is, in its second.
class AllReduce {
 public:
  AllReduce(comm::Device& device, sys::Stream stream, Dtype dtype, RedOp op, comm::Landing landing,
            uint64_t signature)
      : device_(device),
        stream_(stream),
        pushes_(device, stream),
        sums_(device.side(comm::Device::kSums)),
        copies_(device.side(comm::Device::kCopies)),
        dtype_(dtype),
        op_(op),
        landing_(landing),
        signature_(signature),
        n_(static_cast<uint64_t>(device.size())) {}

  /// All-reduces send[begin, begin + bytes) into recv: the end of it over the host link, all else
  /// over NVLink.
  Status run_segment(sys::DevicePtr send, sys::DevicePtr recv, uint64_t begin, uint64_t bytes) {
    begin_ = begin;
    send_ = send + begin;
    recv_ = recv + begin;
    const uint64_t host = cut(bytes);
    most_blocks_ =
        sum_blocks(device_, bytes, host_results_ > 0 ? kBlocksBesideResults : kLastingBlocks);
    BRAID_RETURN_IF_ERROR(device_.barrier(stream_, kSegmentChannel, signature_));
    BRAID_RETURN_IF_ERROR(device_.note(comm::Moment::kStart, stream_));
    BRAID_RETURN_IF_ERROR(device_.after(sums_, stream_));
    if (host > 0) BRAID_RETURN_IF_ERROR(run_host_part(host));
    BRAID_RETURN_IF_ERROR(pushes_.begin());
    std::array<sys::Event, kMostPieces> summed;
    const uint64_t num_pieces = (slice_ + piece_ - 1) / piece_;
    for (uint64_t p = 0; p < num_pieces; ++p) {
      BRAID_RETURN_IF_ERROR(push_operands(p * piece_));
      BRAID_RETURN_IF_ERROR(pushes_.join(sums_));
      BRAID_RETURN_IF_ERROR(device_.barrier(sums_, kSumsChannel, signature_));
      BRAID_RETURN_IF_ERROR(sum_piece(p * piece_));
      BRAID_ASSIGN_OR_RETURN(summed[p], device_.mark(sums_));
      if (p == 0 && host_results_ > 0) BRAID_RETURN_IF_ERROR(send_results_over_host(summed[0]));
    }
    for (uint64_t p = 0; p < num_pieces; ++p) {
      BRAID_RETURN_IF_ERROR(pushes_.wait(summed[p]));
      BRAID_RETURN_IF_ERROR(push_results(p * piece_));
      if (!is_registered()) BRAID_RETURN_IF_ERROR(copy_out(p * piece_));
    }
    BRAID_RETURN_IF_ERROR(pushes_.join(stream_));
    BRAID_RETURN_IF_ERROR(device_.note(comm::Moment::kNvlinkDone, stream_));
    if (host + host_results_ > 0)
      BRAID_RETURN_IF_ERROR(device_.after(stream_, device_.side(comm::Device::kHost)));
    if (is_registered()) return device_.barrier(stream_, kSegmentChannel, signature_);
    return device_.after(stream_, copies_);
  }

 private:
  bool is_registered() const { return landing_.window != nullptr; }
  static uint64_t num_pieces_of(uint64_t slice_bytes) {
    if (slice_bytes < 2 * kSmallPiece) return 1;
    return std::clamp<uint64_t>(slice_bytes / kLargePiece, 2, kMostPieces);
  }
  /// Returns how many bytes of the segment go over the host link both ways, as operands and as
  /// results. A small part among three ranks or more goes as results only.
  uint64_t cut(uint64_t bytes) {
    const uint64_t of_slice =
        host_part(device_, plan::Op::kAllReduce, bytes) / (kUnit * n_) * kUnit;
    cut_into_slices(bytes);
    const bool fits = of_slice <= piece_ && (n_ - 1) * slice_ + of_slice <= bytes;
    host_results_ = fits && sends_results_only(device_.size(), of_slice, slice_) ? of_slice : 0;
    if (host_results_ == of_slice) return 0;
    cut_into_slices(bytes - of_slice * n_);
    return of_slice * n_;
  }
  void cut_into_slices(uint64_t bytes) {
    bytes_ = bytes;
    slice_ = std::max(round_up(divided_up(bytes, n_), kUnit), kUnit);
    piece_ = round_up(divided_up(slice_, num_pieces_of(slice_)), kUnit);
  }
  struct Span {
    uint64_t begin;  // in the segment
    uint64_t bytes;
  };
  /// Bytes [at, at + piece) of rank's slice, as far as the segment reaches.
  Span span_of(int rank, uint64_t at) const {
    const uint64_t slice_begin = static_cast<uint64_t>(rank) * slice_;
    const uint64_t begin = std::min(slice_begin + at, bytes_);
    const uint64_t end = std::min({slice_begin + at + piece_, slice_begin + slice_, bytes_});
    return {begin, end > begin ? end - begin : 0};
  }
  /// Where `source`'s operands of `owner`'s slice land at the owner.
  sys::DevicePtr operand(int owner, int source, uint64_t at) const {
    return device_.scratch().at(owner) + static_cast<uint64_t>(source) * slice_ + at;
  }
  sys::DevicePtr results(int rank) const {
    return is_registered() ? landing_.at(rank) + begin_
                           : device_.scratch().at(rank) + device_.scratch_bytes() / 2;
  }

  // The same in small: operands to their owners' scratch, behind NVLink's, the sum, results to
  // everyone. The ring's own counters order its steps among the ranks.
  Status run_host_part(uint64_t host) {
    const sys::Stream ring = device_.side(comm::Device::kHost);
    const uint64_t slice = host / n_;
    const auto me = static_cast<size_t>(device_.rank());
    Addresses sources{}, operands{}, results{};
    for (size_t r = 0; r < n_; ++r) {
      sources[r] = send_ + bytes_ + r * slice;
      operands[r] = operand(device_.rank(), device_.size(), 0) + r * slice;
      results[r] = recv_ + bytes_ + r * slice;
    }
    BRAID_RETURN_IF_ERROR(device_.after(ring, stream_));
    BRAID_RETURN_IF_ERROR(
        device_.send_over_host(ring, each_to_each(device_, sources, operands, slice)));
    operands[me] = sources[me];
    BRAID_RETURN_IF_ERROR(
        sum(device_, ring,
            one_destination(operands, device_.size(), results[me], slice / dtype_bytes(dtype_)),
            {dtype_, op_, most_blocks_}));
    BRAID_RETURN_IF_ERROR(
        device_.send_over_host(ring, all_to_everyone(device_, results[me], results, slice)));
    return device_.note(comm::Moment::kHostDone, ring);
  }

  // The first bytes of every slice's result: the first sum makes them, so that the ring has most of
  // the call's time for them.
  Status send_results_over_host(sys::Event summed) {
    const sys::Stream ring = device_.side(comm::Device::kHost);
    Addresses results{};
    for (size_t r = 0; r < n_; ++r) results[r] = recv_ + r * slice_;
    const sys::DevicePtr own = results[static_cast<size_t>(device_.rank())];
    BRAID_RETURN_IF_ERROR(device_.wait(ring, summed));
    pcie::Flows flows = all_to_everyone(device_, own, results, host_results_);
    flows.num_lanes = std::max(flows.num_lanes / 2, 1);  // beside the blocks of sums
    BRAID_RETURN_IF_ERROR(device_.send_over_host(ring, flows));
    return device_.note(comm::Moment::kHostDone, ring);
  }
  /// Of a piece of a slice's result: what NVLink carries.
  Span result_of(int rank, uint64_t at) const {
    const Span all = span_of(rank, at);
    const uint64_t host = at == 0 ? std::min(host_results_, all.bytes) : 0;
    return {all.begin + host, all.bytes - host};
  }

  Status push_operands(uint64_t at) {
    for (int step = 1; step < device_.size(); ++step) {
      const int peer = (device_.rank() + step) % device_.size();
      const Span span = span_of(peer, at);
      pushes_.add(operand(peer, device_.rank(), at), send_ + span.begin, span.bytes);
    }
    return pushes_.send();
  }
  Status sum_piece(uint64_t at) {
    const Span span = span_of(device_.rank(), at);
    Addresses operands{};
    for (int r = 0; r < device_.size(); ++r)
      operands[static_cast<size_t>(r)] = operand(device_.rank(), r, at);
    operands[static_cast<size_t>(device_.rank())] = send_ + span.begin;
    return sum(device_, sums_,
               one_destination(operands, device_.size(), recv_ + span.begin,
                               span.bytes / dtype_bytes(dtype_)),
               {dtype_, op_, most_blocks_});
  }
  Status push_results(uint64_t at) {
    const Span span = result_of(device_.rank(), at);
    for (int step = 1; step < device_.size(); ++step) {
      const int peer = (device_.rank() + step) % device_.size();
      pushes_.add(results(peer) + span.begin, recv_ + span.begin, span.bytes);
    }
    return pushes_.send();
  }
  /// The others' results of a piece; our own are in place already.
  Status copy_out(uint64_t at) {
    BRAID_RETURN_IF_ERROR(pushes_.join(copies_));
    BRAID_RETURN_IF_ERROR(device_.barrier(copies_, kResultsChannel, signature_));
    for (int step = 1; step < device_.size(); ++step) {
      const Span span = result_of((device_.rank() + step) % device_.size(), at);
      BRAID_RETURN_IF_ERROR(device_.copy(copies_, recv_ + span.begin,
                                         results(device_.rank()) + span.begin, span.bytes));
    }
    return {};
  }

  comm::Device& device_;
  const sys::Stream stream_;
  Pushes pushes_;
  const sys::Stream sums_, copies_;
  const Dtype dtype_;
  const RedOp op_;
  const comm::Landing landing_;
  const uint64_t signature_;
  const uint64_t n_;
  sys::DevicePtr send_ = 0, recv_ = 0;  // of the segment
  uint64_t begin_ = 0, bytes_ = 0, slice_ = 0, piece_ = 0, most_blocks_ = 1;
  uint64_t host_results_ = 0;  // of every slice: the bytes whose results go over the host link
};

}  // namespace

Status all_reduce(comm::Device& device, sys::DevicePtr send, sys::DevicePtr recv, uint64_t count,
                  Dtype dtype, RedOp op, sys::Stream stream) {
  const uint64_t bytes = count * dtype_bytes(dtype);
  Call call(device, stream, {plan::Op::kAllReduce, false, dtype, op, 0, count});
  BRAID_RETURN_IF_ERROR(call.begin());
  if (device.size() > 1 && fits_one_kernel(device, PacketOp::kAllReduce, bytes)) {
    BRAID_RETURN_IF_ERROR(
        run_one_kernel(device, stream, {PacketOp::kAllReduce, send, recv, bytes, dtype, op}));
    return call.end();
  }
  BRAID_ASSIGN_OR_RETURN(const comm::Landing landing, device.find_landing(recv, bytes));
  const uint64_t num_pieces = num_direct_pieces(device, PacketOp::kAllReduce, bytes);
  if (landing.window == nullptr && num_pieces > 0) {
    BRAID_RETURN_IF_ERROR(run_direct_pieces(
        device, stream, {PacketOp::kAllReduce, send, recv, bytes, dtype, op}, num_pieces,
        signature_of({plan::Op::kAllReduce, dtype, op, count}, landing)));
    return call.end();
  }
  const uint64_t segment = segment_bytes(device);
  BRAID_ASSIGN_OR_RETURN(const uint64_t host,
                         counted_host_part(device, plan::Op::kAllReduce, std::min(segment, bytes)));
  AllReduce run(device, stream, dtype, op, landing,
                signature_of({plan::Op::kAllReduce, dtype, op, count, 0, false, host}, landing));
  for (uint64_t begin = 0; begin == 0 || begin < bytes; begin += segment)
    BRAID_RETURN_IF_ERROR(run.run_segment(send, recv, begin, std::min(segment, bytes - begin)));
  return call.end();
}

}  // namespace braid::coll::device
