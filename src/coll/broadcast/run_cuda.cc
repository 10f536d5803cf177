// broadcast on the device. Among two ranks the root pushes. Among more it would have to send every
// byte to every rank; instead the buffer is cut into stages, the root scatters a stage over the
// others, and while it scatters the next, each passes its slice on:
//
//   step t   root: slice j of stage t to rank j        others: own slice of stage t-1 to the others
//
// so that nobody sends a byte more than once. A barrier separates the steps. Where the buffer is
// not registered everything lands in scratch, a segment at a time, and is copied out at its end.
#include <algorithm>

#include "coll/arguments.h"
#include "coll/device/call.h"
#include "coll/device/collectives.h"
#include "coll/device/direct.h"
#include "coll/device/rounds.h"

namespace braid::coll::device {

namespace {

constexpr int kStepsChannel = 0;
constexpr uint64_t kUnit = 256;
constexpr uint64_t kMostStages = 8;
constexpr uint64_t kSmallSlice = 8 << 20;  // a copy below it pays more for its start than it hides

class Broadcast {
 public:
  Broadcast(comm::Device& device, sys::Stream stream, int root, comm::Landing landing,
            uint64_t signature)
      : device_(device),
        stream_(stream),
        root_(root),
        landing_(landing),
        signature_(signature),
        others_(static_cast<uint64_t>(device.size() - 1)) {}

  Status run_segment(sys::DevicePtr buf, uint64_t begin, uint64_t bytes) {
    const uint64_t host = host_part(device_, plan::Op::kBroadcast, bytes);
    buf_ = buf + begin;
    begin_ = begin;
    bytes_ = bytes - host;
    bytes = bytes_;
    const uint64_t stages =
        others_ <= 1 ? 1 : std::clamp<uint64_t>(bytes / (others_ * kSmallSlice), 1, kMostStages);
    slice_ = ((bytes + stages * others_ - 1) / (stages * others_) + kUnit - 1) / kUnit * kUnit;
    const uint64_t num_steps = stages + (others_ > 1 ? 1 : 0);
    for (uint64_t step = 0; step < num_steps; ++step) {
      BRAID_RETURN_IF_ERROR(device_.barrier(stream_, kStepsChannel, signature_));
      if (step == 0 && host > 0) BRAID_RETURN_IF_ERROR(send_host_part(host));
      BRAID_RETURN_IF_ERROR(device_.rank() == root_ ? scatter(step) : pass_on(step));
    }
    if (host > 0) BRAID_RETURN_IF_ERROR(device_.after(stream_, device_.side(comm::Device::kHost)));
    BRAID_RETURN_IF_ERROR(device_.barrier(stream_, kStepsChannel, signature_));
    if (landing_.window != nullptr || device_.rank() == root_) return {};
    return device_.copy(stream_, buf_, place(device_.rank()), bytes_);
  }

 private:
  int other(uint64_t index) const {  // ranks but the root, beginning behind it
    return (root_ + 1 + static_cast<int>(index)) % device_.size();
  }
  sys::DevicePtr place(int rank) const {
    return landing_.window != nullptr ? landing_.at(rank) + begin_ : device_.scratch().at(rank);
  }
  Status push(int peer, sys::DevicePtr from, uint64_t stage, uint64_t index) {
    const uint64_t at = std::min((stage * others_ + index) * slice_, bytes_);
    return device_.copy(stream_, place(peer) + at, from + at, std::min(slice_, bytes_ - at));
  }
  // The segment's end: the root writes it to its ring once, all others read it there.
  Status send_host_part(uint64_t host) {
    const sys::Stream ring = device_.side(comm::Device::kHost);
    const sys::DevicePtr end = buf_ + bytes_;
    Addresses destinations{};
    if (device_.rank() != root_) destinations[static_cast<size_t>(root_)] = end;
    BRAID_RETURN_IF_ERROR(device_.after(ring, stream_));
    return device_.send_over_host(
        ring, all_to_everyone(device_, device_.rank() == root_ ? end : 0, destinations, host));
  }
  Status scatter(uint64_t stage) {
    for (uint64_t i = 0; i < others_; ++i) BRAID_RETURN_IF_ERROR(push(other(i), buf_, stage, i));
    return {};
  }
  Status pass_on(uint64_t step) {
    if (step == 0) return {};
    const auto own =
        static_cast<uint64_t>((device_.rank() - root_ - 1 + device_.size()) % device_.size());
    for (uint64_t i = 1; i < others_; ++i)
      BRAID_RETURN_IF_ERROR(push(other((own + i) % others_), place(device_.rank()), step - 1, own));
    return {};
  }

  comm::Device& device_;
  const sys::Stream stream_;
  const int root_;
  const comm::Landing landing_;
  const uint64_t signature_;
  const uint64_t others_;
  sys::DevicePtr buf_ = 0;
  uint64_t begin_ = 0, bytes_ = 0, slice_ = 0;
};

}  // namespace

Status broadcast(comm::Device& device, sys::DevicePtr buf, uint64_t count, Dtype dtype, int root,
                 sys::Stream stream) {
  BRAID_RETURN_IF_ERROR(check_root(root, device.size()));
  const uint64_t bytes = count * dtype_bytes(dtype);
  Call call(device, stream);
  BRAID_RETURN_IF_ERROR(call.begin());
  if (device.size() == 1) return call.end();
  if (fits_one_kernel(device, PacketOp::kBroadcast, bytes)) {
    BRAID_RETURN_IF_ERROR(run_one_kernel(
        device, stream, {PacketOp::kBroadcast, buf, buf, bytes, Dtype::kUint8, RedOp::kSum, root}));
    return call.end();
  }
  BRAID_ASSIGN_OR_RETURN(const comm::Landing landing, device.find_landing(buf, bytes));
  Broadcast run(device, stream, root, landing,
                signature_of({plan::Op::kBroadcast, dtype, RedOp::kSum, count, root}, landing));
  const uint64_t segment = landing.window != nullptr ? std::max<uint64_t>(bytes, 1)
                                                     : device.scratch_bytes() / kUnit * kUnit;
  for (uint64_t begin = 0; begin == 0 || begin < bytes; begin += segment)
    BRAID_RETURN_IF_ERROR(run.run_segment(buf, begin, std::min(segment, bytes - begin)));
  return call.end();
}

Status barrier(comm::Device& device, sys::Stream stream) {
  Call call(device, stream);
  BRAID_RETURN_IF_ERROR(call.begin());
  BRAID_RETURN_IF_ERROR(device.barrier(
      stream, kStepsChannel, signature_of({plan::Op::kBroadcast, Dtype::kInt8, RedOp::kAvg}, {})));
  return call.end();
}

}  // namespace braid::coll::device
