// all_reduce on the device by copy engines, in segments (segments.h). Of a segment every rank owns
// one slice, which it sums:
//
//   caller's stream  barrier                                                          barrier
//   push stream      operands 0   operands 1   results 0   operands 2   results 1 ...
//   sums' stream                barrier, sum 0    barrier, sum 1    ...
//   copies' stream                                       barrier, out 0   ...
//
// so that a sum runs while the copy engines carry the next segment's operands and the results of
// the one before. The last segment, often the only one, is cut into pieces in the same way, and
// only the last piece's sum is exposed. The end of a segment goes over a link beside NVLink, on a stream
// of its own; among three ranks or more, where that is little, the first results of every slice
// instead. Results go straight into peers' registered memory; otherwise into their scratch, from
// where they are copied out when everyone's have landed.
//
// Why nothing is overwritten in the scratch. Operands of segment k lie where those of k - 2 did:
// the barrier before sum k - 1 says that everyone has made sum k - 2, and the push of operands k
// waits for it. Results of all segments lie in one place: a barrier after out k - 1 says that
// everyone has taken them out, and the push of results k waits for that; between them lie the
// operands of k + 1, so it waits for nothing. What the link beside brings is written by this rank's
// own ring, one segment after the other.
//
// A call right behind another one that ended in a barrier pushes at once: nobody uses the scratch
// or the ring any longer, and peers' results are written only behind the sums' barriers. That all
// ranks mean this call is then found beside the first push, before anything is summed.
#include <algorithm>

#include "base/rounding.h"
#include "coll/device/call.h"
#include "coll/device/collectives.h"
#include "coll/device/copy_engine_puts.h"
#include "coll/device/rounds.h"
#include "coll/device/route.h"
#include "coll/device/segments.h"
#include "coll/device/sums.h"

namespace braid::coll::device {

namespace {

using all_reduce_cut::place_of;
using all_reduce_cut::Segments;
using all_reduce_cut::Slices;
using all_reduce_cut::slices_of;
using all_reduce_cut::Span;

static_assert(all_reduce_cut::kLineBytes == kUnit);  // what goes over a link beside is cut by it

constexpr int kCallChannel = 0;
constexpr int kSumsChannel = 1;
constexpr int kResultsChannel = 3;
// A sum has twice as long as one of reduce_scatter. Among two it has the fewest operands, and the
// least time for them: of two pieces it takes 0.75 of their copy's time by 24 blocks, 1.1 by 16.
constexpr uint64_t kLastingBlocks = 16, kLastingBlocksOfTwo = 24;
constexpr uint64_t kBlocksBesideResults = 12;  // and the ring's four: 16 in all
// The ring stands still meanwhile: 256 MiB on 2 H200 took 679 us with 8 blocks, 676 with 16.
constexpr uint64_t kMostBesideBlocks = 32;
constexpr uint64_t kBytesOfBesideBlock = 1 << 20;

/// One call. A segment begins with its operands and their sums, and ends with its results.
class AllReduce {
 public:
  AllReduce(comm::Device& device, sys::Stream stream, Dtype dtype, RedOp op,
            comm::SymmetricAddress landing, uint64_t signature)
      : device_(device),
        stream_(stream),
        puts_(device, stream),
        sums_(device.order().side(comm::CallOrder::kSums)),
        copies_(device.order().side(comm::CallOrder::kCopies)),
        link_(device.links().for_sums()),
        dtype_(dtype),
        op_(op),
        landing_(landing),
        signature_(signature),
        n_(static_cast<uint64_t>(device.size())) {}

  Status run(sys::DevicePtr send, sys::DevicePtr recv, const Segments& segments, bool uses_link) {
    send_ = send;
    recv_ = recv;
    segments_ = segments;
    if (!device_.order().is_settled())
      BRAID_RETURN_IF_ERROR(device_.barriers().all(stream_, kCallChannel, signature_));
    BRAID_RETURN_IF_ERROR(device_.order().after(sums_, stream_));
    if (device_.order().is_settled())
      BRAID_RETURN_IF_ERROR(device_.barriers().all(sums_, kCallChannel, signature_));
    // Behind the barrier: what a rank that comes late keeps the others waiting is no link's time.
    BRAID_RETURN_IF_ERROR(device_.links().note(comm::CallStage::kStart,
                                               device_.order().is_settled() ? sums_ : stream_));
    uses_link_ = uses_link;
    if (uses_link_) BRAID_RETURN_IF_ERROR(device_.order().after(link_->stream(), stream_));
    BRAID_RETURN_IF_ERROR(puts_.begin());
    for (uint64_t k = 0; k < segments.count; ++k) {
      BRAID_RETURN_IF_ERROR(begin_segment(k));
      if (k > 0) BRAID_RETURN_IF_ERROR(end_segment(k - 1));
    }
    BRAID_RETURN_IF_ERROR(end_segment(segments.count - 1));
    return join();
  }

