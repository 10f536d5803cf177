#include "coll/nodes/stages.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "coll/device/casts.h"
#include "coll/device/collectives.h"
#include "coll/device/sums.h"
#include "coll/nodes/schedule.h"
#include "coll/reduce/casts.h"

namespace braid::coll::nodes {

namespace {

using sys::DevicePtr;
using sys::Stream;

constexpr uint64_t kPieceUnit = 512;  // keeps pieces aligned for every type
// All ranks' blocks of an all_gather that is one of the rail's and a few kernels.
constexpr uint64_t kSmallBytes = 1 << 20;

/// What an average adds for ranks whose operands are in others' partials: what changes no sum. Of
/// floats that is -0, for x + 0 would lose the sign of x = -0.
constexpr uint64_t kNumNothings = 5;
constexpr uint64_t nothing_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat8E4m3:
    case Dtype::kFloat8E5m2: return 1;
    case Dtype::kFloat16:
    case Dtype::kBfloat16: return 2;
    case Dtype::kFloat32: return 3;
    case Dtype::kFloat64: return 4;
    default: return 0;
  }
}
constexpr uint64_t nothing_bytes(uint64_t kind) {
  return kind == 0 ? 8 : uint64_t{1} << (kind - 1);
}

// Its last byte has the sign. What is there is copied behind itself until all is full.
void repeat_minus_zero(std::span<std::byte> pattern, uint64_t value_bytes) {
  std::fill_n(pattern.begin(), value_bytes, std::byte{0});
  pattern[value_bytes - 1] = std::byte{0x80};
  for (uint64_t done = value_bytes; done < pattern.size(); done *= 2)
    std::memcpy(pattern.data() + done, pattern.data(), std::min(done, pattern.size() - done));
}

uint64_t in_units(uint64_t bytes, uint64_t most) {
  return std::max(std::min(bytes, most) / kPieceUnit, uint64_t{1}) * kPieceUnit;
}

// An average is a sum until its last step.
RedOp partial_op(RedOp op) { return op == RedOp::kAvg ? RedOp::kSum : op; }

}  // namespace

StageScratch scratch_of(const fabric::NodeMap& map, const StageTerms& terms) {
  const auto nodes = static_cast<uint64_t>(map.num_nodes),
             local = static_cast<uint64_t>(map.per_node);
  const uint64_t most = terms.most_scratch_bytes;
  const uint64_t nothings = Stages::has_average(map) ? kNumNothings : 0;
  StageScratch sizes{local + 1 + 4 * (nodes - 1), 0, 0, 0};
  sizes.nothing_bytes = in_units(most / (sizes.num_pieces + nothings), terms.most_nothing_bytes);
  const uint64_t beside = nothings * sizes.nothing_bytes;
  sizes.piece_bytes =
      in_units((most - std::min(most, beside)) / sizes.num_pieces, terms.most_piece_bytes);
  sizes.bytes = sizes.num_pieces * sizes.piece_bytes + beside;
  return sizes;
}

bool Stages::has_average(const fabric::NodeMap& map) { return map.size() <= kMostReduceArrays; }

Result<std::unique_ptr<Stages>> Stages::make(comm::Device& device, Rail& rail,
                                             const fabric::NodeMap& map, int node,
                                             const StageTerms& terms) {
  if (!map.has_stages() || map.per_node != device.size() || map.num_nodes > kMostReduceArrays)
    return unsupported("stages over {} nodes of {} ranks, here {}", map.num_nodes, map.per_node,
                       device.size());
  std::unique_ptr<Stages> made(new Stages(device, rail, map, node, terms));
  if (terms.is_exact) BRAID_RETURN_IF_ERROR(device::load_casts(device));
  BRAID_RETURN_IF_ERROR(made->take_memory());
  return made;
}

Status Stages::take_memory() {
  sys::Cuda& cuda = device_.cuda();
  BRAID_ASSIGN_OR_RETURN(scratch_, sys::own<sys::DeviceMemory>(cuda, cuda.alloc(sizes_.bytes)));
  BRAID_ASSIGN_OR_RETURN(
      stream_, sys::own<sys::OwnedStream>(cuda, cuda.create_stream(sys::StreamPriority::kHigh)));
  for (sys::OwnedEvent* const event :
       {&done_, &to_rail_, &arrived_, &from_rail_[0], &from_rail_[1]}) {
    BRAID_ASSIGN_OR_RETURN(
        *event, sys::own<sys::OwnedEvent>(cuda, cuda.create_event(sys::EventTiming::kOff)));
  }
  return has_average(map_) ? write_nothing() : Status();
}

