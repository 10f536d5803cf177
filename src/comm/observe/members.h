// Who the members of a comm are: what each tells the others when they make it, and what follows.
#pragma once

#include <string>
#include <vector>

namespace braid::comm {

struct Members {
  std::string name;            // the same on all of them, and no other comm's in the job
  std::vector<int> job_ranks;  // in the order of their ranks here; -1: not understood
};

/// This process's rank in its job: the launcher's, or where none gave it one that of settle(); -1 where
/// neither did.
int rank_in_job();

/// What this process tells of itself when it makes a comm in which it is `rank`: its rank in the
/// job, or else that one, how many comms it has made before, and its mark. Counts the comm: once
/// for each.
std::string introduction(int rank);

/// From what each rank told, rank 0's first. Ranks have not all made the same comms, so the name is
/// by the first one's count: "comm2" where that is rank 0 of the job, else "comm2@5" by its rank.
Members members_of(const std::vector<std::string>& told);

/// Whether ranks that told this are to settle their ranks in the job by it: each is a process of its
/// own and `known` (rank_in_job()) is -1, or two told one rank.
bool is_to_settle(const std::vector<std::string>& told, int known);
/// Without a launcher's word, a process's rank in its first comm of several is its rank in the job
/// from then on: parts of that comm have other ranks, and it has one file.
void settle(const std::vector<std::string>& told, int rank);

}  // namespace braid::comm
