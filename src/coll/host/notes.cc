#include "coll/host/notes.h"

#include <numeric>

namespace braid::coll {

comm::CallNote note_of(const Moves& moves, int size) {
  const Signature& s = moves.signature;
  comm::CallNote note;
  note.shape = comm::with_buffers(
      {s.op, s.form == Form::kBarrier, s.dtype, s.redop, static_cast<int>(s.root), s.count}, size);
  if (s.form == Form::kRooted) note.shape.name = call_name(s);
  if (s.form != Form::kUneven) return note;
  const auto sum = [](const std::vector<uint64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  };
  note.shape.bytes = moves.bytes;
  note.shape.count = note.shape.send_count = sum(moves.send_counts);
  note.shape.recv_count = sum(moves.recv_counts);
  return note;
}

std::vector<comm::LinkNote> link_notes_of(const comm::CallReport& report, bool is_ok) {
  std::vector<comm::LinkNote> notes;
  for (size_t i = 0; i < report.links.size(); ++i) {
    const comm::LinkUse& use = report.links[i];
    const uint32_t parts = is_ok && i < report.plan.shares.size() ? report.plan.shares[i] : 0;
    if (parts == 0 && use.sent_bytes == 0 && use.received_bytes == 0) continue;
    notes.push_back(
        {static_cast<int>(i), parts, use.sent_bytes, use.received_bytes, use.finish_ns});
  }
  return notes;
}

}  // namespace braid::coll