// From memory of the host that is not pinned, so it is there when the call returns.
Status Stages::write_nothing() {
  std::vector<std::byte> pattern(sizes_.nothing_bytes);
  for (uint64_t kind = 0; kind < kNumNothings; ++kind) {
    if (kind > 0) repeat_minus_zero(pattern, nothing_bytes(kind));
    BRAID_RETURN_IF_ERROR(cuda_.copy(nothing_at(kind), reinterpret_cast<DevicePtr>(pattern.data()),
                                     sizes_.nothing_bytes, stream_.get()));
    BRAID_RETURN_IF_ERROR(cuda_.synchronize(stream_.get()));
  }
  return {};
}

DevicePtr Stages::out_at(size_t half, int node) const {
  const uint64_t step =
      static_cast<uint64_t>((node - node_ + map_.num_nodes) % map_.num_nodes);  // 1 to num_others
  return scratch_at(own_piece() + 2 * half * num_others() + step);
}

DevicePtr Stages::in_at(size_t half, int node) const {
  return out_at(half, node) + num_others() * piece_bytes();
}

// ---- order ----

Status Stages::pass(Stream stream, Stream other, const sys::OwnedEvent& by) {
  if (stream == other) return {};
  BRAID_RETURN_IF_ERROR(cuda_.record(by.get(), stream));
  return cuda_.wait_event(other, by.get());
}

// Calls on different streams use the same scratch. A capture that has become invalid is found here,
// before the rail has anything of the call.
Status Stages::begin(Stream stream) {
  BRAID_RETURN_IF_ERROR(device_.faults().status());
  BRAID_RETURN_IF_ERROR(rail_.error());
  return device_.order().follow(stream);
}

// Who stops amid a call is behind the others on the rail. So an argument that is refused from here on,
// such as memory that was registered, freed and allocated anew, is no error of the kind after which a
// comm goes on.
Status Stages::end(Stream stream, const Status& enqueued) {
  if (enqueued.code() == Code::kInvalidArgument)
    return unavailable("a call over nodes ended amid its steps: {}", enqueued.message());
  BRAID_RETURN_IF_ERROR(enqueued);
  BRAID_RETURN_IF_ERROR(device_.order().end(stream));
  if (device_.order().is_captured()) {  // as the last of the device's calls in it
    has_captures_ = true;
    return {};
  }
  has_last_ = true;
  return cuda_.record(done_.get(), stream);
}

// ---- all_gather ----

Status Stages::all_gather(DevicePtr send, DevicePtr recv, uint64_t count, Dtype dtype,
                          Stream stream) {
  const Gather call{send, recv, count * dtype_bytes(dtype), stream};
  if (call.block_bytes == 0) return {};
  BRAID_RETURN_IF_ERROR(begin(stream));
  const uint64_t all = call.block_bytes * static_cast<uint64_t>(map_.size());
  const uint64_t on_rail = call.block_bytes * static_cast<uint64_t>(map_.num_nodes);
  const bool is_small = all <= kSmallBytes && on_rail <= own_piece() * piece_bytes();
  return end(stream, is_small ? gather_small(call) : gather_long(call));
}

// Bytes, whatever the type: pieces need not end between elements.
Status Stages::gather_inside(DevicePtr send, DevicePtr recv, uint64_t bytes, Stream stream) {
  return device::all_gather(device_, send, recv, bytes, Dtype::kUint8, stream);
}

Status Stages::gather_small(const Gather& call) {
  BRAID_RETURN_IF_ERROR(rail_.all_gather(call.send, scratch_at(0), call.block_bytes, call.stream));
  for (int node = 0; node < map_.num_nodes; ++node) {
    const DevicePtr mine = scratch_at(0) + static_cast<uint64_t>(node) * call.block_bytes;
    BRAID_RETURN_IF_ERROR(gather_inside(mine, call.recv + node_at(node, call.block_bytes),
                                        call.block_bytes, call.stream));
  }
  return {};
}

// The first passage is on its way before the own node's blocks move.
Status Stages::gather_long(const Gather& call) {
  const Stream rail = rail_stream(call.stream);
  BRAID_RETURN_IF_ERROR(pass(call.stream, rail, to_rail_));
  bool has_spread_own = false;
  for (int step = 1; step < map_.num_nodes; ++step) {
    const int to = map_.node_of(rail_to(map_, me(), step));
    const int source = rail_from(map_, me(), step);
    const DevicePtr place = call.recv + static_cast<uint64_t>(source) * call.block_bytes;
    for (uint64_t at = 0; at < call.block_bytes; at += piece_bytes()) {
      const uint64_t bytes = std::min(piece_bytes(), call.block_bytes - at);
      const int from = map_.node_of(source);
      BRAID_RETURN_IF_ERROR(
          rail_.exchange({call.send + at, bytes, to, place + at, bytes, from}, rail));
      if (!has_spread_own) BRAID_RETURN_IF_ERROR(spread_own(call));
      has_spread_own = true;
      BRAID_RETURN_IF_ERROR(pass(rail, call.stream, arrived_));
      BRAID_RETURN_IF_ERROR(spread(call, from, at, bytes));
    }
  }
  return {};
}

