// Reducer: collects the operands of one block, cell by cell, and reduces a cell when all ranks'
// operands are there. Operands arrive in any order over any link; the reduction runs over ranks
// 0..n-1 always, so that neither shares nor timing can change a bit of the result.
//
// An operand is either a view into a lane's slot (held until the cell is reduced, no copy) or
// copied into scratch. Scratch is a pool of cells that grows with what is incomplete at one time
// and is kept for the call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "coll/host/inbox.h"
#include "coll/host/moves.h"

namespace braid::coll {

class Reducer {
 public:
  /// `own` is this rank's operand, `out` where the result goes (may be the same memory). Without an
  /// `own` it comes, cell by cell, by add_own(). `divisor` is that of an average.
  Reducer(int rank, int num_ranks, ConstBlock own, Block out, uint32_t cell_bytes, Dtype dtype,
          RedOp op, int divisor);
  Reducer(int rank, int num_ranks, ConstBlock own, Block out, uint32_t cell_bytes, Dtype dtype,
          RedOp op)
      : Reducer(rank, num_ranks, own, out, cell_bytes, dtype, op, num_ranks) {}

  /// Adds source's operand for `cell` as a view that stays valid until reduced() names it.
  void add_view(uint64_t cell, int source, const std::byte* view, const Taken& taken);
  /// This rank's own operand for `cell`, where the constructor had none. It stays valid.
  void add_own(uint64_t cell, const std::byte* view);
  /// Whether one operand of `cell` is missing: with the next one it is whole.
  bool lacks_one(uint64_t cell) const;
  /// Adds a copy of source's.
  void add_copy(uint64_t cell, int source, std::span<const std::byte> payload);
  /// True when the last add completed its cell: the result is in `out`, and held() lists the views
  /// that are free again.
  bool try_reduce(uint64_t cell);
  std::span<const Taken> held() const { return freed_; }

 private:
  struct Pending {
    uint64_t cell = 0;
    int have = 0;
    std::vector<const void*> operands;  // by rank; null while missing
    std::vector<Taken> held;
    std::unique_ptr<std::byte[]> scratch;  // num_ranks cells, made when first needed
  };
  Pending& pending(uint64_t cell);
  void reset(Pending& p, uint64_t cell);

  int rank_;
  int num_ranks_;
  ConstBlock own_;
  Block out_;
  uint32_t cell_bytes_;
  Dtype dtype_;
  RedOp op_;
  size_t divisor_;
  std::vector<int32_t> pending_of_cell_;  // index into pending_, -1 none
  std::vector<Pending> pending_;
  std::vector<int32_t> free_;
  std::vector<Taken> freed_;
};

}  // namespace braid::coll
