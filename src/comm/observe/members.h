// Who the members of a comm are: what each tells the others when they make it, and what follows.
#pragma once

#include <string>
#include <vector>

namespace braid::comm {

struct Members {
  std::string name;            // the same on all of them, and no other comm's in the job
  std::vector<int> job_ranks;  // in the order of their ranks here; -1: not understood
};

/// What this process tells of itself when it makes a comm in which it is `rank`: its rank in the
/// job, and how many comms it has made before. Counts the comm: once for each.
std::string introduction(int rank);

/// From what each rank told, rank 0's first. Ranks have not all made the same comms, so the name is
/// by the first one's count: "comm2" where that is rank 0 of the job, else "comm2@5" by its rank.
Members members_of(const std::vector<std::string>& told);

}  // namespace braid::comm