 private:
  /// A segment that has begun and not ended.
  struct Segment {
    uint64_t begin = 0;           // in the message
    Slices slices{};              // of what goes over NVLink
    uint64_t beside_bytes = 0;    // behind it: over the link beside, as operands and as results
    uint64_t beside_results = 0;  // of every slice: the bytes whose results go over the link
    uint64_t operands_at = 0;     // in every rank's scratch
    std::array<sys::Event, all_reduce_cut::kMostPieces> summed{};
  };

  bool is_registered() const { return landing_.window != nullptr; }
  Segment& segment(uint64_t k) { return open_[k % open_.size()]; }

  Status begin_segment(uint64_t k) {
    Segment& s = segment(k) = cut(k);
    if (k >= 2) BRAID_RETURN_IF_ERROR(puts_.wait(operands_met_));
    if (s.beside_bytes > 0) BRAID_RETURN_IF_ERROR(run_beside(s));
    for (uint64_t p = 0; p < s.slices.num_pieces(); ++p) {
      const uint64_t at = p * s.slices.piece_bytes;
      BRAID_RETURN_IF_ERROR(push_operands(s, at));
      BRAID_RETURN_IF_ERROR(puts_.join(sums_));
      BRAID_RETURN_IF_ERROR(device_.barriers().all(sums_, kSumsChannel, signature_));
      if (p == 0 && !segments_.is_one()) {
        BRAID_ASSIGN_OR_RETURN(operands_met_, device_.order().mark(sums_));
      }
      BRAID_RETURN_IF_ERROR(sum_piece(s, at));
      BRAID_ASSIGN_OR_RETURN(s.summed[p], device_.order().mark(sums_));
      if (p == 0 && s.beside_results > 0) BRAID_RETURN_IF_ERROR(send_results_beside(s));
    }
    return {};
  }

  Status end_segment(uint64_t k) {
    const Segment& s = segment(k);
    if (k >= 1 && !is_registered()) BRAID_RETURN_IF_ERROR(puts_.wait(taken_out_));
    for (uint64_t p = 0; p < s.slices.num_pieces(); ++p) {
      const uint64_t at = p * s.slices.piece_bytes;
      BRAID_RETURN_IF_ERROR(puts_.wait(s.summed[p]));
      BRAID_RETURN_IF_ERROR(push_results(s, at));
      if (is_registered()) continue;
      BRAID_RETURN_IF_ERROR(puts_.join(copies_));
      BRAID_RETURN_IF_ERROR(device_.barriers().all(copies_, kResultsChannel, signature_));
      BRAID_RETURN_IF_ERROR(copy_out(s, at));
    }
    if (is_registered() || k + 1 == segments_.count) return {};
    BRAID_RETURN_IF_ERROR(device_.barriers().all(copies_, kResultsChannel, signature_));
    BRAID_ASSIGN_OR_RETURN(taken_out_, device_.order().mark(copies_));
    return {};
  }

  Status join() {
    BRAID_RETURN_IF_ERROR(puts_.join(stream_));
    BRAID_RETURN_IF_ERROR(device_.links().note(comm::CallStage::kBaseDone, stream_));
    if (uses_link_) {
      BRAID_RETURN_IF_ERROR(link_->note_done());
      BRAID_RETURN_IF_ERROR(device_.order().after(stream_, link_->stream()));
    }
    if (!is_registered()) return device_.order().after(stream_, copies_);
    BRAID_RETURN_IF_ERROR(device_.barriers().all(stream_, kCallChannel, signature_));
    device_.order().settle();
    return {};
  }

