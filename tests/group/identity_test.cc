#include "group/identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

namespace braid::group {
namespace {

using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

Result<Identity> read(const Variables& variables, const Config& config = Config()) {
  return identity_from(
      [&](const char* name) {
        const auto found = variables.find(name);
        return found == variables.end() ? std::nullopt : std::optional(found->second);
      },
      config);
}

Config with(const char* name, const char* value) {
  Config config;
  EXPECT_TRUE(config.set(name, value).ok());
  return config;
}

const Variables kTorchrun{{"RANK", "2"},
                          {"WORLD_SIZE", "4"},
                          {"LOCAL_RANK", "1"},
                          {"MASTER_ADDR", "10.1.2.3"},
                          {"MASTER_PORT", "29500"}};
const Variables kSlurm{{"SLURM_PROCID", "3"},
                       {"SLURM_NTASKS", "8"},
                       {"SLURM_LOCALID", "3"},
                       {"SLURM_JOB_ID", "4711"},
                       {"SLURM_LAUNCH_NODE_IPADDR", "10.9.8.7"}};

const Variables kOpenMpi{{"OMPI_COMM_WORLD_RANK", "5"},
                         {"OMPI_COMM_WORLD_SIZE", "8"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"PMIX_RANK", "5"},
                         {"PMIX_NAMESPACE", "prterun-head-17@1"},
                         {"MASTER_ADDR", "10.1.2.3"},
                         {"MASTER_PORT", "29500"}};
const Variables kLeaderWorkers{{"LWS_LEADER_ADDRESS", "lws-0.lws.default"},
                               {"LWS_GROUP_SIZE", "4"},
                               {"LWS_WORKER_INDEX", "3"}};
const Variables kPods{{"PET_NNODES", "4"},
                      {"PET_NODE_RANK", "2"},
                      {"PET_NPROC_PER_NODE", "1"},
                      {"PET_MASTER_ADDR", "train-0-0.train"},
                      {"PET_MASTER_PORT", "29400"}};

Variables changed(Variables base, const Variables& changes) {
  for (const auto& [name, value] : changes) base[name] = value;
  return base;
}
Variables without(Variables base, const char* name) {
  base.erase(name);
  return base;
}

TEST(Identity, NothingSetIsOneRankAlone) {
  auto alone = read({{"LOCAL_RANK", "2"}, {"SLURM_NTASKS", "64"}, {"MASTER_PORT", "garbage"}});
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ(alone->rank, 0);
  EXPECT_EQ(alone->size, 1);
  EXPECT_EQ(alone->store_port, 0);
}

TEST(Identity, ReadsTorchrun) {
  auto id = read(kTorchrun, with("BRAID_JOB_TOKEN", "s3cret"));
  ASSERT_TRUE(id.ok()) << id.status().to_string();
  EXPECT_EQ(id->rank, 2);
  EXPECT_EQ(id->size, 4);
  EXPECT_EQ(id->local_rank, 1);
  EXPECT_EQ(id->store_address, "10.1.2.3");
  EXPECT_EQ(id->store_port, 29500);
  EXPECT_EQ(id->job_token, "s3cret");
  EXPECT_EQ(id->job_id, "");
}

TEST(Identity, LeavesTorchrunsOwnStoreItsPort) {
  auto id = read(changed(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                     {"TORCHELASTIC_RUN_ID", "run7"},
                                     {"TORCHELASTIC_RESTART_COUNT", "2"}}));
  ASSERT_TRUE(id.ok()) << id.status().to_string();
  EXPECT_EQ(id->store_port, 29501);
  EXPECT_EQ(id->job_id, "run7.2");
  EXPECT_EQ(read(changed(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}}))->store_port,
            29500);
  EXPECT_FALSE(
      read(changed(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"MASTER_PORT", "65535"}}))
          .ok());
}

TEST(Identity, StorePortOptionWins) {
  EXPECT_EQ(read(kTorchrun, with("BRAID_STORE_PORT", "31000"))->store_port, 31000);
  EXPECT_EQ(read(without(kTorchrun, "MASTER_PORT"), with("BRAID_STORE_PORT", "31000"))->store_port,
            31000);
  const Status bad = read(kTorchrun, with("BRAID_STORE_PORT", "70000")).status();
  EXPECT_EQ(bad.code(), Code::kInvalidArgument);
  EXPECT_THAT(bad.message(), HasSubstr("70000"));
}

