// WideMoves: a sum of a smaller float as one of fp32, for comms over several nodes that round once
// (BRAID_NODES=exact). Operands are widened into memory of its own, what moves and is added is fp32,
// and the results are rounded at the end. The signature stays that of the call, so that ranks that
// mean different types find out.
//
// Threads: the comm's lock. Lives for one call.
#pragma once

#include <vector>

#include "coll/host/moves.h"

namespace braid::coll {

class WideMoves {
 public:
  /// Of a sum of a smaller float (coll/reduce/casts.h). std::bad_alloc where there is no memory.
  explicit WideMoves(const Moves& moves);
  WideMoves(const WideMoves&) = delete;
  WideMoves& operator=(const WideMoves&) = delete;

  const Moves& moves() const { return wide_; }
  /// Into the caller's memory, when the call has ended well.
  void narrow_results() const;

 private:
  uint64_t elements(uint64_t bytes) const { return bytes / dtype_bytes(small_.signature.dtype); }
  /// The next so many elements of the memory.
  Block take(uint64_t num_elements);
  void narrow_block(const Block& wide, const Block& small) const;

  const Moves small_;
  Moves wide_;
  std::vector<float> memory_;
  uint64_t num_taken_ = 0;
};

}  // namespace braid::coll
