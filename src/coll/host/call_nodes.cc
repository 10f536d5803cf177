// Collectives in two stages: inside each node, and along the rails between nodes. The schedule and
// why it cannot deadlock: coll/nodes/schedule.h.
#include <algorithm>
#include <new>

#include "coll/host/call.h"
#include "coll/nodes/schedule.h"

namespace braid::coll {

using transport::PeerSet;

bool goes_in_stages(const comm::Comm::State& state, const Moves& moves) {
  if (!state.nodes.has_stages()) return false;
  const Signature& s = moves.signature;
  return moves.parts_are_operands || (s.op == plan::Op::kAllGather && s.form != Form::kRooted);
}

void Call::open_sums() {
  const uint64_t bytes = NodeSums::scratch_bytes(state_.nodes, state_.rank(), moves_);
  if (state_.partials_bytes < bytes) {
    state_.partials.reset(new (std::nothrow) std::byte[bytes]);
    state_.partials_bytes = state_.partials ? bytes : 0;
    if (!state_.partials)
      return stop(exhausted("{}: no memory for {} bytes of other nodes' partials",
                            plan::op_name(moves_.signature.op), bytes));
  }
  sums_.emplace(state_.nodes, state_.rank(), moves_, cell_bytes_, state_.partials.get());
}

void Call::queue_staged_moves() {
  const int me = state_.rank();
  // Without memory for sums the call has failed and ends.
  if (moves_.parts_are_operands && sums_) queue_staged_operands();
  if (moves_.mine.bytes == 0) return;
  SendRange own{PieceKind::kData, false, static_cast<uint16_t>(me), 0, 0, moves_.mine};
  queue_block(state_.node_peers, own);
  own.forward = true;
  for (int step = 1; step < state_.nodes.num_nodes; ++step)
    queue_block(PeerSet::only(nodes::rail_to(state_.nodes, me, step)), own);
}

/// Cells of the longest of a node's blocks; the i-th node in the order of sums.
uint64_t Call::rows_of(int i) const {
  uint64_t most = 0;
  for (int local = 0; local < state_.nodes.per_node; ++local) {
    const int block =
        state_.nodes.rank_at(nodes::reduced_node(state_.nodes, state_.rank(), i), local);
    most = std::max(most, num_cells(moves_.parts[static_cast<size_t>(block)].bytes, cell_bytes_));
  }
  return most;
}

void Call::queue_staged_operands() {
  uint64_t rows = 0;
  for (int i = 0; i < state_.nodes.num_nodes; ++i) rows += rows_of(i);
  rows_.reduced = rows - sums_->num_cells_inside();
  queue_operand_rows();
}

// A row is one cell for each of the node's ranks. A partial needs the same row of all of them, and the
// cable has no work before there are some. A rank that put all its operands at once would keep its core
// from the others for so long: with four ranks on a core the cable stood still for the first 7 ms of a
// reduce_scatter of 8 MiB. So none is far ahead of what it has reduced itself, and goes on when its
// peers have.
//
// Why nobody waits for ever: rows have one order on all ranks of a node. Of the row that the slowest
// has come to all have put all rows before, so everybody has reduced those, or will without any more,
// and may put that one.
void Call::queue_operand_rows() {
  constexpr uint64_t kBytesAhead = 128 << 10;
  const uint64_t ahead = std::max<uint64_t>(2, kBytesAhead / cell_bytes_);
  while (rows_.node < state_.nodes.num_nodes && rows_.queued < rows_.reduced + ahead) {
    if (rows_.cell == rows_of(rows_.node)) {
      ++rows_.node;
      rows_.cell = 0;
      continue;
    }
    queue_operand_row();
    ++rows_.cell;
    ++rows_.queued;
  }
}

void Call::queue_operand_row() {
  const fabric::NodeMap& map = state_.nodes;
  const int me = state_.rank();
  for (int step = 1; step < map.per_node; ++step) {
    const int peer = nodes::node_peer(map, me, step);
    const int block = map.rank_at(nodes::reduced_node(map, me, rows_.node), map.local_of(peer));
    const ConstBlock& operand = moves_.parts[static_cast<size_t>(block)];
    if (rows_.cell < num_cells(operand.bytes, cell_bytes_))
      push_cell(PeerSet::only(peer), PieceKind::kOperand, false, block, rows_.cell, operand);
  }
}

// One cell over the link that the cut of its block gives it to.
void Call::push_cell(PeerSet peers, PieceKind kind, bool forward, int block, uint64_t cell,
                     ConstBlock data) {
  const std::vector<uint64_t> cut =
      plan::cut_cells(num_cells(data.bytes, cell_bytes_), outbox_.shares_to(peers));
  size_t link = 0;
  while (link + 2 < cut.size() && cell >= cut[link + 1]) ++link;
  outbox_.push_all(static_cast<int>(link), peers,
                   {kind, forward, static_cast<uint16_t>(block), cell, cell + 1, data});
}

// A cell of all_gather that came along a rail.
void Call::pass_on(const Tag& tag) {
  const Block& place = moves_.places[tag.block];
  push_cell(state_.node_peers, PieceKind::kData, false, tag.block, tag.cell,
            {place.data, place.bytes});
}

void Call::on_staged_operand(const Tag& tag, std::span<const std::byte> payload,
                             const Taken& taken) {
  const auto sum = sums_->sum_of(taken.source, tag.block);
  if (!sum) {
    inbox_.finish(taken);
    return stop(internal_error("{}: rank {} sent rank {} an operand of block {}",
                               plan::op_name(moves_.signature.op), taken.source, state_.rank(),
                               tag.block));
  }
  if (!is_new(*sum->seen, tag.cell, taken.source, sum->out, payload)) return inbox_.finish(taken);
  used(taken.link, payload.size());
  add(*sum, tag, payload, taken);
  reduce_if_whole(*sum, tag.cell);
}

// The last operand of a cell is read where it lies, the others are copied. A held slot is not
// acknowledged until the slowest of the others has come, and what goes inside a node mostly keeps to
// one link: a link whose slots are held for the sake of a third rank would look as if it stood
// still while others went on.
void Call::add(const NodeSums::Sum& sum, const Tag& tag, std::span<const std::byte> payload,
               const Taken& taken) {
  if (sum.reducer->lacks_one(tag.cell))
    return sum.reducer->add_view(tag.cell, sum.operand, payload.data(), taken);
  sum.reducer->add_copy(tag.cell, sum.operand, payload);
  inbox_.finish(taken);
}

void Call::reduce_if_whole(const NodeSums::Sum& sum, uint64_t cell) {
  if (!sum.reducer->try_reduce(cell)) return;
  for (const Taken& held : sum.reducer->held()) inbox_.finish(held);
  --cells_missing_;
  if (sum.is_inside) {
    ++rows_.reduced;
    queue_operand_rows();
    return pass_partial_on(sum, cell);
  }
  if (!moves_.reduced_for.empty()) share_staged(cell);
}

// This node's partial of a cell is there: to the cell's owner, which may be this rank.
void Call::pass_partial_on(const NodeSums::Sum& sum, uint64_t cell) {
  const fabric::NodeMap& map = state_.nodes;
  const int me = state_.rank();
  const int owner = map.rank_at(sum.node, map.local_of(me));
  if (owner == me) return reduce_if_whole(sums_->add_own_partial(cell), cell);
  push_cell(PeerSet::only(owner), PieceKind::kOperand, false, owner, cell,
            {sum.out.data, sum.out.bytes});
}

// A reduced cell to whom it is for: to everyone as an all_gather of it, to a root directly.
void Call::share_staged(uint64_t cell) {
  const fabric::NodeMap& map = state_.nodes;
  const int me = state_.rank();
  const ConstBlock data{moves_.reduced.data, moves_.reduced.bytes};
  if (moves_.reduced_for.count() == 1)
    return push_cell(moves_.reduced_for, PieceKind::kData, false, me, cell, data);
  push_cell(state_.node_peers, PieceKind::kData, false, me, cell, data);
  for (int step = 1; step < map.num_nodes; ++step)
    push_cell(PeerSet::only(nodes::rail_to(map, me, step)), PieceKind::kData, true, me, cell, data);
}

}  // namespace braid::coll
