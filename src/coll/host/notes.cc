#include "coll/host/notes.h"

#include <algorithm>
#include <numeric>

namespace braid::coll {

namespace {

uint64_t sum(const std::vector<uint64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
}

// Those of blocks are the same on all ranks: one's own is what it gathers from or is scattered to.
void set_uneven_buffers(comm::CallShape& shape, const Moves& moves, int rank) {
  const uint64_t own = moves.send_counts[static_cast<size_t>(rank)];
  shape.is_uneven = true;
  shape.bytes = moves.bytes;
  shape.count = shape.send_count = shape.recv_count = sum(moves.send_counts);
  if (shape.op == plan::Op::kAllGather) shape.send_count = own;
  if (shape.op == plan::Op::kReduceScatter) shape.recv_count = own;
  if (shape.op == plan::Op::kAllToAll) shape.recv_count = sum(moves.recv_counts);
}

// The root alone has all blocks.
void set_rooted_buffers(comm::CallShape& shape, bool is_root) {
  if (shape.op == plan::Op::kAllGather && !is_root) shape.recv_count = 0;
  if (shape.op != plan::Op::kAllToAll) return;
  shape.recv_count = shape.count;
  if (!is_root) shape.send_count = 0;
}

}  // namespace

comm::CallNote note_of(const Moves& moves, int rank, int size) {
  const Signature& s = moves.signature;
  comm::CallNote note;
  note.shape = comm::with_buffers(
      {s.op, s.form == Form::kBarrier, s.dtype, s.redop, static_cast<int>(s.root), s.count}, size);
  if (s.form == Form::kRooted) {
    note.shape.name = call_name(s);
    set_rooted_buffers(note.shape, rank == static_cast<int>(s.root));
  }
  if (s.form == Form::kUneven) set_uneven_buffers(note.shape, moves, rank);
  return note;
}

std::vector<comm::LinkNote> link_notes_of(const comm::CallReport& report, bool is_ok) {
  std::vector<comm::LinkNote> notes;
  const auto is_used = [](const comm::LinkUse& use) {
    return use.sent_bytes != 0 || use.received_bytes != 0;
  };
  // Of a barrier or an empty message nothing is cut, whatever its plan says.
  if (std::none_of(report.links.begin(), report.links.end(), is_used)) return notes;
  for (size_t i = 0; i < report.links.size(); ++i) {
    const comm::LinkUse& use = report.links[i];
    const uint32_t parts = is_ok && i < report.plan.shares.size() ? report.plan.shares[i] : 0;
    if (parts == 0 && !is_used(use)) continue;
    const int64_t sent_ns = use.last_put_ns != 0 ? use.last_put_ns - report.start_ns : 0;
    notes.push_back({static_cast<int>(i), parts, use.sent_bytes, use.received_bytes,
                     std::max(use.finish_ns, sent_ns)});
  }
  return notes;
}

}  // namespace braid::coll