Status Stages::spread_own(const Gather& call) {
  return gather_inside(call.send, call.recv + node_at(node_, call.block_bytes), call.block_bytes,
                       call.stream);
}

/// What came of `node`'s block on this rail, to the rest of this node, and theirs here.
Status Stages::spread(const Gather& call, int node, uint64_t at, uint64_t bytes) {
  const DevicePtr blocks = call.recv + node_at(node, call.block_bytes);
  const auto block_at = [&](int local) {
    return blocks + static_cast<uint64_t>(local) * call.block_bytes;
  };
  if (bytes == call.block_bytes)
    return gather_inside(block_at(device_.rank()), blocks, bytes, call.stream);
  BRAID_RETURN_IF_ERROR(
      gather_inside(block_at(device_.rank()) + at, scratch_at(0), bytes, call.stream));
  std::vector<sys::DeviceCopy> copies;
  for (int local = 0; local < map_.per_node; ++local)
    if (local != device_.rank())
      copies.push_back(
          {block_at(local) + at, scratch_at(0) + static_cast<uint64_t>(local) * bytes, bytes});
  return cuda_.copy_batch(copies, call.stream);
}

// ---- reduce_scatter ----

Status Stages::reduce_scatter(DevicePtr send, DevicePtr recv, uint64_t count, Dtype dtype, RedOp op,
                              Stream stream) {
  if (op == RedOp::kAvg && !has_average(map_))
    return unsupported("an average among {} ranks of several nodes", map_.size());
  if (count == 0) return {};
  const Dtype wire = terms_.is_exact && rounds_partials(dtype, op) ? Dtype::kFloat32 : dtype;
  const Sum call{send, recv, count, dtype, op, stream, wire};
  BRAID_RETURN_IF_ERROR(begin(stream));
  return end(stream, sum_by_pieces(call));
}

Status Stages::sum_by_pieces(const Sum& call) {
  const uint64_t per_piece = piece_bytes() / dtype_bytes(call.wire);
  const uint64_t pieces = (call.count + per_piece - 1) / per_piece;
  for (uint64_t number = 0; number < pieces; ++number) {
    BRAID_RETURN_IF_ERROR(send_partials(call, piece_of(call, number)));
    if (number > 0) BRAID_RETURN_IF_ERROR(add_partials(call, piece_of(call, number - 1)));
  }
  return add_partials(call, piece_of(call, pieces - 1));
}

Stages::Piece Stages::piece_of(const Sum& call, uint64_t number) const {
  const uint64_t per_piece = piece_bytes() / dtype_bytes(call.wire);
  const uint64_t begin = number * per_piece;
  return {begin, std::min(per_piece, call.count - begin), number % 2};
}

/// A piece of this rank's operands for the ranks of `node`, one behind the other at the scratch's
/// begin, as partials are.
Status Stages::take_operands(const Sum& call, const Piece& piece, int node) {
  const uint64_t element = dtype_bytes(call.dtype), block = call.count * element;
  const DevicePtr from = call.send + node_at(node, block) + piece.begin * element;
  std::vector<sys::DeviceCopy> copies;
  std::vector<device::ArrayCast> casts;
  for (int local = 0; local < map_.per_node; ++local) {
    const auto l = static_cast<uint64_t>(local);
    const DevicePtr to = scratch_at(0) + l * call.wire_bytes(piece.count);
    if (call.is_wide())
      casts.push_back({from + l * block, to});
    else
      copies.push_back({to, from + l * block, piece.count * element});
  }
  if (call.is_wide()) return device::widen(device_, call.stream, casts, piece.count, call.dtype);
  return cuda_.copy_batch(copies, call.stream);
}

/// This node's sum of a piece of the block of `node` that is on this rail.
Status Stages::reduce_inside(const Sum& call, const Piece& piece, int node, DevicePtr to) {
  DevicePtr from = call.send + node_at(node, call.count * dtype_bytes(call.dtype));
  if (piece.count < call.count || call.is_wide()) {
    BRAID_RETURN_IF_ERROR(take_operands(call, piece, node));
    from = scratch_at(0);
  }
  return device::reduce_scatter(device_, from, to, piece.count, call.wire, partial_op(call.op),
                                call.stream);
}

