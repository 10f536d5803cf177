// Handover: ranks give each other the allocations behind their memory of cuMemCreate, as file
// descriptors, and map what they get.
//
// Every rank opens a box (sys/fds) and tells all others its address. Then each of them, in one
// loop, sends its parts to every peer, some to a letter, and takes in the peers'. A letter says
// which parts it has, so nothing needs to be counted twice; between two ranks letters keep their
// order.
//
// Why it cannot stand still: a rank whose own part goes wrong goes on taking letters in and sending
// its own, with a word instead of the descriptors where it cannot export them. So no box stays
// full, and nobody waits for a letter that does not come but from a rank that is gone: the group's
// news and the deadline end that wait.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "group/group.h"
#include "sys/cuda/api.h"
#include "transport/nvlink/backing.h"

namespace braid::nvlink {

struct HandoverRequest {
  std::string topic;
  int device = 0;                                     // that is to use what the peers give
  const Backing* own = nullptr;                       // what this rank gives; may be empty
  std::vector<std::vector<uint64_t>> bytes_of_parts;  // [rank]: of each part that it gives
};

/// What every peer gave, mapped; nothing for this rank itself and for ranks that give nothing. The
/// caller lets the ranks agree on their Statuses. Collective when any rank gives something.
Result<std::vector<MappedParts>> hand_over(group::Group& group, sys::Cuda& cuda,
                                           const HandoverRequest& request, Deadline deadline);

}  // namespace braid::nvlink
