// broadcast on the device. Among two ranks the root pushes. Among more it would have to send every
// byte to every rank; so it sends every byte to one, who passes it on. Into registered memory a
// kernel relays it (coll/relay). Elsewhere direct kernels in a row do the same through their area,
// each with a part of the message (coll/direct). Both have the host link beside them, which lands
// where results belong, registered or not. Where pushes are held to a rate, or there is no area,
// the buffer is cut into stages, a stage into a slice for each of the others, and every one of them
// passes its slices on to the rest by its copy engines:
//
//   root     push stream    slice j of stage 0 to rank j, of stage 1, ...
//            side stream                            tell 0          tell 1 ...
//   others   side stream                            hear 0          hear 1 ...
//            push stream                             slice of stage 0 to the rest, of stage 1 ...
//
// so that nobody sends a byte more than once. The root tells (half a barrier) and goes on; nobody
// waits for the slowest at every stage. Passing a stage on takes a rank (others - 1) / others of
// the time that the root had for it: stages shrink by that factor, and only the last, small one's
// is exposed. Where the buffer is not registered everything lands in scratch, a segment at a time,
// and is copied out at its end. A root whose result has a place of its own copies it there
// meanwhile.
#include <algorithm>

#include "base/rounding.h"
#include "coll/arguments.h"
#include "coll/device/call.h"
#include "coll/device/collectives.h"
#include "coll/device/copy_engine_puts.h"
#include "coll/device/direct.h"
#include "coll/device/relay.h"
#include "coll/device/rounds.h"
#include "coll/device/route.h"
#include "coll/device/sums.h"

namespace braid::coll::device {

namespace {

constexpr int kStepsChannel = 0;
constexpr int kPieceLandedChannel = 1;
constexpr int kStagesChannel = 2;  // sees half barriers only
constexpr uint64_t kPiece = 32 << 20;
constexpr uint64_t kSmallSlice = 4 << 20;  // a copy below it pays more for its start than it hides

class Broadcast {
 public:
  Broadcast(comm::Device& device, sys::Stream stream, const CollectiveCall& what,
            const Route& route, uint64_t signature)
      : device_(device),
        stream_(stream),
        puts_(device, stream),
        what_(what),
        route_(route),
        signature_(signature),
        others_(static_cast<uint64_t>(device.size() - 1)) {}

  Status run_segment(sys::DevicePtr buf, uint64_t begin, uint64_t bytes) {
    const Cut cut = cut_of(device_, plan::Op::kBroadcast, bytes);
    buf_ = buf + begin;
    begin_ = begin;
    bytes_ = cut.base_of(bytes);
    BRAID_RETURN_IF_ERROR(device_.barriers().all(stream_, kStepsChannel, signature_));
    BRAID_RETURN_IF_ERROR(device_.links().note(comm::CallStage::kStart, stream_));
    BRAID_RETURN_IF_ERROR(start_beside(cut));
    const bool relays = is_registered() && can_relay(device_);
    BRAID_RETURN_IF_ERROR(relays ? relay() : route_.num_pieces > 0 ? run_pieces() : push());
    BRAID_RETURN_IF_ERROR(device_.links().note(comm::CallStage::kBaseDone, stream_));
    for (const auto& link : device_.links().beside())
      if (cut.beside[link->index()] > 0)
        BRAID_RETURN_IF_ERROR(device_.order().after(stream_, link->stream()));
    return is_registered() && !relays ? device_.barriers().all(stream_, kStepsChannel, signature_)
                                      : Status();
  }

