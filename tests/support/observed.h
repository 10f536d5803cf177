// Notes and journals for tests of what reads them.
#pragma once

#include <string>
#include <vector>

#include "comm/observe/journal.h"

namespace braid::test {

inline comm::CommFacts facts_of(const std::string& name, int rank = 0, int size = 4) {
  comm::CommFacts facts;
  facts.name = name;
  facts.rank = facts.job_rank = rank;
  facts.size = size;
  for (int r = 0; r < size; ++r) facts.ranks.push_back(r);
  facts.links = {"shm", "staged", "nvlink", "pcie", "nic"};
  return facts;
}

inline comm::CallNote host_note(plan::Op op, uint64_t count, int size = 4) {
  comm::CallNote note;
  note.shape = comm::with_buffers({op, false, Dtype::kFloat32, RedOp::kSum, 0, count}, size);
  return note;
}

inline comm::CallNote gpu_note(plan::Op op, uint64_t count, int size = 4) {
  comm::CallNote note = host_note(op, count, size);
  note.on_gpu = true;
  note.stream = 0xabc0;
  note.state = comm::CallState::kScheduled;
  return note;
}

}  // namespace braid::test
