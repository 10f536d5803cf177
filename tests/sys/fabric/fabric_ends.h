// What the conformance suite of fabrics stands on: the libraries it runs on, and ends that write to
// each other.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "sys/fabric/api.h"

namespace braid::sys {

/// A library that the suite runs on. To add one: a line in fabrics_under_test().
struct FabricUnderTest {
  std::string name;
  std::string provider;
  std::string address;
  // A Status says why its tests are skipped.
  std::function<Result<std::shared_ptr<FabricLibrary>>()> open;
};

inline void PrintTo(const FabricUnderTest& fabric, std::ostream* out) { *out << fabric.name; }

/// A byte that depends on its position and on whose it is.
inline std::byte byte_at(size_t i, uint32_t seed) {
  return static_cast<std::byte>((i * 7 + (i >> 8) * 13 + (i >> 16) * 29 + seed * 101) & 0xFF);
}

/// A domain with one endpoint and registered memory.
struct End {
  std::unique_ptr<FabricDomain> domain;
  std::vector<std::byte> memory;  // outlives the endpoint, through which it may be written
  std::unique_ptr<FabricEndpoint> endpoint;
  const FabricRegion* region = nullptr;

  // Completions by operation, arrivals by immediate, in the order of their coming.
  std::map<const FabricOp*, int> completed, failed;
  std::map<const FabricOp*, uint32_t> received;  // bytes
  std::vector<uint32_t> arrived;
  std::string last_failure;

  End() = default;
  End(End&&) = default;
  End& operator=(End&&) = default;
  ~End() { close(); }
  void close() {
    endpoint.reset();
    domain.reset();
  }

  void poll() {
    FabricEvent events[16];
    const size_t n = endpoint->poll(events);
    for (size_t i = 0; i < n; ++i) note(events[i]);
  }
  void note(const FabricEvent& e) {
    switch (e.kind) {
      case FabricEvent::Kind::kCompleted: ++completed[e.op]; break;
      case FabricEvent::Kind::kArrived: arrived.push_back(e.immediate); break;
      case FabricEvent::Kind::kReceived: received[e.op] = e.bytes; break;
      case FabricEvent::Kind::kFailed:
        ++failed[e.op];
        last_failure = endpoint->why(e);
        break;
    }
  }
  // Block by block: 256 bytes in a row are the same ramp, begun elsewhere (183 * 7 is 1 of 256).
  void fill(uint32_t seed) {
    std::byte ramp[512];
    for (size_t i = 0; i < std::size(ramp); ++i) ramp[i] = static_cast<std::byte>(i * 7 & 0xFF);
    for (size_t i = 0; i < memory.size(); i += 256) {
      const auto begun = static_cast<uint8_t>(static_cast<uint8_t>(byte_at(i, seed)) * 183);
      std::memcpy(&memory[i], ramp + begun, std::min<size_t>(256, memory.size() - i));
    }
  }
  void poison(std::byte value) { std::fill(memory.begin(), memory.end(), value); }
};

class FabricConformance : public testing::TestWithParam<FabricUnderTest> {
 protected:
  void SetUp() override {
    auto opened = GetParam().open();
    if (!opened.ok()) GTEST_SKIP() << "skipped: " << opened.status().message();
    library_ = std::move(opened).value();
  }

  std::unique_ptr<FabricDomain> open_domain() {
    auto domain = library_->open({.provider = GetParam().provider, .address = GetParam().address});
    EXPECT_TRUE(domain.ok()) << domain.status().to_string();
    return domain.ok() ? std::move(domain).value() : nullptr;
  }
  End make_end(size_t bytes, Access access = Access::kBoth) {
    End end;
    end.domain = open_domain();
    if (end.domain == nullptr) return end;
    end.memory.resize(bytes);
    end.region = register_in(end, end.memory.data(), bytes, access);
    auto endpoint = end.domain->open_endpoint({});
    EXPECT_TRUE(endpoint.ok()) << endpoint.status().to_string();
    end.endpoint = std::move(endpoint).value();
    return end;
  }
  /// Another endpoint on `of`'s domain, without memory: for one more peer, because some endpoints
  /// have no more than one.
  static End another_endpoint(End& of) {
    End end;
    auto endpoint = of.domain->open_endpoint({});
    EXPECT_TRUE(endpoint.ok()) << endpoint.status().to_string();
    end.endpoint = std::move(endpoint).value();
    return end;
  }
  static const FabricRegion* register_in(End& end, std::byte* base, size_t bytes, Access access) {
    auto region = end.domain->register_memory({base, bytes, access}, random_key());
    EXPECT_TRUE(region.ok()) << region.status().to_string();
    return region.ok() ? region.value() : nullptr;
  }
  /// Makes `a` and `b` know each other; a's number of b.
  static uint64_t introduce(FabricEndpoint& a, FabricEndpoint& b) {
    EXPECT_TRUE(b.add_peer(a.name()).ok());
    const auto peer = a.add_peer(b.name());
    EXPECT_TRUE(peer.ok()) << peer.status().to_string();
    return peer.value();
  }
  /// Polls the ends until `is_done`; false when the time is up.
  static bool poll_until(std::initializer_list<End*> ends, const std::function<bool()>& is_done,
                         int64_t timeout_ns = 20'000'000'000) {
    for (const Deadline deadline = Deadline::after_ns(timeout_ns); !is_done();) {
      if (deadline.passed()) return false;
      for (End* end : ends)
        if (end->endpoint != nullptr) end->poll();
      sched_yield();
    }
    return true;
  }
  /// Calls `post` until it is not busy.
  static Status post_until_taken(std::initializer_list<End*> ends,
                                 const std::function<Result<bool>()>& post) {
    Status refused;
    bool is_taken = false;
    const bool in_time = poll_until(ends, [&] {
      const Result<bool> posted = post();
      refused = posted.status();
      is_taken = posted.ok() && posted.value();
      return is_taken || !posted.ok();
    });
    return in_time ? refused : timeout("busy for 20 s");
  }
  /// From `offset` of one end's memory to the same of the other's.
  static FabricTransfer transfer(uint64_t peer, End& from, const End& to, size_t offset,
                                 size_t bytes) {
    FabricTransfer t;
    t.peer = peer;
    t.local_region = from.region;
    t.local = from.memory.data() + offset;
    t.bytes = bytes;
    t.remote_address = to.region->remote_address() + offset;
    t.remote_key = to.region->key();
    return t;
  }
  static bool are_equal(const End& a, const End& b, size_t offset, size_t bytes) {
    return std::equal(a.memory.begin() + static_cast<std::ptrdiff_t>(offset),
                      a.memory.begin() + static_cast<std::ptrdiff_t>(offset + bytes),
                      b.memory.begin() + static_cast<std::ptrdiff_t>(offset));
  }
  static bool holds_only(const std::vector<std::byte>& memory, std::byte value) {
    return memory.empty() || (memory[0] == value &&
                              std::memcmp(&memory[0], memory.data() + 1, memory.size() - 1) == 0);
  }

  std::shared_ptr<FabricLibrary> library_;
};

}  // namespace braid::sys
