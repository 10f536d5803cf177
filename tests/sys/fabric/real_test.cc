// The real libfabric over the providers that every machine has, both ends in one thread.
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "base/clock.h"
#include "sys/fabric/api.h"

namespace braid::sys {
namespace {

class RealFabric : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const auto library = real_fabric();
    if (!library.ok()) GTEST_SKIP() << library.status().message();
    library_ = library.value();
    auto first = library_->open(request()), second = library_->open(request());
    ASSERT_TRUE(first.ok()) << first.status().to_string();
    ASSERT_TRUE(second.ok()) << second.status().to_string();
    domain_a_ = std::move(first).value();
    domain_b_ = std::move(second).value();
    auto a = domain_a_->open_endpoint({}), b = domain_b_->open_endpoint({});
    ASSERT_TRUE(a.ok()) << a.status().to_string();
    ASSERT_TRUE(b.ok()) << b.status().to_string();
    a_ = std::move(a).value();
    b_ = std::move(b).value();
    source_.resize(1 << 16);
    target_.resize(1 << 16);
    for (size_t i = 0; i < source_.size(); ++i)
      source_[i] = static_cast<std::byte>(i * 7 + i / 256);
    from_ =
        domain_a_
            ->register_memory({source_.data(), source_.size(), Access::kLocalSource}, random_key())
            .value();
    to_ =
        domain_b_
            ->register_memory({target_.data(), target_.size(), Access::kRemoteTarget}, random_key())
            .value();
    peer_ = a_->add_peer(b_->name()).value();
    ASSERT_TRUE(b_->add_peer(a_->name()).ok());
  }
  DomainRequest request() const {
    DomainRequest r;
    r.provider = GetParam();
    r.address = "127.0.0.1";
    return r;
  }
  FabricTransfer write_of(size_t bytes, uint32_t immediate) {
    FabricTransfer w;
    w.peer = peer_;
    w.local_region = from_;
    w.local = source_.data();
    w.bytes = bytes;
    w.remote_address = to_->remote_address();
    w.remote_key = to_->key();
    w.immediate = immediate;
    return w;
  }
  /// Polls both ends until `count` immediates came or the time is up; false when the post never
  /// went out.
  bool send(const FabricTransfer& w, size_t count, int64_t timeout_ns = 10'000'000'000) {
    const Deadline deadline = Deadline::after_ns(timeout_ns);
    bool is_posted = false;
    FabricEvent events[8];
    while (!deadline.passed() && (!is_posted || seen_.size() < count)) {
      if (!is_posted) {
        const auto posted = a_->write(w, &op_);
        if (!posted.ok()) why_ = posted.status().to_string();
        is_posted = posted.ok() && posted.value();
      }
      for (size_t n = b_->poll(events), i = 0; i < n; ++i)
        if (events[i].kind == FabricEvent::Kind::kArrived) seen_.push_back(events[i].immediate);
      a_->poll(events);
    }
    return is_posted;
  }

  FabricLibrary* library_ = nullptr;
  std::vector<std::byte> source_, target_;
  std::unique_ptr<FabricDomain> domain_a_, domain_b_;
  std::unique_ptr<FabricEndpoint> a_, b_;
  const FabricRegion* from_ = nullptr;
  const FabricRegion* to_ = nullptr;
  uint64_t peer_ = 0;
  FabricOp op_;
  std::vector<uint32_t> seen_;
  std::string why_;  // why the last write was refused
};

TEST_P(RealFabric, WritesLandWholeWithAll32BitsOfTheImmediate) {
  uint32_t immediate = 0xFEDCBA90;
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{4097}, source_.size()}) {
    std::fill(target_.begin(), target_.end(), std::byte{0});
    seen_.clear();
    ASSERT_TRUE(send(write_of(bytes, ++immediate), 1)) << bytes << " bytes: " << why_;
    ASSERT_EQ(seen_, std::vector<uint32_t>{immediate}) << bytes << " bytes";
    EXPECT_EQ(std::memcmp(target_.data(), source_.data(), bytes), 0);
    if (bytes < target_.size()) {
      EXPECT_EQ(target_[bytes], std::byte{0});
    }
  }
}

TEST_P(RealFabric, WrongKeyLandsNothing) {
  ASSERT_TRUE(send(write_of(1, 1), 1));
  FabricTransfer w = write_of(64, 2);
  w.remote_key ^= 0x5555;
  std::fill(target_.begin(), target_.end(), std::byte{0});
  seen_.clear();
  send(w, 1, 300'000'000);
  EXPECT_TRUE(seen_.empty());
  for (const std::byte b : target_) ASSERT_EQ(b, std::byte{0});
}

TEST_P(RealFabric, SignalHandlersStayAsTheyWere) {
  for (const int signal : {SIGINT, SIGTERM, SIGBUS}) {
    struct sigaction now;
    sigaction(signal, nullptr, &now);
    const auto handler = now.sa_handler;
    auto another = library_->open(request());
    ASSERT_TRUE(another.ok());
    sigaction(signal, nullptr, &now);
    EXPECT_EQ(now.sa_handler, handler) << "signal " << signal;
  }
}

TEST_P(RealFabric, InterfacesAreListedOnce) {
  const auto found = library_->interfaces(GetParam());
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  ASSERT_FALSE(found.value().empty());
  std::set<std::string> lines;
  for (const FabricInterface& i : found.value())
    EXPECT_TRUE(lines.insert(i.provider + i.name + i.address).second)
        << i.provider << i.name << i.address;
}

// Provider shm copies by itself, from devices too, and has always said so; others differ by build.
TEST_P(RealFabric, InterfacesSayWhetherTheyReachDevices) {
  const auto found = library_->interfaces(GetParam());
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  for (const FabricInterface& i : found.value())
    EXPECT_TRUE(i.reaches_gpus || std::string_view(GetParam()) != "shm") << i.name;
}

INSTANTIATE_TEST_SUITE_P(Providers, RealFabric, testing::Values("tcp", "shm"));

TEST(FabricKeys, AreRandomNonZeroAnd63Bits) {
  std::set<uint64_t> keys;
  for (int i = 0; i < 1000; ++i) {
    const uint64_t key = random_key();
    EXPECT_NE(key, 0u);
    EXPECT_EQ(key >> 63, 0u);
    keys.insert(key);
  }
  EXPECT_EQ(keys.size(), 1000u);
}

}  // namespace
}  // namespace braid::sys
