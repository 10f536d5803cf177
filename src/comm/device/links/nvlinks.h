// What joins the GPUs of a comm: whether all pairs have NVLink, how small the smallest GPU is, and
// whether there are as many as ranks.
#pragma once

#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "group/group.h"
#include "sys/cuda/api.h"

namespace braid::comm {

struct Nvlinks {
  std::string why_not;      // empty: every pair of ranks has NVLink, or shares a GPU
  int least_sms = 0;        // multiprocessors of the smallest GPU
  bool are_shared = false;  // two ranks have one GPU
};

/// Collective: the same answer on all ranks. `ordinal` is this rank's GPU. Only GPUs that this
/// process sees can be asked about: where each process is shown its own alone, why_not says so.
Result<Nvlinks> find_nvlinks(group::Group& group, sys::Cuda& cuda, int ordinal, Deadline deadline);

}  // namespace braid::comm