// A half is used again two pieces later: by then the caller's stream has waited for its passages.
Status Stages::send_partials(const Sum& call, const Piece& piece) {
  const Stream rail = rail_stream(call.stream);
  const uint64_t bytes = call.wire_bytes(piece.count);
  for (int step = 1; step < map_.num_nodes; ++step) {
    const int to = reduced_node(map_, me(), step - 1);
    const int from = map_.node_of(rail_from(map_, me(), step));
    BRAID_RETURN_IF_ERROR(reduce_inside(call, piece, to, out_at(piece.half, to)));
    BRAID_RETURN_IF_ERROR(pass(call.stream, rail, to_rail_));
    BRAID_RETURN_IF_ERROR(rail_.exchange(
        {out_at(piece.half, to), bytes, to, in_at(piece.half, from), bytes, from}, rail));
  }
  return rail == call.stream ? Status() : cuda_.record(from_rail_[piece.half].get(), rail);
}

Status Stages::add_partials(const Sum& call, const Piece& piece) {
  BRAID_RETURN_IF_ERROR(reduce_inside(call, piece, node_, scratch_at(own_piece())));
  if (!terms_.is_on_one_stream)
    BRAID_RETURN_IF_ERROR(cuda_.wait_event(call.stream, from_rail_[piece.half].get()));
  const DevicePtr result = call.recv + piece.begin * dtype_bytes(call.dtype);
  const DevicePtr to = call.is_wide() ? scratch_at(own_piece()) : result;  // a source of its own
  BRAID_RETURN_IF_ERROR(add(call, piece, to));
  if (!call.is_wide()) return {};
  const device::ArrayCast last{to, result};
  return device::narrow(device_, call.stream, {&last, 1}, piece.count, call.dtype);
}

/// The partials of all nodes. An average goes by as much as there is of what it adds beside them.
Status Stages::add(const Sum& call, const Piece& piece, DevicePtr to) {
  const bool has_nothings = call.op == RedOp::kAvg && map_.num_nodes < map_.size();
  const uint64_t step = has_nothings ? sizes_.nothing_bytes / dtype_bytes(call.wire) : piece.count;
  for (uint64_t at = 0; at < piece.count; at += step) {
    std::array<DevicePtr, nvlink::kMostRanks> sources{};
    static_assert(sources.size() >= kMostReduceArrays);
    int num = 0;
    for (int node = 0; node < map_.num_nodes; ++node)
      sources[static_cast<size_t>(num++)] =
          (node == node_ ? scratch_at(own_piece()) : in_at(piece.half, node)) + call.wire_bytes(at);
    while (has_nothings && num < map_.size())
      sources[static_cast<size_t>(num++)] = nothing_at(nothing_of(call.wire));
    const uint64_t count = std::min(step, piece.count - at);
    BRAID_RETURN_IF_ERROR(
        device::sum(device_, call.stream,
                    device::one_destination(sources, num, to + call.wire_bytes(at), count),
                    {call.wire, call.op, device::last_sum_blocks(device_)}));
  }
  return {};
}

// ---- the rest ----

Status Stages::barrier(Stream stream) {
  BRAID_RETURN_IF_ERROR(begin(stream));
  return end(stream, meet(stream));
}

Status Stages::meet(Stream stream) {
  constexpr uint64_t kWord = 8;
  BRAID_RETURN_IF_ERROR(device::barrier(device_, stream));
  BRAID_RETURN_IF_ERROR(rail_.all_gather(scratch_at(own_piece()), scratch_at(0), kWord, stream));
  return device::barrier(device_, stream);
}

Status Stages::warm_up() {
  constexpr uint64_t kBytes = 64;
  for (int step = 1; step < map_.num_nodes; ++step) {
    const int to = map_.node_of(rail_to(map_, me(), step));
    const int from = map_.node_of(rail_from(map_, me(), step));
    BRAID_RETURN_IF_ERROR(rail_.exchange(
        {scratch_at(own_piece()), kBytes, to, in_at(0, from), kBytes, from}, stream_.get()));
  }
  return rail_.all_gather(scratch_at(own_piece()), scratch_at(0), 8, stream_.get());
}

bool Stages::is_finished() {
  const auto is_so = [](const Result<bool>& found) { return found.ok() && found.value(); };
  if (has_captures_ && !is_so(is_idle())) return false;
  return !has_last_ || is_so(cuda_.is_done(done_.get()));
}

Result<bool> Stages::is_idle() { return cuda_.is_done(stream_.get()); }

}  // namespace braid::coll::nodes
