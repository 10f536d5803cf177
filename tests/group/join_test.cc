// How ranks find each other, and what stands in the way: wrong tokens, other jobs, foreign
// services, duplicates.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "group/group.h"
#include "group/look_up.h"
#include "support/ranks.h"
#include "sys/net/api.h"
#include "sys/net/own_address.h"

namespace braid::group {
namespace {

using test::as_rank;
using test::draw_job;
using test::run_threads;
using test::soon;
using ::testing::AllOf;
using ::testing::HasSubstr;

Status join_status(const Identity& identity, int64_t patience_ns, const Config& config = Config()) {
  return Group::join(identity, config, Deadline::after_ns(patience_ns)).status();
}

// Joins all ranks, rank r with job(r), and lets them meet at a barrier.
template <typename JobOf>
std::vector<Status> join_all(int size, JobOf job_of, int64_t patience_ns,
                             const Config& config = Config()) {
  std::vector<Status> ends(static_cast<size_t>(size));
  run_threads(size, [&](int rank) {
    auto joined = Group::join(job_of(rank), config, Deadline::after_ns(patience_ns));
    ends[static_cast<size_t>(rank)] =
        joined.ok() ? (*joined)->barrier("met", soon()) : joined.status();
  });
  return ends;
}

// A service on a port of its own that takes connections and treats each with `serve`.
class ForeignService {
 public:
  ForeignService(uint16_t port, std::function<void(int fd)> serve) : serve_(std::move(serve)) {
    auto listener = sys::listen_on(sys::resolve("127.0.0.1", port)->front(), 16);
    if (!listener.ok()) return;  // somebody sits there already, which serves the test as well
    listener_ = std::move(listener).value();
    thread_ = std::thread([this] { run(); });
  }
  ~ForeignService() {
    is_done_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  void run() {
    std::vector<sys::Fd> open;
    while (!is_done_) {
      auto fd = sys::accept_on(listener_.get(), Deadline::after_ns(10_ms));
      if (!fd.ok()) continue;
      serve_(fd->get());
      open.push_back(std::move(fd).value());
    }
  }
  std::function<void(int)> serve_;
  sys::Fd listener_;
  std::atomic<bool> is_done_{false};
  std::thread thread_;
};

void say(int fd, std::string_view text) {
  (void)sys::send_all(fd, std::as_bytes(std::span(text)), Deadline::after_ns(1_s));
}

TEST(Join, AWrongTokenIsRefusedAndTheRightRanksGoOn) {
  const Identity job = draw_job(2);
  Config config;
  ASSERT_TRUE(config.set("BRAID_STORE_PORT", std::to_string(job.store_port)).ok());
  Status intruder;
  std::thread thread([&] {
    Identity wrong = as_rank(job, 1);
    wrong.job_token = "guessed";
    // With its only port named, the answer is final at once; before the store is up, it is only
    // absent.
    intruder = join_status(wrong, 10_s, config);
  });
  std::vector<Status> ends(2);
  run_threads(2, [&](int rank) {
    if (rank == 1) thread.join();  // the real rank 1 comes after the intruder
    auto joined = Group::join(as_rank(job, rank), config, soon());
    ends[static_cast<size_t>(rank)] =
        joined.ok() ? (*joined)->barrier("met", soon()) : joined.status();
  });
  EXPECT_EQ(intruder.code(), Code::kInvalidArgument) << intruder.to_string();
  EXPECT_THAT(intruder.message(), AllOf(HasSubstr("token refused by store at 127.0.0.1:"),
                                        HasSubstr("BRAID_JOB_TOKEN")));
  EXPECT_EQ(intruder.message().find("guessed"), std::string::npos);
  EXPECT_EQ(intruder.message().find(job.job_token), std::string::npos);
  EXPECT_TRUE(ends[0].ok()) << ends[0].to_string();
  EXPECT_TRUE(ends[1].ok()) << ends[1].to_string();
}

TEST(Join, AWrongTokenAmongSeveralPortsIsToldAtTheDeadline) {
  const Identity job = draw_job(2);
  Identity wrong = as_rank(job, 1);
  wrong.job_token = "guessed";
  const auto ends = join_all(2, [&](int rank) { return rank == 0 ? as_rank(job, 0) : wrong; }, 2_s);
  EXPECT_EQ(ends[1].code(), Code::kInvalidArgument) << ends[1].to_string();
  EXPECT_THAT(ends[1].message(), HasSubstr("token refused"));
  EXPECT_EQ(ends[0].code(), Code::kTimeout) << ends[0].to_string();
  EXPECT_THAT(ends[0].message(), HasSubstr("rank 1 did not join"));
}

TEST(Join, AnotherJobIsRefusedByName) {
  const Identity job = draw_job(2);
  Identity other = as_rank(job, 1);
  other.job_id = "run 8";
  const auto ends = join_all(2, [&](int rank) { return rank == 0 ? as_rank(job, 0) : other; }, 2_s);
  EXPECT_EQ(ends[1].code(), Code::kInvalidArgument);
  EXPECT_THAT(ends[1].message(),
              AllOf(HasSubstr("refused by store at 127.0.0.1:"), HasSubstr("not 'run 8'")));
  EXPECT_EQ(ends[1].message().find("token"), std::string::npos);
}

TEST(Join, TwoJobsOnOnePortFindTheirOwn) {
  const Identity first = draw_job(3);
  Identity second = draw_job(3);
  second.store_port = first.store_port;
  const auto ends =
      join_all(6, [&](int i) { return as_rank(i % 2 == 0 ? first : second, i / 2); }, 20_s);
  for (const Status& end : ends) EXPECT_TRUE(end.ok()) << end.to_string();
}

// Another job's store sits on our first port, and our rank 0 is late: the deadline is what counts.
TEST(Join, AStoreOfAnotherJobDoesNotSendAPatientRankAway) {
  const Identity job = draw_job(2);
  Identity other = draw_job(2);
  other.store_port = job.store_port;
  Status ends[3];
  run_threads(3, [&](int i) {
    if (i == 2) {
      (void)join_status(as_rank(other, 0), 14_s);  // its rank 1 never comes
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(i == 0 ? 11'500 : 200));
    ends[i] = join_status(as_rank(job, i), i == 0 ? 5_s : 20_s);
  });
  EXPECT_TRUE(ends[0].ok()) << ends[0].to_string();
  EXPECT_TRUE(ends[1].ok()) << ends[1].to_string();
}

TEST(Join, AllOnOneHostNeedNoTokenWhateverTheAddress) {
  const auto interfaces = sys::list_interfaces().value();
  const auto own = std::find_if(interfaces.begin(), interfaces.end(), [](const auto& one) {
    return !one.is_loopback && one.address.family() == AF_INET;
  });
  if (own == interfaces.end()) GTEST_SKIP() << "this host has no address but loopback";
  Identity job = draw_job(2);
  job.job_token.clear();
  job.job_id = "run 7";
  job.store_address = own->address.host();
  EXPECT_THAT(join_status(as_rank(job, 1), 1_s).message(), HasSubstr("BRAID_JOB_TOKEN"));
  job.is_one_host = true;  // as the launcher says
  const auto ends = join_all(2, [&](int rank) { return as_rank(job, rank); }, 10_s);
  for (const Status& end : ends) EXPECT_TRUE(end.ok()) << end.to_string();
}

TEST(Join, ForeignServicesOnTheFirstPortsAreSurvived) {
  const Identity job = draw_job(3);
  // One shuts the door, one talks another protocol, one says nothing at all, one starts a frame and
  // stops.
  ForeignService rude(job.store_port, [](int fd) { ::shutdown(fd, SHUT_RDWR); });
  ForeignService talker(static_cast<uint16_t>(job.store_port + 1),
                        [](int fd) { say(fd, "220 mail.example.org ESMTP\r\n"); });
  ForeignService silent(static_cast<uint16_t>(job.store_port + 2), [](int) {});
  ForeignService slow(static_cast<uint16_t>(job.store_port + 3),
                      [](int fd) { say(fd, std::string("\x28\0\0\0\x01", 5)); });
  const auto ends = join_all(3, [&](int rank) { return as_rank(job, rank); }, 20_s);
  for (const Status& end : ends) EXPECT_TRUE(end.ok()) << end.to_string();
}

TEST(Join, AForeignServiceAloneIsNamed) {
  const Identity job = draw_job(2);
  ForeignService talker(job.store_port, [](int fd) { say(fd, "SSH-2.0-OpenSSH_9.2\r\n"); });
  const Status status = join_status(as_rank(job, 1), 300_ms);
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(
      status.message(),
      HasSubstr(fmt::format("127.0.0.1:{}: it does not speak braid's protocol", job.store_port)));
}

TEST(Join, NoStoreSaysWhatWasTried) {
  const Identity job = draw_job(2);
  const int64_t start_ns = now_ns();
  const Status status = join_status(as_rank(job, 1), 200_ms);
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("rank 1 found no store of this job"),
                                      HasSubstr(fmt::format("127.0.0.1:{}", job.store_port)),
                                      HasSubstr(fmt::format("127.0.0.1:{}", job.store_port + 7)),
                                      HasSubstr("refused")));
  EXPECT_LT(now_ns() - start_ns, 5_s);
}

// It asked whether rank 0 was running, after the whole deadline, rank 0 too.
TEST(Join, WithoutDescriptorsIsSaidAtOnce) {
  for (const int rank : {0, 1}) {
    const Identity job = draw_job(2);
    const pid_t child = ::fork();
    if (child == 0) {
      const rlimit none{0, 0};
      ::setrlimit(RLIMIT_NOFILE, &none);
      const Status status = join_status(as_rank(job, rank), 2_s);
      const bool is_said = status.message().find("ulimit -n") != std::string::npos;
      if (!is_said) fmt::print(stderr, "rank {}: {}\n", rank, status.to_string());
      ::_exit(status.code() == Code::kExhausted && is_said ? 0 : 1);
    }
    int code = 0;
    ASSERT_EQ(::waitpid(child, &code, 0), child);
    EXPECT_EQ(code, 0) << "rank " << rank;
  }
}

TEST(Join, ARankThatNeverComesIsNamed) {
  const Identity job = draw_job(5);
  Status ends[3];
  // Rank 0 gives up first, while the others are there; its store goes with it.
  run_threads(3,
              [&](int i) { ends[i] = join_status(as_rank(job, 2 * i), i == 0 ? 1_s : 1500_ms); });
  EXPECT_EQ(ends[0].code(), Code::kTimeout);
  EXPECT_THAT(ends[0].message(), HasSubstr("group of 5 ranks: ranks 1, 3 did not join"));
  EXPECT_EQ(ends[1].code(), Code::kUnavailable) << ends[1].to_string();
  EXPECT_EQ(ends[2].code(), Code::kUnavailable) << ends[2].to_string();
}

TEST(Join, ALateRankIsWaitedFor) {
  const Identity job = draw_job(3);
  const auto ends = join_all(
      3,
      [&](int rank) {
        std::this_thread::sleep_for(
            std::chrono::milliseconds(150 * ((rank + 1) % 3)));  // rank 0 is not the first
        return as_rank(job, rank);
      },
      20_s);
  for (const Status& end : ends) EXPECT_TRUE(end.ok()) << end.to_string();
}

// A rank that closes its comm and opens the next one may find the store of the first still running:
// it waits.
TEST(Join, ARankThatIsEarlyForTheNextGroupWaits) {
  Identity job = draw_job(2);
  run_threads(2, [&](int rank) {
    for (int round = 0; round < 3; ++round) {
      auto group = Group::join(as_rank(job, rank), Config(), soon());
      ASSERT_TRUE(group.ok()) << "round " << round << ": " << group.status().to_string();
      ASSERT_TRUE((*group)->barrier("here", soon()).ok());
      if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(200));
      (*group)->leave();
    }
  });
}

TEST(Join, ASecondProcessWithTheSameRankIsRefused) {
  const Identity job = draw_job(3);
  int refused = 0;
  const auto ends = join_all(
      4,
      [&](int i) {
        if (i == 2)
          std::this_thread::sleep_for(
              std::chrono::milliseconds(300));  // the group stays open for the second rank 1
        return as_rank(job, i == 3 ? 1 : i);
      },
      20_s);
  for (const Status& end : ends) {
    if (end.ok()) continue;
    ++refused;
    EXPECT_EQ(end.code(), Code::kInvalidArgument);
    EXPECT_THAT(end.message(), HasSubstr("rank 1 is taken by another process"));
  }
  EXPECT_EQ(refused, 1);
}

TEST(Join, RanksThatDisagreeOnTheSizeAreTold) {
  const Identity job = draw_job(2);
  const auto ends = join_all(
      2,
      [&](int rank) {
        Identity id = as_rank(job, rank);
        if (rank == 1) id.size = 3;
        return id;
      },
      500_ms);
  EXPECT_EQ(ends[1].code(), Code::kInvalidArgument);
  EXPECT_THAT(ends[1].message(), HasSubstr("rank 1 says the group has 3 ranks, rank 0 says 2"));
}

TEST(Join, ARankThatGaveUpLeavesItsPlaceFree) {
  const Identity job = draw_job(2);
  std::thread rank0([&] { EXPECT_TRUE(Group::join(as_rank(job, 0), Config(), soon()).ok()); });
  Identity impatient = as_rank(draw_job(3), 1);
  // The same job, but it cannot wait: rank 0 alone is there, then it is not.
  EXPECT_FALSE(join_status(impatient, 50_ms).ok());
  EXPECT_TRUE(Group::join(as_rank(job, 1), Config(), soon()).ok());
  rank0.join();
}

TEST(Join, RankZeroThatGaveUpIsReplaced) {
  const Identity job = draw_job(3);
  std::vector<Status> ends(3);
  run_threads(3, [&](int rank) {
    if (rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(400));
    Status end = join_status(as_rank(job, rank), rank == 0 ? 200_ms : 10_s);
    if (rank == 0) {
      EXPECT_EQ(end.code(), Code::kTimeout);
      end = join_status(as_rank(job, 0), 10_s);  // as a launcher would restart it
    }
    ends[static_cast<size_t>(rank)] = end;
  });
  for (const Status& end : ends) EXPECT_TRUE(end.ok()) << end.to_string();
}

TEST(Join, WorksByNameAndOverIpv6) {
  for (const char* address : {"localhost", "::1"}) {
    Identity job = draw_job(2);
    job.store_address = address;
    const auto ends = join_all(2, [&](int rank) { return as_rank(job, rank); }, 10_s);
    if (ends[0].code() == Code::kUnavailable) GTEST_SKIP() << "no IPv6 here: " << ends[0].message();
    for (const Status& end : ends) EXPECT_TRUE(end.ok()) << address << ": " << end.to_string();
  }
}

TEST(Join, BindOptionOpensTheStoreToAllAddresses) {
  Config config;
  ASSERT_TRUE(config.set("BRAID_BIND", "0.0.0.0").ok());
  const Identity job = draw_job(2);
  const auto ends = join_all(2, [&](int rank) { return as_rank(job, rank); }, 10_s, config);
  for (const Status& end : ends) EXPECT_TRUE(end.ok()) << end.to_string();
}

std::vector<std::string> listens_at(const Identity& identity, const char* host) {
  std::vector<std::string> found;
  for (const sys::Endpoint& at : where_to_listen(identity, sys::resolve(host, 0).value()))
    found.push_back(at.host());
  return found;
}

// What is loopback on rank 0's host may be an address on the others'.
TEST(Join, AHostsOwnNameMayMeanLoopbackThere) {
  using Hosts = std::vector<std::string>;
  Identity job = draw_job(2);
  for (const char* const name : {"node-7", "node-7.example"}) {
    job.store_address = name;
    EXPECT_EQ(listens_at(job, "127.0.1.1"), Hosts{"0.0.0.0"});
    EXPECT_EQ(listens_at(job, "::1"), Hosts{"::"});
    EXPECT_EQ(listens_at(job, "192.0.2.1"), Hosts{"192.0.2.1"});
  }
  for (const char* const everywhere : {"localhost", "127.0.1.1", "127.0.0.1"}) {
    job.store_address = everywhere;
    EXPECT_EQ(listens_at(job, "127.0.1.1"), Hosts{"127.0.1.1"}) << everywhere;
  }
  job.store_address = "node-7";
  Identity of_one_host = job, without_token = job;
  of_one_host.is_one_host = true;
  without_token.job_token.clear();  // no rank on another host could join
  for (const Identity& identity : {of_one_host, without_token})
    EXPECT_EQ(listens_at(identity, "127.0.1.1"), Hosts{"127.0.1.1"});
}

TEST(Join, RanksMeetWhereOnlyRankZeroKnowsItsNameAsLoopback) {
  char name[256] = {};
  ASSERT_EQ(::gethostname(name, sizeof name - 1), 0);
  const auto means = sys::resolve(name, 0);
  const std::string elsewhere = sys::own_address_towards("192.0.2.1");
  if (!means.ok() || !means->front().is_loopback() || elsewhere == "127.0.0.1")
    GTEST_SKIP() << name << " is no loopback here, or there is no other address";
  const Identity job = draw_job(2);
  const auto job_of = [&](int rank) {
    Identity identity = as_rank(job, rank);
    identity.store_address = rank == 0 ? name : elsewhere;
    return identity;
  };
  for (const Status& end : join_all(2, job_of, 3_s)) EXPECT_TRUE(end.ok()) << end.to_string();
}

TEST(Join, AnAddressThatIsNotOursSaysWhatToSet) {
  Identity job = draw_job(2);
  job.store_address = "192.0.2.1";  // reserved for documentation: nobody's
  const Status status = join_status(as_rank(job, 0), 1_s);
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("192.0.2.1"), HasSubstr("BRAID_BIND")));
}

