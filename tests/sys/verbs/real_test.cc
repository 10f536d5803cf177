// What one process can see of a device by itself; without a device, what is said then.
#include "sys/verbs/api.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <thread>

#include "support/two_sides.h"

namespace braid::sys {
namespace {

TEST(RealVerbs, WithoutADeviceOpeningSaysWhatIsThere) {
  const auto library = real_verbs();
  if (!library.ok()) {
    EXPECT_EQ(library.status().code(), Code::kUnavailable);
    GTEST_SKIP() << library.status().to_string();
  }
  const auto opened = library.value()->open({.address = "nowhere_7"});
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.status().code(), Code::kUnavailable);
  EXPECT_NE(opened.status().message().find("nowhere_7"), std::string::npos);
  EXPECT_EQ(library.value()->open({.address = "mlx5_0:x"}).status().code(), Code::kInvalidArgument);
}

class VerbsDevice : public testing::Test {
 protected:
  void SetUp() override {
    const auto devices = test::verbs_devices();
    if (devices.empty()) GTEST_SKIP() << "no RDMA device";
    device_ = devices[0];
    library_ = real_verbs().value();
    auto opened = library_->open({.address = device_});
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    domain_ = std::move(opened).value();
  }
  Code code_of(const FabricMemory& memory) {
    return domain_->register_memory(memory, 0).status().code();
  }
  std::string device_;
  FabricLibrary* library_ = nullptr;
  std::unique_ptr<FabricDomain> domain_;
};

TEST_F(VerbsDevice, IsListedWithItsAddressAndCanBeOpenedByIt) {
  const auto found = library_->interfaces("verbs");
  ASSERT_TRUE(found.ok());
  const auto it =
      std::ranges::find_if(found.value(), [&](const auto& i) { return i.name == device_; });
  ASSERT_NE(it, found.value().end());
  EXPECT_EQ(it->provider, "verbs");
  EXPECT_GT(it->rate_gbps, 0);
  ASSERT_FALSE(it->address.empty());
  const auto opened = library_->open({.address = it->address});
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  EXPECT_EQ(opened.value()->description(), domain_->description());
}

TEST_F(VerbsDevice, SaysWhatItCanDo) {
  const FabricLimits limits = domain_->limits();
  EXPECT_TRUE(limits.is_truthful);
  EXPECT_TRUE(limits.has_trusted_immediates);
  EXPECT_GE(limits.max_write_bytes, size_t{1} << 20);
  const auto opened =
      library_->open({.address = device_, .max_write_bytes = limits.max_write_bytes + 1});
  EXPECT_EQ(opened.status().code(), Code::kUnsupported);
}

TEST_F(VerbsDevice, AGidThatIsNotThereIsNamedBesideThoseThatAre) {
  const auto opened = library_->open({.address = device_ + ":1:250"});
  ASSERT_EQ(opened.status().code(), Code::kUnavailable);
  EXPECT_NE(opened.status().message().find("250"), std::string::npos);
  EXPECT_NE(opened.status().message().find("RoCE v2"), std::string::npos);
}

// An end at a link-local address cannot talk to one at an IPv4 address.
TEST_F(VerbsDevice, GidsOfTwoKindsAreRefused) {
  const auto link_local = library_->open({.address = device_ + ":1:0"});
  ASSERT_TRUE(link_local.ok()) << link_local.status().to_string();
  auto theirs = link_local.value()->open_endpoint({});
  auto ours = domain_->open_endpoint({});
  const auto added = ours.value()->add_peer(theirs.value()->name());
  ASSERT_EQ(added.status().code(), Code::kInvalidArgument);
  EXPECT_NE(added.status().message().find("fe80::"), std::string::npos);
}

TEST_F(VerbsDevice, RegistersWhatIsThere) {
  alignas(4096) static std::byte memory[8192];
  EXPECT_EQ(code_of({.base = memory, .bytes = sizeof memory}), Code::kOk);
  EXPECT_EQ(code_of({.base = memory, .bytes = 0}), Code::kInvalidArgument);
  EXPECT_EQ(code_of({.base = nullptr, .bytes = 10}), Code::kInvalidArgument);
  void* read_only = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  auto* bytes = static_cast<std::byte*>(read_only);
  EXPECT_EQ(code_of({.base = bytes, .bytes = 4096, .access = Access::kLocalSource}), Code::kOk)
      << "what can only be read can be written from";
  EXPECT_NE(code_of({.base = bytes, .bytes = 4096, .access = Access::kBoth}), Code::kOk);
  munmap(read_only, 4096);
  EXPECT_NE(code_of({.base = bytes, .bytes = 4096}), Code::kOk) << "nothing is mapped there";
}

// A domain is asked by several threads at once, each with endpoints of its own.
TEST_F(VerbsDevice, ServesSeveralThreadsAtOnce) {
  constexpr uint32_t kWrites = 200;
  const auto work = [&](uint32_t who) {
    std::vector<std::byte> memory(8192);
    auto from = std::move(domain_->open_endpoint({.queue_depth = 16})).value();
    auto to = std::move(domain_->open_endpoint({.queue_depth = 16})).value();
    ASSERT_TRUE(to->add_peer(from->name()).ok());
    const uint64_t peer = from->add_peer(to->name()).value();
    uint32_t arrived = 0, completed = 0, posted = 0;
    const FabricRegion* region = nullptr;
    FabricOp op;
    const Deadline end = Deadline::after_ns(60'000'000'000);
    while ((arrived < kWrites || completed < kWrites) && !end.passed()) {
      if (completed == posted) {  // nothing is under way: the region may change
        domain_->unregister(region);
        region = domain_->register_memory({memory.data(), memory.size()}, 0).value();
        memory[0] = static_cast<std::byte>(posted + who);
      }
      const FabricTransfer t{.peer = peer,
                             .local_region = region,
                             .local = memory.data(),
                             .bytes = 4096,
                             .remote_address = region->remote_address() + 4096,
                             .remote_key = region->key(),
                             .immediate = who};
      if (posted < kWrites && from->write(t, &op).value()) ++posted;
      FabricEvent events[8];
      for (size_t n = from->poll(events); n > 0; --n) {
        ASSERT_EQ(events[n - 1].kind, FabricEvent::Kind::kCompleted);
        ++completed;
      }
      for (size_t n = to->poll(events); n > 0; --n) {
        ASSERT_EQ(events[n - 1].kind, FabricEvent::Kind::kArrived);
        EXPECT_EQ(events[n - 1].immediate, who) << "of another thread's endpoint";
        ++arrived;
      }
    }
    EXPECT_EQ(arrived, kWrites);
    EXPECT_EQ(completed, kWrites);
  };
  std::vector<std::thread> threads;
  for (uint32_t who = 0; who < 3; ++who) threads.emplace_back(work, who);
  for (std::thread& thread : threads) thread.join();
}

TEST_F(VerbsDevice, AGpusMemoryIsRefusedWhereTheDeviceDoesNotReachIt) {
  bool reaches = false;
  const auto found = library_->interfaces("verbs");
  for (const auto& i : found.value()) reaches = reaches || i.reaches_gpus;
  if (reaches) GTEST_SKIP() << "this device takes dma-bufs";
  alignas(4096) static std::byte memory[4096];
  const int file = open("/dev/null", O_RDWR | O_CLOEXEC);
  const auto registered = domain_->register_memory(
      {.base = memory, .bytes = sizeof memory, .cuda_device = 0, .dmabuf_fd = file}, 0);
  close(file);
  ASSERT_EQ(registered.status().code(), Code::kUnsupported);
  EXPECT_NE(registered.status().message().find("GPU 0"), std::string::npos);
  EXPECT_EQ(code_of({.base = memory, .bytes = sizeof memory, .cuda_device = 1}), Code::kUnsupported)
      << "a device's address must not be taken for one of the host's";
}

}  // namespace
}  // namespace braid::sys
