// Part: some ranks of a comm that follow each other, such as those of one node, seen as all of it.
// A lane that was opened among the part's ranks, who are 0 to count - 1 there, is shown under the
// comm's numbers; towards everybody else it has nothing and takes nothing. And the other way round
// for bells, which such a lane rings by the part's numbers.
#pragma once

#include <memory>

#include "transport/host/doorbell.h"
#include "transport/lane.h"

namespace braid::transport {

struct Part {
  int first = 0;  // rank in the comm of the part's rank 0
  int count = 1;
  int size = 1;  // of the comm

  constexpr bool contains(int rank) const { return rank >= first && rank < first + count; }
};

/// `lane`, of the part, for the comm. Puts are to ranks of the part alone.
std::unique_ptr<Lane> part_lane(std::unique_ptr<Lane> lane, const Part& part);
/// `whole`'s bells under the part's numbers. `whole` must outlive it.
std::unique_ptr<Doorbell> part_doorbell(Doorbell& whole, const Part& part);

}  // namespace braid::transport
