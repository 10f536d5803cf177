#include "group/identity.h"

#include <charconv>
#include <cstdlib>

namespace braid::group {

namespace {

// What one launcher calls the numbers.
struct Names {
  const char* rank;
  const char* size;
  const char* local_rank;
};
constexpr Names kTorchrun{"RANK", "WORLD_SIZE", "LOCAL_RANK"};
constexpr Names kSlurm{"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"};
// What MPI's launchers call a job, equal for its ranks and for nobody else's: mpirun and prterun of
// Open MPI 5, mpirun of Open MPI 4.
constexpr const char* kMpiJobs[] = {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"};
constexpr Names kOpenMpi{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                         "OMPI_COMM_WORLD_LOCAL_RANK"};
// PMIx's launchers (prun, srun --mpi=pmix) give a rank alone.
constexpr Names kPmix{"PMIX_RANK", "WORLD_SIZE", "LOCAL_RANK"};
// One process in each pod of a LeaderWorkerSet.
constexpr Names kLeaderWorkers{"LWS_WORKER_INDEX", "LWS_GROUP_SIZE", "LOCAL_RANK"};
// What torchrun's options are called in the environment of a pod whose process is started without
// it: one in each.
constexpr Names kPods{"PET_NODE_RANK", "PET_NNODES", "LOCAL_RANK"};

// Slurm gives no port. Steps of one job number up from 0; eight ports are one job's candidates, and
// the block ends below the kernel's ephemeral ports (32768).
constexpr int kSlurmFirstPort = 20'000, kSlurmBlocks = 1'500, kPortsPerBlock = 8;
// LeaderWorkerSet gives none either, and a pod has its ports to itself.
constexpr int kPodPort = 29'400;

template <typename Number>
Result<Number> parse_int(const char* name, const std::string& text, Number least, Number most) {
  Number value = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || at != end || value < least || value > most)
    return invalid_argument("{}='{}': expected an integer from {} to {}", name, text, least, most);
  return value;
}

Result<int> require_int(const Environment& env, const char* name, const char* because, int least,
                        int most) {
  const auto text = env(name);
  if (!text)
    return invalid_argument("{} is not set although {} is: expected an integer from {} to {}", name,
                            because, least, most);
  return parse_int(name, *text, least, most);
}

Status read_numbers(const Environment& env, const Names& names, Identity& identity) {
  BRAID_ASSIGN_OR_RETURN(identity.size, require_int(env, names.size, names.rank, 1, INT32_MAX));
  BRAID_ASSIGN_OR_RETURN(identity.rank, require_int(env, names.rank, names.size, 0, INT32_MAX));
  if (identity.rank >= identity.size)
    return invalid_argument("{}={} with {}={}: expected 0 to {}", names.rank, identity.rank,
                            names.size, identity.size, identity.size - 1);
  if (!env(names.local_rank)) {
    // Right on one host, and nothing but device choice hangs on it.
    identity.local_rank = identity.rank;
    return {};
  }
  BRAID_ASSIGN_OR_RETURN(identity.local_rank,
                         require_int(env, names.local_rank, names.rank, 0, identity.size - 1));
  return {};
}

bool is_true(const std::optional<std::string>& text) {
  return text && (*text == "True" || *text == "true" || *text == "1");
}

// BRAID_STORE_PORT, else near MASTER_PORT. Under torchrun's agent store MASTER_PORT itself is
// torchrun's.
Status read_port(const Environment& env, const Config& config, std::optional<int> fallback,
                 Identity& identity) {
  if (const int64_t own = config.integer("BRAID_STORE_PORT"); own != 0) {
    if (own < 1 || own > UINT16_MAX)
      return invalid_argument("BRAID_STORE_PORT={}: expected 1 to 65535", own);
    identity.store_port = static_cast<uint16_t>(own);
    return {};
  }
  const bool is_taken = is_true(env("TORCHELASTIC_USE_AGENT_STORE"));
  int port = fallback.value_or(0);
  if (env("MASTER_PORT") || !fallback) {
    BRAID_ASSIGN_OR_RETURN(port, require_int(env, "MASTER_PORT", "a group of several ranks", 1,
                                             is_taken ? UINT16_MAX - 1 : UINT16_MAX));
    port += is_taken ? 1 : 0;
  }
  identity.store_port = static_cast<uint16_t>(port);
  return {};
}

Result<Identity> from_torchrun(const Environment& env, const Config& config) {
  Identity identity;
  BRAID_RETURN_IF_ERROR(read_numbers(env, kTorchrun, identity));
  if (identity.size == 1) return identity;
  const auto address = env("MASTER_ADDR");
  if (!address || address->empty())
    return invalid_argument(
        "MASTER_ADDR is not set although WORLD_SIZE={}: expected the address of rank 0",
        identity.size);
  identity.store_address = *address;
  BRAID_RETURN_IF_ERROR(read_port(env, config, std::nullopt, identity));
  // A restarted run must not meet the ranks of the one before it.
  if (const auto run = env("TORCHELASTIC_RUN_ID"))
    identity.job_id = fmt::format("{}.{}", *run, env("TORCHELASTIC_RESTART_COUNT").value_or("0"));
  for (const char* name : kMpiJobs)
    if (const auto job = env(name); job && identity.job_id.empty()) identity.job_id = "mpi " + *job;
  const auto here = env("LOCAL_WORLD_SIZE");
  identity.is_one_host = here && *here == env(kTorchrun.size);
  return identity;
}

Result<Identity> from_slurm(const Environment& env, const Config& config) {
  Identity identity;
  BRAID_RETURN_IF_ERROR(read_numbers(env, kSlurm, identity));
  if (identity.size == 1) return identity;
  auto address = env("MASTER_ADDR");
  if (!address) address = env("SLURM_LAUNCH_NODE_IPADDR");
  if (!address || address->empty())
    return invalid_argument(
        "neither MASTER_ADDR nor SLURM_LAUNCH_NODE_IPADDR is set although SLURM_NTASKS={}: "
        "expected the address of rank 0",
        identity.size);
  identity.store_address = *address;
  std::optional<int> port;
  if (const auto job = env("SLURM_JOB_ID")) {
    // Of 32 bits: the first six are the cluster's number where clusters are federated.
    BRAID_ASSIGN_OR_RETURN(const int64_t number,
                           parse_int<int64_t>("SLURM_JOB_ID", *job, 0, UINT32_MAX));
    port = kSlurmFirstPort + kPortsPerBlock * static_cast<int>(number % kSlurmBlocks);
    identity.job_id = fmt::format("slurm {}.{}", number, env("SLURM_STEP_ID").value_or("0"));
  }
  BRAID_RETURN_IF_ERROR(read_port(env, config, port, identity));
  identity.is_one_host = env("SLURM_STEP_NUM_NODES").value_or("") == "1";
  return identity;
}

/// Of launchers that give numbers alone: the address and port are MASTER_ADDR and MASTER_PORT.
Result<Identity> from_numbers(const Environment& env, const Config& config, const Names& names,
                              const char* job) {
  Identity identity;
  BRAID_RETURN_IF_ERROR(read_numbers(env, names, identity));
  if (identity.size == 1) return identity;
  const auto address = env("MASTER_ADDR");
  if (!address || address->empty())
    return invalid_argument(
        "MASTER_ADDR is not set although {}={}: expected the address of rank 0 (mpirun -x "
        "MASTER_ADDR=... -x MASTER_PORT=...)",
        names.size, identity.size);
  identity.store_address = *address;
  BRAID_RETURN_IF_ERROR(read_port(env, config, std::nullopt, identity));
  if (const auto name = env(job)) identity.job_id = fmt::format("mpi {}", *name);
  const auto here = env("OMPI_COMM_WORLD_LOCAL_SIZE");
  identity.is_one_host = here && *here == env(names.size);
  return identity;
}

Result<Identity> from_leader_workers(const Environment& env, const Config& config) {
  Identity identity;
  BRAID_RETURN_IF_ERROR(read_numbers(env, kLeaderWorkers, identity));
  if (!env("LOCAL_RANK")) identity.local_rank = 0;
  if (identity.size == 1) return identity;
  const auto address = env("LWS_LEADER_ADDRESS");
  if (!address || address->empty())
    return invalid_argument(
        "LWS_LEADER_ADDRESS is not set although LWS_GROUP_SIZE={}: expected the leader pod's name",
        identity.size);
  identity.store_address = *address;
  identity.job_id = fmt::format("lws {}", *address);
  BRAID_RETURN_IF_ERROR(read_port(env, config, kPodPort, identity));
  return identity;
}

Result<Identity> from_pods(const Environment& env, const Config& config) {
  const auto processes = env("PET_NPROC_PER_NODE");
  if (processes && *processes != "1")
    return invalid_argument(
        "PET_NPROC_PER_NODE={} without RANK: only torchrun starts several processes in a pod, and "
        "gives each its RANK; expected 1, or the program under torchrun",
        *processes);
  Identity identity;
  BRAID_RETURN_IF_ERROR(read_numbers(env, kPods, identity));
  if (!env("LOCAL_RANK")) identity.local_rank = 0;
  if (identity.size == 1) return identity;
  const auto address = env("PET_MASTER_ADDR");
  const auto port = env("PET_MASTER_PORT");
  if (!address || address->empty() || !port)
    return invalid_argument(
        "{} is not set although PET_NNODES={}: expected the {} of rank 0, or the program under "
        "torchrun",
        address && !address->empty() ? "PET_MASTER_PORT" : "PET_MASTER_ADDR", identity.size,
        address && !address->empty() ? "port" : "address");
  identity.store_address = *address;
  BRAID_ASSIGN_OR_RETURN(const int number, parse_int("PET_MASTER_PORT", *port, 1, UINT16_MAX));
  BRAID_RETURN_IF_ERROR(read_port(env, config, number, identity));
  return identity;
}

// RANK and WORLD_SIZE may be a pod's, or left over in a shell from which mpirun was started; under
// torchrun they are its own, whoever started that.
Status check_mpi_agrees(const Environment& env, const Identity& own) {
  if (!env(kOpenMpi.rank) || !env(kOpenMpi.size) || env("TORCHELASTIC_RUN_ID")) return {};
  Identity mpi;
  BRAID_RETURN_IF_ERROR(read_numbers(env, kOpenMpi, mpi));
  if (mpi.rank == own.rank && mpi.size == own.size) return {};
  return invalid_argument(
      "two launchers disagree: RANK={} with WORLD_SIZE={}, OMPI_COMM_WORLD_RANK={} with "
      "OMPI_COMM_WORLD_SIZE={}; unset RANK and WORLD_SIZE, or set them from the others",
      own.rank, own.size, mpi.rank, mpi.size);
}

Result<Identity> from_torchrun_or_hand(const Environment& env, const Config& config) {
  BRAID_ASSIGN_OR_RETURN(Identity identity, from_torchrun(env, config));
  BRAID_RETURN_IF_ERROR(check_mpi_agrees(env, identity));
  return identity;
}

// Who speaks is asked from the inside out: torchrun may be started by any of the others, mpirun in
// an allocation of Slurm's, whose batch script has a rank of its own.
// A rank and a size make a launcher's environment, and one without the other is a mistake; only
// LOCAL_RANK, or Slurm's task count in a shell that is no task, say nothing.
Result<Identity> numbers_from(const Environment& env, const Config& config) {
  const bool has_own = env("RANK") || (env("WORLD_SIZE") && !env("PMIX_RANK"));
  if (has_own) return from_torchrun_or_hand(env, config);
  if (env(kOpenMpi.rank)) return from_numbers(env, config, kOpenMpi, "PMIX_NAMESPACE");
  if (env("SLURM_PROCID")) return from_slurm(env, config);
  if (env(kPmix.rank)) return from_numbers(env, config, kPmix, "PMIX_NAMESPACE");
  if (env(kLeaderWorkers.rank)) return from_leader_workers(env, config);
  if (env(kPods.rank)) return from_pods(env, config);
  return Identity{};
}

}  // namespace

Result<Identity> identity_from(const Environment& environment, const Config& config) {
  BRAID_ASSIGN_OR_RETURN(Identity identity, numbers_from(environment, config));
  identity.job_token = config.text("BRAID_JOB_TOKEN");
  return identity;
}

Result<Identity> identity_from_environment(const Config& config) {
  return identity_from(
      [](const char* name) {
        // NOLINTNEXTLINE(concurrency-mt-unsafe): braid never changes the environment
        const char* value = std::getenv(name);
        return value ? std::optional<std::string>(value) : std::nullopt;
      },
      config);
}

}  // namespace braid::group
