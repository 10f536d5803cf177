// Names of files of which every process of a job writes one.
#pragma once

#include <string>
#include <string_view>

namespace braid {

/// `pattern` with %r as `rank`, %h as this host's name, %p as this process's number and %% as a
/// percent sign; anything else stays as it is.
std::string expand_file_name(std::string_view pattern, int rank);

/// Whether processes of one job get different names: it has %r or %p.
bool tells_processes_apart(std::string_view pattern);

/// The rank that the launcher gave this process (RANK, OMPI_COMM_WORLD_RANK, SLURM_PROCID,
/// PMI_RANK, PMIX_RANK, LWS_WORKER_INDEX, PET_NODE_RANK), or `otherwise` where none did. A process may be another rank of each of its comms:
/// this one names its files.
int launched_rank(int otherwise);

}  // namespace braid