TEST(Identity, ReadsSlurm) {
  auto id = read(kSlurm);
  ASSERT_TRUE(id.ok()) << id.status().to_string();
  EXPECT_EQ(id->rank, 3);
  EXPECT_EQ(id->size, 8);
  EXPECT_EQ(id->local_rank, 3);
  EXPECT_EQ(id->store_address, "10.9.8.7");
  EXPECT_EQ(id->store_port, 20'000 + 8 * (4711 % 1'500));
  EXPECT_EQ(id->job_id, "slurm 4711.0");
  auto named = read(
      changed(kSlurm, {{"MASTER_ADDR", "head"}, {"MASTER_PORT", "1234"}, {"SLURM_STEP_ID", "5"}}));
  EXPECT_EQ(named->store_address, "head");
  EXPECT_EQ(named->store_port, 1234);
  EXPECT_EQ(named->job_id, "slurm 4711.5");
}

TEST(Identity, ReadsFederatedSlurmsJobs) {
  auto id = read(changed(kSlurm, {{"SLURM_JOB_ID", "4227858944"}}));  // of cluster 63
  ASSERT_TRUE(id.ok()) << id.status().to_string();
  EXPECT_EQ(id->store_port, 20'000 + 8 * (4'227'858'944 % 1'500));
  EXPECT_EQ(id->job_id, "slurm 4227858944.0");
}

TEST(Identity, TorchrunInsideSlurmWins) {
  Variables both = kSlurm;
  both.insert(kTorchrun.begin(), kTorchrun.end());
  EXPECT_EQ(read(both)->rank, 2);
}

struct Wrong {
  Variables variables;
  const char* says;
};

class WrongEnvironment : public ::testing::TestWithParam<Wrong> {};

TEST_P(WrongEnvironment, NamesVariableTextAndExpectation) {
  auto id = read(GetParam().variables);
  ASSERT_FALSE(id.ok());
  EXPECT_EQ(id.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(id.status().message(), HasSubstr(GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(
    Cases, WrongEnvironment,
    ::testing::Values(
        Wrong{{{"RANK", "1"}}, "WORLD_SIZE is not set although RANK is"},
        Wrong{{{"WORLD_SIZE", "4"}}, "RANK is not set although WORLD_SIZE is"},
        Wrong{changed(kTorchrun, {{"RANK", "5"}}), "RANK=5 with WORLD_SIZE=4: expected 0 to 3"},
        Wrong{changed(kTorchrun, {{"RANK", "-1"}}), "RANK='-1': expected an integer from 0"},
        Wrong{changed(kTorchrun, {{"RANK", "two"}}), "RANK='two'"},
        Wrong{changed(kTorchrun, {{"RANK", ""}}), "RANK=''"},
        Wrong{changed(kTorchrun, {{"RANK", "1 "}}), "RANK='1 '"},
        Wrong{changed(kTorchrun, {{"WORLD_SIZE", "0"}}),
              "WORLD_SIZE='0': expected an integer from 1"},
        Wrong{changed(kTorchrun, {{"WORLD_SIZE", "99999999999"}}), "WORLD_SIZE='99999999999'"},
        Wrong{changed(kTorchrun, {{"LOCAL_RANK", "4"}}),
              "LOCAL_RANK='4': expected an integer from 0 to 3"},
        Wrong{changed(kTorchrun, {{"MASTER_PORT", "70000"}}),
              "MASTER_PORT='70000': expected an integer from 1 to 65535"},
        Wrong{without(kTorchrun, "MASTER_PORT"), "MASTER_PORT is not set"},
        Wrong{without(kTorchrun, "MASTER_ADDR"), "MASTER_ADDR is not set although WORLD_SIZE=4"},
        Wrong{without(kSlurm, "SLURM_NTASKS"), "SLURM_NTASKS is not set although SLURM_PROCID is"},
        Wrong{without(kSlurm, "SLURM_LAUNCH_NODE_IPADDR"),
              "neither MASTER_ADDR nor SLURM_LAUNCH_NODE_IPADDR"},
        Wrong{without(kSlurm, "SLURM_JOB_ID"), "MASTER_PORT is not set"},
        Wrong{changed(kSlurm, {{"SLURM_JOB_ID", "x"}}), "SLURM_JOB_ID='x'"},
        Wrong{changed(kSlurm, {{"SLURM_JOB_ID", "4294967296"}}), "integer from 0 to 4294967295"},
        Wrong{without(kOpenMpi, "MASTER_ADDR"), "although OMPI_COMM_WORLD_SIZE=8"},
        Wrong{without(kOpenMpi, "OMPI_COMM_WORLD_SIZE"), "OMPI_COMM_WORLD_SIZE is not set"},
        Wrong{changed(kOpenMpi, {{"RANK", "0"}, {"WORLD_SIZE", "2"}}),
              "two launchers disagree: RANK=0 with WORLD_SIZE=2, OMPI_COMM_WORLD_RANK=5"},
        Wrong{{{"PMIX_RANK", "1"}}, "WORLD_SIZE is not set although PMIX_RANK is"},
        Wrong{without(kLeaderWorkers, "LWS_LEADER_ADDRESS"), "LWS_LEADER_ADDRESS is not set"},
        Wrong{changed(kLeaderWorkers, {{"LWS_WORKER_INDEX", "4"}}), "LWS_WORKER_INDEX=4"},
        Wrong{changed(kPods, {{"PET_NPROC_PER_NODE", "8"}}), "PET_NPROC_PER_NODE=8"},
        Wrong{without(kPods, "PET_MASTER_PORT"), "PET_MASTER_PORT is not set"}));

TEST(Identity, ReadsMpirun) {
  const auto id = read(kOpenMpi);
  ASSERT_TRUE(id.ok()) << id.status().to_string();
  EXPECT_EQ(id->rank, 5);
  EXPECT_EQ(id->size, 8);
  EXPECT_EQ(id->local_rank, 1);
  EXPECT_EQ(id->store_address, "10.1.2.3");
  EXPECT_EQ(id->store_port, 29500);
  EXPECT_EQ(id->job_id, "mpi prterun-head-17@1");
}

// What a script sets from mpirun's own variables, and torchrun that mpirun started.
TEST(Identity, LaunchersInsideOthersSpeakFirst) {
  EXPECT_EQ(read(changed(kOpenMpi, {{"RANK", "5"}, {"WORLD_SIZE", "8"}}))->rank, 5);
  auto inside = changed(kOpenMpi, kTorchrun);
  inside["TORCHELASTIC_RUN_ID"] = "run";
  EXPECT_EQ(read(inside)->rank, 2);
  EXPECT_EQ(read(inside)->size, 4);
  // An sbatch script is Slurm's task 0, and mpirun's ranks inherit that.
  EXPECT_EQ(read(changed(kSlurm, kOpenMpi))->rank, 5);
  // PMIx under Slurm: srun --mpi=pmix.
  EXPECT_EQ(read(changed(kSlurm, {{"PMIX_RANK", "3"}}))->size, 8);
}

TEST(Identity, ReadsPmix) {
  const auto id = read(
      {{"PMIX_RANK", "1"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "head"}, {"MASTER_PORT", "1234"}});
  ASSERT_TRUE(id.ok()) << id.status().to_string();
  EXPECT_EQ(id->rank, 1);
  EXPECT_EQ(id->size, 3);
}

TEST(Identity, ReadsLeaderWorkerSet) {
  const auto id = read(kLeaderWorkers);
  ASSERT_TRUE(id.ok()) << id.status().to_string();
  EXPECT_EQ(id->rank, 3);
  EXPECT_EQ(id->size, 4);
  EXPECT_EQ(id->local_rank, 0);
  EXPECT_EQ(id->store_address, "lws-0.lws.default");
  EXPECT_EQ(id->store_port, 29400);
}

TEST(Identity, ReadsPodsOfOneProcess) {
  const auto id = read(kPods);
  ASSERT_TRUE(id.ok()) << id.status().to_string();
  EXPECT_EQ(id->rank, 2);
  EXPECT_EQ(id->size, 4);
  EXPECT_EQ(id->local_rank, 0);
  EXPECT_EQ(id->store_address, "train-0-0.train");
  EXPECT_EQ(id->store_port, 29400);
}

TEST(Identity, LocalRankMayBeMissing) {
  EXPECT_EQ(read(without(kTorchrun, "LOCAL_RANK"))->local_rank, 2);
}

TEST(Identity, OneRankNeedsNoAddress) {
  auto id = read({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  ASSERT_TRUE(id.ok());
  EXPECT_EQ(id->store_port, 0);
}

TEST(Identity, ComesFromTheRealEnvironmentToo) {
  for (const auto& [name, value] : kTorchrun) ::setenv(name.c_str(), value.c_str(), 1);
  auto id = identity_from_environment(Config());
  for (const auto& [name, value] : kTorchrun) ::unsetenv(name.c_str());
  ASSERT_TRUE(id.ok());
  EXPECT_EQ(id->rank, 2);
}

}  // namespace
}  // namespace braid::group