 private:
  bool is_registered() const { return route_.landing.window != nullptr; }
  bool is_root() const { return device_.rank() == what_.root; }
  int other(uint64_t index) const {  // ranks but the root, beginning behind it
    return (what_.root + 1 + static_cast<int>(index)) % device_.size();
  }
  sys::DevicePtr place(int rank) const {
    return is_registered() ? route_.landing.at(rank) + begin_ : device_.arena().scratch().at(rank);
  }
  /// Slice `index` of the stage that begins at `stage`, all slices being of `slice` bytes.
  void add(int peer, sys::DevicePtr from, uint64_t stage, uint64_t slice, uint64_t index) {
    const uint64_t at = std::min(stage + index * slice, bytes_);
    puts_.add(peer, place(peer) + at, from + at, std::min(slice, bytes_ - at));
  }
  // What others read the root writes to a link once.
  comm::LinkPart from_root(sys::DevicePtr at, uint64_t bytes) const {
    Addresses destinations{};
    if (!is_root()) destinations[static_cast<size_t>(what_.root)] = at;
    return all_to_everyone(device_, is_root() ? at : 0, destinations, bytes);
  }
  /// The segment's end, over the other links.
  Status start_beside(const Cut& cut) {
    uint64_t begin = bytes_;
    for (const auto& link : device_.links().beside()) {
      const uint64_t bytes = cut.beside[link->index()];
      if (bytes == 0) continue;
      BRAID_RETURN_IF_ERROR(device_.order().after(link->stream(), stream_));
      BRAID_RETURN_IF_ERROR(link->enqueue(from_root(buf_ + begin, bytes), link->stream()));
      BRAID_RETURN_IF_ERROR(link->note_done());
      begin += bytes;
    }
    return {};
  }
  Status relay() {
    return run_relay(device_, stream_, {what_.root, bytes_, buf_, route_.landing, begin_});
  }
  Status run_pieces() {
    if (bytes_ == 0) return {};
    device_.call_watch().took("direct");
    device_.call_watch().sends(comm::CallWatch::kBaseLink,
                               relayed_bytes(device_, what_.root, bytes_));
    CollectiveCall base = what_;
    base.send = base.recv = buf_;
    base.bytes = bytes_;
    return run_direct_pieces(device_, stream_, base,
                             num_direct_pieces(device_, plan::Op::kBroadcast, bytes_));
  }
  Status push() {
    BRAID_RETURN_IF_ERROR(puts_.begin());
    BRAID_RETURN_IF_ERROR(run_stages());
    BRAID_RETURN_IF_ERROR(puts_.join(stream_));
    return device_.order().after(stream_, device_.order().side(comm::CallOrder::kCopies));
  }
  Status run_stages() {
    const sys::Stream side = device_.order().side(comm::CallOrder::kSums);
    BRAID_RETURN_IF_ERROR(device_.order().after(side, stream_));
    BRAID_RETURN_IF_ERROR(
        device_.order().after(device_.order().side(comm::CallOrder::kCopies), stream_));
    uint64_t slice = 0;
    for (uint64_t stage = 0; stage < bytes_; stage += slice * others_) {
      slice = slice_bytes(bytes_ - stage);
      if (is_root()) BRAID_RETURN_IF_ERROR(scatter(stage, slice));
      if (others_ > 1) BRAID_RETURN_IF_ERROR(hand_on(side, stage, slice));
      if (!is_registered()) BRAID_RETURN_IF_ERROR(copy_out(stage, slice * others_));
    }
    return device_.order().after(stream_, side);
  }
  /// Of the next stage. Two ranks have nothing to pass on, and take pieces only to copy them out.
  uint64_t slice_bytes(uint64_t left) const {
    if (others_ == 1) return is_registered() ? left : next_piece_bytes(left, kPiece);
    const uint64_t most = divided_up(left, others_);
    return round_up(std::min(std::max(most / others_, kSmallSlice), most), kUnit);
  }
  Status hand_on(sys::Stream side, uint64_t stage, uint64_t slice) {
    if (is_root()) BRAID_RETURN_IF_ERROR(puts_.join(side));
    BRAID_RETURN_IF_ERROR(device_.barriers().step(side, kStagesChannel, what_.root));
    return is_root() ? Status() : pass_on(side, stage, slice);
  }
  Status copy_out(uint64_t stage, uint64_t bytes) {
    const sys::Stream copies = device_.order().side(comm::CallOrder::kCopies);
    BRAID_RETURN_IF_ERROR(puts_.join(copies));
    BRAID_RETURN_IF_ERROR(device_.barriers().all(copies, kPieceLandedChannel, signature_));
    if (is_root()) return {};
    return device_.copy(copies, buf_ + stage, place(device_.rank()) + stage,
                        std::min(bytes, bytes_ - stage));
  }
  Status scatter(uint64_t stage, uint64_t slice) {
    for (uint64_t i = 0; i < others_; ++i) add(other(i), buf_, stage, slice, i);
    return puts_.send();
  }
  Status pass_on(sys::Stream side, uint64_t stage, uint64_t slice) {
    BRAID_ASSIGN_OR_RETURN(const sys::Event landed, device_.order().mark(side));
    BRAID_RETURN_IF_ERROR(puts_.wait(landed));
    const auto own =
        static_cast<uint64_t>((device_.rank() - what_.root - 1 + device_.size()) % device_.size());
    for (uint64_t i = 1; i < others_; ++i)
      add(other((own + i) % others_), place(device_.rank()), stage, slice, own);
    return puts_.send();
  }

