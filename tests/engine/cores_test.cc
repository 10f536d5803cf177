// Where an engine's worker runs: near its NICs, out of what its maker may use.
#include "engine/cores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <thread>

#include "engines.h"
#include "sys/host/fake.h"
#include "sys/sysfs/fake.h"

namespace braid::engine::test {
namespace {

using sys::CoreSet;
using testing::ElementsAre;
using testing::HasSubstr;

sys::Endpoint ipv4(const std::string& text) { return sys::resolve(text, 0).value().front(); }

constexpr const char* kGpu = "0000:1b:00.0";

// Two nodes of four cores: eth0, mlx5_0 and rdmap0s6 on node 0, eth1, mlx5_1 and a GPU on node 1; bond0
// and lo are on no device, and who asks eth2 is told nonsense.
struct TwoNodes {
  TwoNodes() {
    device("/sys/class/net/eth0/device", 0);
    device("/sys/class/net/eth1/device", 1);
    device("/sys/class/infiniband/mlx5_0/device", 0);
    device("/sys/class/infiniband/mlx5_1/device", 1);
    device("/sys/class/infiniband/rdmap0s6/device", 0);
    device(std::string("/sys/bus/pci/devices/") + kGpu, 1);
    sysfs.write("/sys/class/net/eth2/device/local_cpulist", "4-");
    int number = 0;
    for (const char* name : {"eth0", "eth1", "eth2", "bond0"})
      interfaces.push_back({name, ipv4("10.0.0." + std::to_string(number++)), false});
    interfaces.push_back({"eth1:1", ipv4("10.0.1.1"), false});
    interfaces.push_back({"lo", ipv4("127.0.0.1"), true});
  }
  void device(const std::string& path, int node) {
    sysfs.write(path + "/local_cpulist", node == 0 ? "0-3\n" : "4-7\n");
    sysfs.write(path + "/numa_node", std::to_string(node));
  }
  CoreChoice choose(const std::vector<std::string>& nics, const std::string& gpu = "",
                    CoreSet usable = {0, 1, 2, 3, 4, 5, 6, 7}) const {
    std::vector<NicRequest> requests;
    for (const std::string& nic : nics) requests.push_back(parse(nic));
    return choose_cores({sysfs, interfaces, requests, gpu, std::move(usable)});
  }
  static NicRequest parse(const std::string& text) {
    const size_t colon = text.find(':');
    return {text.substr(0, colon), text.substr(colon + 1), nullptr};
  }
  sys::FakeSysfs sysfs;
  std::vector<sys::Interface> interfaces;
};

const CoreSet kNode0 = {0, 1, 2, 3}, kNode1 = {4, 5, 6, 7};

TEST(Cores, OfANicAreThoseOfItsNode) {
  const TwoNodes machine;
  EXPECT_EQ(machine.choose({"tcp:10.0.0.0"}).cores, kNode0);
  EXPECT_EQ(machine.choose({"net:10.0.0.1"}).cores, kNode1);
  EXPECT_EQ(machine.choose({"net:10.0.0.1"}).why, "near eth1 (node 1)");
  EXPECT_EQ(machine.choose({"tcp:10.0.1.1"}).why, "near eth1 (node 1)") << "another address of it";
  EXPECT_EQ(machine.choose({"verbs:mlx5_1"}).cores, kNode1);
  EXPECT_EQ(machine.choose({"verbs:mlx5_1:2:3"}).why, "near mlx5_1 (node 1)");
  EXPECT_EQ(machine.choose({"efa:rdmap0s6-rdm"}).why, "near rdmap0s6 (node 0)");
}

TEST(Cores, OfNicsOnOneNodeAreThatNodes) {
  const CoreChoice found = TwoNodes().choose({"verbs:mlx5_1", "tcp:10.0.0.1", "tcp:10.0.1.1"});
  EXPECT_EQ(found.cores, kNode1);
  EXPECT_EQ(found.why, "near mlx5_1 (node 1), eth1 (node 1)");
}

TEST(Cores, OfNicsOnBothNodesAreAllUnlessAGpuSaysWhich) {
  const TwoNodes machine;
  const CoreChoice all = machine.choose({"verbs:mlx5_0", "verbs:mlx5_1"});
  EXPECT_EQ(all.cores, CoreSet());
  EXPECT_EQ(all.why, "all are near mlx5_0 (node 0), mlx5_1 (node 1)");
  const CoreChoice gpu = machine.choose({"verbs:mlx5_0", "verbs:mlx5_1"}, kGpu);
  EXPECT_EQ(gpu.cores, kNode1);
  EXPECT_THAT(gpu.why, HasSubstr("mlx5_1 (node 1), GPU 0000:1b:00.0 (node 1)"));
}

TEST(Cores, ANicIsAskedBeforeAGpuOnAnotherNode) {
  EXPECT_EQ(TwoNodes().choose({"verbs:mlx5_0"}, kGpu).cores, kNode0);
}

TEST(Cores, NicsThatSayNothingLeaveItToTheGpu) {
  const TwoNodes machine;
  for (const char* nic :
       {"tcp:10.0.0.3", "tcp:127.0.0.1", "tcp:10.0.0.2", "verbs:mlx5_9", "shm:", "tcp:"}) {
    SCOPED_TRACE(nic);
    EXPECT_EQ(machine.choose({nic}).cores, CoreSet());
    EXPECT_EQ(machine.choose({nic}).why, "no NIC and no GPU of it has cores near it");
    EXPECT_EQ(machine.choose({nic}, kGpu).cores, kNode1);
    EXPECT_EQ(machine.choose({nic, "tcp:10.0.0.0"}, "").cores, kNode0);
  }
  EXPECT_EQ(machine.choose({}, kGpu).why, "near GPU 0000:1b:00.0 (node 1)");
  EXPECT_EQ(machine.choose({}, "0000:ff:00.0").cores, CoreSet());
}

TEST(Cores, OfABoundProcessAreItsOwn) {
  const TwoNodes machine;
  EXPECT_EQ(machine.choose({"verbs:mlx5_1"}, "", {3, 4, 5}).cores, (CoreSet{4, 5}));
  EXPECT_EQ(machine.choose({"verbs:mlx5_1"}, "", {4, 5}).cores, CoreSet());
  EXPECT_EQ(machine.choose({"verbs:mlx5_1"}, "", {4, 5}).why, "all are near mlx5_1 (node 1)");
  const CoreChoice elsewhere = machine.choose({"verbs:mlx5_1"}, "", {0, 1});
  EXPECT_EQ(elsewhere.cores, CoreSet());
  EXPECT_EQ(elsewhere.why, "none of 4-7, near mlx5_1 (node 1), may be used");
}

// --- an engine on such a machine ---

std::string first_line(Engine& engine) {
  const std::vector<std::string> lines = engine.health(in_seconds(5));
  return lines.empty() ? "" : lines.front();
}

// An engine over the fake fabric, whose NIC "a0" is on node 1.
struct OnTwoNodes {
  explicit OnTwoNodes(const std::string& name, Engines& engines) : options(engines.options(name)) {
    machine.device("/sys/class/infiniband/" + name + "0/device", 1);
    options.sysfs = &machine.sysfs;
    options.affinity = &affinity;
  }
  TwoNodes machine;
  sys::FakeCores affinity{{0, 1, 2, 3, 4, 5, 6, 7}};
  EngineOptions options;
};
const CoreSet kBoth = {0, 1, 2, 3, 4, 5, 6, 7};

Way over_fake() {
  sys::FakeRules rules;
  rules.is_truthful = true;
  return {"fake", false, "fake", 1, rules};
}

TEST(Cores, HealthSaysWhereTheWorkerRuns) {
  Engines engines(over_fake());
  OnTwoNodes a("a", engines);
  const auto engine = Engines::make(a.options);
  EXPECT_EQ(first_line(*engine), "worker: cores 4-7: near a0 (node 1)");
  EXPECT_THAT(a.affinity.asked(), ElementsAre(kNode1));
}

TEST(Cores, OffAsksForNone) {
  Engines engines(over_fake());
  OnTwoNodes a("a", engines);
  a.options.cores = "off";
  const auto engine = Engines::make(a.options);
  EXPECT_EQ(first_line(*engine), "worker: any of cores 0-7: near ones are switched off");
  EXPECT_THAT(a.affinity.asked(), ElementsAre());
  a.options.cores = "4-7";
  EXPECT_TRUE(failed(Engine::create(a.options).status(), Code::kInvalidArgument, "auto or off"));
}

// Opens a rail at both ends, by the workers: nobody waits for it.
void write_once(Engine& from, Engine& to) {
  Memory source(from, 4096, 1), target(to, 4096, 2);
  auto ticket = from.write({source.region, 0}, {import(from, target), 0}, 4096);
  ASSERT_TRUE(is_ok(ticket));
  const Deadline limit = in_seconds(20);
  while (!(*ticket)->is_done() && !limit.passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ASSERT_TRUE(is_ok((*ticket)->wait(in_seconds(1))));
  ASSERT_EQ(source.bytes, target.bytes);
}

// What a library begins with a rail must not share a few cores with a worker that spins.
TEST(Cores, ARailIsOpenedWithAllCores) {
  Engines engines(over_fake());
  OnTwoNodes a("a", engines), b("b", engines);
  const auto from = Engines::make(a.options), to = Engines::make(b.options);
  write_once(*from, *to);
  EXPECT_THAT(b.affinity.asked(), ElementsAre(kNode1, kBoth, kNode1));
  EXPECT_EQ(first_line(*to), "worker: cores 4-7: near b0 (node 1)");
}

TEST(Cores, ARefusalIsWarnedAboutOnce) {
  Engines engines(over_fake());
  OnTwoNodes a("a", engines), b("b", engines);
  b.affinity.fail_with(driver_error("sched_setaffinity: not in this sandbox"));
  testing::internal::CaptureStderr();
  {
    const auto from = Engines::make(a.options), to = Engines::make(b.options);
    write_once(*from, *to);
    EXPECT_EQ(first_line(*to), "worker: any of cores 0-7: sched_setaffinity: not in this sandbox");
  }
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(b.affinity.asked(), ElementsAre(kNode1)) << "and not asked again";
  const size_t first = log.find("stays on the cores that it has");
  EXPECT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find("stays on the cores", first + 1), std::string::npos) << log;
}

TEST(Cores, WhoMovesTheWorkerElsewhereIsHeeded) {
  Engines engines(over_fake());
  OnTwoNodes a("a", engines), b("b", engines);
  const auto from = Engines::make(a.options), to = Engines::make(b.options);
  EXPECT_EQ(first_line(*to), "worker: cores 4-7: near b0 (node 1)");
  ASSERT_TRUE(is_ok(b.affinity.use({2})));  // as taskset -a would
  write_once(*from, *to);
  EXPECT_THAT(b.affinity.asked(), ElementsAre(kNode1, CoreSet{2}));
  EXPECT_EQ(first_line(*to), "worker: any of cores 2: they were set from elsewhere");
}

// --- this machine's kernel ---

std::map<int, CoreSet> masks_of_threads() {
  std::map<int, CoreSet> out;
  for (const std::string& name : sys::real_sysfs().list("/proc/self/task")) {
    const auto status = sys::real_sysfs().read("/proc/self/task/" + name + "/status");
    if (!status.ok()) continue;
    const std::string_view key = "Cpus_allowed_list:\t";
    const size_t at = status->find(key) + key.size();
    out[std::stoi(name)] =
        sys::parse_cores(status->substr(at, status->find('\n', at) - at)).value();
  }
  return out;
}

// Those of the threads that `make` begins.
template <typename Make>
std::vector<CoreSet> masks_of_new_threads(Make&& make) {
  const auto before = masks_of_threads();
  const auto engine = make();
  first_line(*engine);  // the worker is there
  std::vector<CoreSet> out;
  for (const auto& [thread, mask] : masks_of_threads())
    if (!before.contains(thread)) out.push_back(mask);
  for (const auto& [thread, mask] : masks_of_threads())
    if (before.contains(thread)) {
      EXPECT_EQ(mask, before.at(thread));
    }
  std::sort(out.begin(), out.end(),
            [](const auto& a, const auto& b) { return a.size() < b.size(); });
  return out;
}

struct OnThisMachine : testing::Test {
  void SetUp() override {
    usable = sys::real_cores().usable();
    if (usable.size() < 2) GTEST_SKIP() << "one core, which has no other one to be far from";
    last = *usable.rbegin();
    sysfs.write("/sys/class/net/lo/device/local_cpulist", std::to_string(last));
    options = engines.options("a");
    options.nics.front().address = "127.0.0.1";  // the kernel says whose that is
    options.sysfs = &sysfs;
  }
  Engines engines{over_fake()};
  sys::FakeSysfs sysfs;
  EngineOptions options;
  CoreSet usable;
  int last = 0;
};

TEST_F(OnThisMachine, TheWorkerAloneIsKeptNear) {
  const auto masks = masks_of_new_threads([&] { return Engines::make(options); });
  EXPECT_THAT(masks, ElementsAre(CoreSet{last}, usable)) << "the worker, and callbacks";
  EXPECT_EQ(sys::real_cores().usable(), usable) << "and who made it";
}

TEST_F(OnThisMachine, WithTheSwitchOffNobodyIs) {
  options.cores = "off";
  EXPECT_THAT(masks_of_new_threads([&] { return Engines::make(options); }),
              ElementsAre(usable, usable));
}

TEST_F(OnThisMachine, WhoIsBoundStaysBound) {
  std::thread([&] {  // the mask is the thread's: the rest of the program keeps its own
    const CoreSet first = {*usable.begin()};
    ASSERT_TRUE(is_ok(sys::real_cores().use(first)));
    EXPECT_THAT(masks_of_new_threads([&] { return Engines::make(options); }),
                ElementsAre(first, first));
  })
      .join();
}

TEST_F(OnThisMachine, ItGetsAllNearCores) {
  if (usable.size() < 3) GTEST_SKIP() << "two cores, of which only one can be near";
  CoreSet near = usable;
  near.erase(near.begin());
  sysfs.write("/sys/class/net/lo/device/local_cpulist", sys::text_of(near));
  EXPECT_THAT(masks_of_new_threads([&] { return Engines::make(options); }),
              ElementsAre(near, usable));
}

}  // namespace
}  // namespace braid::engine::test
