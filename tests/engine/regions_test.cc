// The table of regions, while NICs take their time.
#include "engine/regions.h"

#include <atomic>
#include <future>
#include <thread>

#include "engines.h"

namespace braid::engine::test {
namespace {

/// A NIC that registers when it is let.
class SlowDomain : public sys::FabricDomain {
 public:
  explicit SlowDomain(std::atomic<bool>& is_let) : is_let_(is_let) {}
  const std::string& description() const override { return description_; }
  const sys::FabricLimits& limits() const override { return limits_; }
  Result<std::unique_ptr<sys::FabricEndpoint>> open_endpoint(const sys::EndpointRequest&) override {
    return unsupported("it has none");
  }
  Result<const sys::FabricRegion*> register_memory(const sys::FabricMemory&, uint64_t) override {
    is_registering = true;
    const Deadline deadline = in_seconds(10);
    while (!is_let_ && !deadline.passed()) std::this_thread::yield();
    return nullptr;
  }
  void unregister(const sys::FabricRegion*) override {}

  std::atomic<bool> is_registering = false;

 private:
  std::atomic<bool>& is_let_;
  const std::string description_ = "slow";
  const sys::FabricLimits limits_;
};

// 100 GiB take seconds, and the worker looks regions up for every pull.
TEST(Regions, AreFoundWhileANicRegistersAnother) {
  std::atomic<bool> is_let = true;
  auto domain = std::make_unique<SlowDomain>(is_let);
  SlowDomain& slow = *domain;
  std::vector<Nic> nics(1);
  nics[0].domain = std::move(domain);
  const std::unique_ptr<Gpu> gpu;
  Regions regions(nics, gpu);
  std::vector<std::byte> memory(100);
  auto first = regions.add(memory.data(), memory.size(), -1);
  ASSERT_TRUE(is_ok(first));
  is_let = slow.is_registering = false;
  std::thread other([&] { (void)regions.add(memory.data(), memory.size(), -1); });
  while (!slow.is_registering) std::this_thread::yield();
  auto found = std::async(std::launch::async, [&] { return regions.find((*first)->id); });
  EXPECT_EQ(found.wait_for(std::chrono::seconds(2)), std::future_status::ready);
  is_let = true;
  other.join();
  EXPECT_EQ(found.get(), *first);
}

}  // namespace
}  // namespace braid::engine::test
