#include "coll/host/reducer.h"

#include <cstring>

#include "base/check.h"
#include "coll/reduce/reduce.h"

namespace braid::coll {

Reducer::Reducer(int rank, int num_ranks, ConstBlock own, Block out, uint32_t cell_bytes,
                 Dtype dtype, RedOp op, int divisor)
    : rank_(rank),
      num_ranks_(num_ranks),
      own_(own),
      out_(out),
      cell_bytes_(cell_bytes),
      dtype_(dtype),
      op_(op),
      divisor_(static_cast<size_t>(divisor)),
      pending_of_cell_(num_cells(out.bytes, cell_bytes), -1) {
  BRAID_CHECK(cell_bytes % dtype_bytes(dtype) == 0, "cells of {} bytes cut elements of {}",
              cell_bytes, dtype_bytes(dtype));
}

void Reducer::reset(Pending& p, uint64_t cell) {
  p.cell = cell;
  p.have = 0;
  p.operands.assign(static_cast<size_t>(num_ranks_), nullptr);
  p.held.clear();
  if (own_.data == nullptr) return;
  p.operands[static_cast<size_t>(rank_)] = own_.data + cell_begin(cell, cell_bytes_);
  p.have = 1;
}

Reducer::Pending& Reducer::pending(uint64_t cell) {
  int32_t& index = pending_of_cell_[cell];
  if (index >= 0) return pending_[static_cast<size_t>(index)];
  if (free_.empty()) {
    free_.push_back(static_cast<int32_t>(pending_.size()));
    pending_.emplace_back();
  }
  index = free_.back();
  free_.pop_back();
  Pending& p = pending_[static_cast<size_t>(index)];
  reset(p, cell);
  return p;
}

void Reducer::add_view(uint64_t cell, int source, const std::byte* view, const Taken& taken) {
  Pending& p = pending(cell);
  p.operands[static_cast<size_t>(source)] = view;
  p.held.push_back(taken);
  ++p.have;
}

void Reducer::add_own(uint64_t cell, const std::byte* view) {
  Pending& p = pending(cell);
  p.operands[static_cast<size_t>(rank_)] = view;
  ++p.have;
}

bool Reducer::lacks_one(uint64_t cell) const {
  const int32_t index = pending_of_cell_[cell];
  const int have = index >= 0             ? pending_[static_cast<size_t>(index)].have
                   : own_.data != nullptr ? 1
                                          : 0;
  return have == num_ranks_ - 1;
}

void Reducer::add_copy(uint64_t cell, int source, std::span<const std::byte> payload) {
  Pending& p = pending(cell);
  if (!p.scratch)
    p.scratch = std::make_unique_for_overwrite<std::byte[]>(size_t{cell_bytes_} *
                                                            static_cast<size_t>(num_ranks_));
  std::byte* copy = p.scratch.get() + size_t{cell_bytes_} * static_cast<size_t>(source);
  std::memcpy(copy, payload.data(), payload.size());
  p.operands[static_cast<size_t>(source)] = copy;
  ++p.have;
}

bool Reducer::try_reduce(uint64_t cell) {
  const int32_t index = pending_of_cell_[cell];
  Pending& p = pending_[static_cast<size_t>(index)];
  if (p.have < num_ranks_) return false;
  const uint64_t count = cell_length(cell, out_.bytes, cell_bytes_) / dtype_bytes(dtype_);
  reduce_partials(p.operands, out_.data + cell_begin(cell, cell_bytes_), count, dtype_, op_,
                  divisor_);
  freed_.swap(p.held);
  pending_of_cell_[cell] = -1;
  free_.push_back(index);
  return true;
}

}  // namespace braid::coll