TEST(Join, OffLoopbackNeedsAToken) {
  Identity job = draw_job(2);
  job.store_address = "192.0.2.1";
  job.job_token.clear();
  for (int rank = 0; rank < 2; ++rank) {
    const Status status = join_status(as_rank(job, rank), 1_s);
    EXPECT_EQ(status.code(), Code::kUnavailable);
    EXPECT_THAT(status.message(), HasSubstr("BRAID_JOB_TOKEN"));
  }
}

TEST(Join, ImpossibleIdentitiesAreRefused) {
  Identity job = draw_job(2);
  EXPECT_EQ(join_status(as_rank(job, 2), 1_s).code(), Code::kInvalidArgument);
  EXPECT_EQ(join_status(as_rank(job, -1), 1_s).code(), Code::kInvalidArgument);
  job.store_port = 0;
  EXPECT_THAT(join_status(as_rank(job, 0), 1_s).message(), HasSubstr("no store port"));
  job.size = 0;
  EXPECT_EQ(join_status(as_rank(job, 0), 1_s).code(), Code::kInvalidArgument);
}

TEST(Join, AllPortsTakenIsSaid) {
  const Identity job = draw_job(2);
  std::vector<std::unique_ptr<ForeignService>> squatters;
  for (int i = 0; i < 8; ++i)
    squatters.push_back(
        std::make_unique<ForeignService>(static_cast<uint16_t>(job.store_port + i), [](int) {}));
  const Status status = join_status(as_rank(job, 0), 1_s);
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("rank 0 cannot serve a store"));
}

TEST(Join, LastPortsOfTheRangeWork) {
  Identity job = draw_job(2);
  job.store_port = 65'533;  // three candidates, not eight
  const auto ends = join_all(2, [&](int rank) { return as_rank(job, rank); }, 10_s);
  for (const Status& end : ends) EXPECT_TRUE(end.ok()) << end.to_string();
}

}  // namespace
}  // namespace braid::group