  Segment cut(uint64_t k) const {
    Segment s;
    const uint64_t bytes = segments_.bytes_of(k);
    const uint64_t pieces = k + 1 == segments_.count ? most_pieces() : 1;
    s.begin = segments_.begin_of(k);
    s.operands_at = segments_.operands_at(k);
    s.slices = slices_of(bytes, n_, pieces);
    if (!uses_link_) return s;
    const uint64_t of_slice =
        cut_of(device_, plan::Op::kAllReduce, bytes).beside_bytes() / (kUnit * n_) * kUnit;
    const bool fits =
        of_slice <= s.slices.piece_bytes && (n_ - 1) * s.slices.slice_bytes + of_slice <= bytes;
    if (fits && sends_results_only(device_.size(), of_slice, s.slices.slice_bytes)) {
      s.beside_results = of_slice;
      return s;
    }
    s.beside_bytes = of_slice * n_;
    s.slices = slices_of(bytes - s.beside_bytes, n_, pieces);
    return s;
  }
  uint64_t lasting_blocks() const { return n_ == 2 ? kLastingBlocksOfTwo : kLastingBlocks; }
  uint64_t most_blocks(uint64_t beside_results) const {
    return sum_blocks(device_, segments_.bytes,
                      beside_results > 0 ? kBlocksBesideResults : lasting_blocks());
  }
  uint64_t beside_blocks(const Segment& s) const {
    const uint64_t wanted =
        std::clamp<uint64_t>(s.beside_bytes / kBytesOfBesideBlock, 1, kMostBesideBlocks);
    return device_.gpus().sum_blocks != 0 ? std::min(wanted, device_.gpus().sum_blocks) : wanted;
  }
  uint64_t most_pieces() const {
    const bool sums_keep_up = most_blocks(0) >= lasting_blocks();
    return is_registered() && sums_keep_up ? all_reduce_cut::kLeastPieces
                                           : all_reduce_cut::kMostPieces;
  }
  /// Where `source`'s operands of `owner`'s slice land at the owner.
  sys::DevicePtr operand(const Segment& s, int owner, int source, uint64_t at) const {
    return device_.arena().scratch().at(owner) + s.operands_at +
           place_of(owner, source, device_.size()) * s.slices.slice_bytes + at;
  }
  /// Where `owner`'s results [begin, ...) of the segment land at `rank`.
  sys::DevicePtr result(const Segment& s, int rank, int owner, uint64_t begin) const {
    if (is_registered()) return landing_.at(rank) + s.begin + begin;
    const uint64_t in_slice = begin - static_cast<uint64_t>(owner) * s.slices.slice_bytes;
    return device_.arena().scratch().at(rank) + segments_.results_at() +
           place_of(rank, owner, device_.size()) * s.slices.slice_bytes + in_slice;
  }

  // The same in small: operands to their owners' scratch, the sum, results to everyone. The ring's
  // own counters order its steps among the ranks. (In two parts, of which the ring carried one
  // while the other was summed, it was slower: it takes 25 us to fill.)
  Status run_beside(const Segment& s) {
    const uint64_t slice = s.beside_bytes / n_;
    const auto me = static_cast<size_t>(device_.rank());
    const sys::DevicePtr scratch =
        device_.arena().scratch().at(device_.rank()) + segments_.beside_at;
    Addresses sources{}, operands{}, results{};
    for (size_t r = 0; r < n_; ++r) {
      const uint64_t at = s.begin + s.slices.bytes + r * slice;
      sources[r] = send_ + at;
      operands[r] = scratch + r * slice;
      results[r] = recv_ + at;
    }
    BRAID_RETURN_IF_ERROR(enqueue(each_to_each(device_, sources, operands, slice)));
    operands[me] = sources[me];
    BRAID_RETURN_IF_ERROR(
        sum(device_, link_->stream(),
            one_destination(operands, device_.size(), results[me], slice / dtype_bytes(dtype_)),
            {dtype_, op_, beside_blocks(s)}));
    return enqueue(all_to_everyone(device_, results[me], results, slice));
  }