  comm::Device& device_;
  const sys::Stream stream_;
  CopyEnginePuts puts_;
  const CollectiveCall what_;
  const Route route_;
  const uint64_t signature_;
  const uint64_t others_;
  sys::DevicePtr buf_ = 0;
  uint64_t begin_ = 0, bytes_ = 0;
};

/// A copy engine would serve it and the pushes by turns: a broadcast of 1 GiB took 3,266 us so, and
/// 2,812 in place (2 H200). So it is a sum of one operand, by a few blocks.
Status copy_beside_pushes(comm::Device& device, sys::Stream stream, sys::DevicePtr to,
                          sys::DevicePtr from, uint64_t bytes) {
  constexpr uint64_t kBlocks = 16;
  if ((to ^ from) % 16 != 0) return device.copy(stream, to, from, bytes);
  return sum(device, stream, one_destination({from}, 1, to, bytes),
             {Dtype::kUint8, RedOp::kMax, kBlocks});
}

/// In segments of the scratch; in one where nothing goes through it.
Status by_links(comm::Device& device, sys::Stream stream, const CollectiveCall& what,
                const Route& route) {
  const bool uses_scratch = route.landing.window == nullptr && route.num_pieces == 0;
  const uint64_t segment = uses_scratch ? device.arena().scratch_bytes() / kUnit * kUnit
                                        : std::max<uint64_t>(what.bytes, 1);
  BRAID_ASSIGN_OR_RETURN(const Cut cut,
                         counted_cut(device, what.op, std::min(segment, what.bytes)));
  Broadcast run(device, stream, what, route, signature_of(what, route.landing, cut));
  for (uint64_t begin = 0; begin == 0 || begin < what.bytes; begin += segment)
    BRAID_RETURN_IF_ERROR(run.run_segment(what.send, begin, std::min(segment, what.bytes - begin)));
  return {};
}

}  // namespace

Status broadcast(comm::Device& device, sys::DevicePtr send, sys::DevicePtr recv, uint64_t count,
                 Dtype dtype, int root, sys::Stream stream) {
  BRAID_RETURN_IF_ERROR(check_root(root, device.size()));
  const uint64_t bytes = count * dtype_bytes(dtype);
  const bool is_root = device.rank() == root;
  const sys::DevicePtr buf = is_root ? send : recv;
  const CollectiveCall what{plan::Op::kBroadcast, buf, recv, bytes, dtype, RedOp::kSum, root};
  Call call(device, stream, shape_of(what));
  BRAID_RETURN_IF_ERROR(call.begin());
  // Before anything is enqueued: it may be refused.
  BRAID_ASSIGN_OR_RETURN(const Route route, choose_route(device, what));
  if (is_root && send != recv && bytes > 0 && !route.is_by_threads()) {  // those copy it themselves
    BRAID_ASSIGN_OR_RETURN(const sys::Stream own, call.fork(comm::CallOrder::kOwn));
    BRAID_RETURN_IF_ERROR(copy_beside_pushes(device, own, recv, send, bytes));
  }
  if (device.size() == 1) return call.end();
  if (route.is_by_kernels()) {
    CollectiveCall kernel = what;
    if (!route.is_by_threads()) kernel.recv = buf;
    BRAID_RETURN_IF_ERROR(run_kernels(device, stream, kernel, route));
    return call.end();
  }
  BRAID_RETURN_IF_ERROR(by_links(device, stream, what, route));
  return call.end();
}

Status barrier(comm::Device& device, sys::Stream stream) {
  Call call(device, stream, {plan::Op::kBroadcast, true});
  BRAID_RETURN_IF_ERROR(call.begin());
  const CollectiveCall what{plan::Op::kBroadcast, 0, 0, 0, Dtype::kInt8, RedOp::kAvg};
  BRAID_RETURN_IF_ERROR(device.barriers().all(stream, kStepsChannel, signature_of(what, {}, {})));
  return call.end();
}

}  // namespace braid::coll::device