  Status enqueue(const comm::LinkPart& part) {
    return link_->enqueue(beside_sums(part), link_->stream());
  }
  // The first bytes of every slice's result: the first sum makes them, so that the ring has most of
  // the call's time for them.
  Status send_results_beside(const Segment& s) {
    Addresses results{};
    for (size_t r = 0; r < n_; ++r) results[r] = recv_ + s.begin + r * s.slices.slice_bytes;
    const sys::DevicePtr own = results[static_cast<size_t>(device_.rank())];
    BRAID_RETURN_IF_ERROR(device_.order().wait(link_->stream(), s.summed[0]));
    return enqueue(all_to_everyone(device_, own, results, s.beside_results));
  }
  /// Of a piece of a slice's result: what NVLink carries.
  static Span result_of(const Segment& s, int rank, uint64_t at) {
    const Span all = s.slices.span_of(rank, at);
    const uint64_t host = at == 0 ? std::min(s.beside_results, all.bytes) : 0;
    return {all.begin + host, all.bytes - host};
  }

  Status push_operands(const Segment& s, uint64_t at) {
    for (int step = 1; step < device_.size(); ++step) {
      const int peer = (device_.rank() + step) % device_.size();
      const Span span = s.slices.span_of(peer, at);
      puts_.add(peer, operand(s, peer, device_.rank(), at), send_ + s.begin + span.begin,
                span.bytes);
    }
    return puts_.send();
  }
  Status sum_piece(const Segment& s, uint64_t at) {
    const Span span = s.slices.span_of(device_.rank(), at);
    Addresses operands{};
    for (int r = 0; r < device_.size(); ++r)
      operands[static_cast<size_t>(r)] =
          r == device_.rank() ? send_ + s.begin + span.begin : operand(s, device_.rank(), r, at);
    return sum(device_, sums_,
               one_destination(operands, device_.size(), recv_ + s.begin + span.begin,
                               span.bytes / dtype_bytes(dtype_)),
               {dtype_, op_, most_blocks(s.beside_results)});
  }
  Status push_results(const Segment& s, uint64_t at) {
    const Span span = result_of(s, device_.rank(), at);
    for (int step = 1; step < device_.size(); ++step) {
      const int peer = (device_.rank() + step) % device_.size();
      puts_.add(peer, result(s, peer, device_.rank(), span.begin), recv_ + s.begin + span.begin,
                span.bytes);
    }
    return puts_.send();
  }
  /// The others' results of a piece; our own are in place already.
  Status copy_out(const Segment& s, uint64_t at) {
    for (int step = 1; step < device_.size(); ++step) {
      const int owner = (device_.rank() + step) % device_.size();
      const Span span = result_of(s, owner, at);
      if (span.bytes == 0) continue;
      BRAID_RETURN_IF_ERROR(device_.copy(copies_, recv_ + s.begin + span.begin,
                                         result(s, device_.rank(), owner, span.begin), span.bytes));
    }
    return {};
  }

  comm::Device& device_;
  const sys::Stream stream_;
  CopyEnginePuts puts_;
  const sys::Stream sums_, copies_;
  comm::DeviceLink* const link_;  // that carries parts of sums; null: none
  const Dtype dtype_;
  const RedOp op_;
  const comm::SymmetricAddress landing_;
  const uint64_t signature_;
  const uint64_t n_;
  sys::DevicePtr send_ = 0, recv_ = 0;
  Segments segments_{};
  bool uses_link_ = false;
  std::array<Segment, 2> open_{};
  sys::Event operands_met_{};  // of the last segment that began: after its first barrier
  sys::Event taken_out_{};     // of the last that ended: everyone's results are out of the scratch
};

}  // namespace

Status all_reduce(comm::Device& device, sys::DevicePtr send, sys::DevicePtr recv, uint64_t count,
                  Dtype dtype, RedOp op, sys::Stream stream) {
  const uint64_t bytes = count * dtype_bytes(dtype);
  const CollectiveCall what{plan::Op::kAllReduce, send, recv, bytes, dtype, op};
  return run_call(
      device, stream, what, [&](Call&, const comm::SymmetricAddress& landing) -> Status {
        const Segments segments = segments_of(device, bytes, landing.window != nullptr);
        BRAID_ASSIGN_OR_RETURN(
            const Cut cut, counted_cut(device, what.op, segments.bytes_of(0), {1, segments.count}));
        AllReduce run(device, stream, dtype, op, landing, signature_of(what, landing, cut));
        return run.run(send, recv, segments, cut.beside_bytes() > 0);
      });
}

}  // namespace braid::coll::device
