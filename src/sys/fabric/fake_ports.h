// The state of FakeFabric, which fake.cc opens and closes and fake_flights.cc moves. All of it is
// guarded by the fabric's mutex.
#pragma once

#include <cerrno>
#include <deque>
#include <random>
#include <set>
#include <vector>

#include "sys/fabric/fake.h"

namespace braid::sys {

/// The fake's own numbers of failures; why() has the words.
enum class FakeError : uint8_t { kReset = 1, kInjected, kRefused, kLost, kClosed, kTooLong };

inline FabricEvent fake_event(FabricEvent::Kind kind, FabricOp* op) {
  FabricEvent event;
  event.kind = kind;
  event.op = op;
  return event;
}

inline FabricEvent fake_failure(FabricOp* op, FakeError error) {
  FabricEvent event = fake_event(FabricEvent::Kind::kFailed, op);
  event.error = EIO;
  event.provider_error = static_cast<int>(error);
  return event;
}

/// An operation on its way.
struct FakeFabric::Flight {
  enum class Kind : uint8_t { kWrite, kRead, kMessage };
  Kind kind = Kind::kWrite;
  FabricTransfer transfer;  // of a message: peer, local and bytes
  FabricOp* op = nullptr;   // null: already completed, or never to be
  size_t from = 0;
  size_t to = 0;
  uint64_t not_before = 0;  // poll count of the target
  int64_t arrives_at_ns = 0;
  bool is_announcement_only = false;
  bool completes_twice = false;
  bool is_zombie = false;
  std::byte* zombie_target = nullptr;  // resolved when it died
  std::vector<std::byte> zombie_bytes;
};

struct FakeFabric::Region {
  std::byte* memory = nullptr;
  size_t bytes = 0;
  Access access = Access::kBoth;
};

struct FakeFabric::Site {
  std::string address;
  std::map<uint64_t, FakeFault> faults;  // by number of the operation
  bool is_stalled = false;
  double rate_gbps = 0;
  int64_t wire_free_at_ns = 0;
};

struct FakeFabric::Port {
  size_t number = 0;
  FakeDomain* domain = nullptr;
  Site* site = nullptr;
  bool is_open = true;
  std::mt19937_64 rng;
  uint64_t num_polls = 0;
  std::set<size_t> peers;   // that it has added
  std::deque<Flight> held;  // posted with has_more
  std::deque<Flight> incoming;
  std::deque<FabricEvent> events;
  std::deque<FabricEvent> repeated;  // come again with the poll behind the one that gives them out
  struct Receive {
    FabricMessage message;
    FabricOp* op = nullptr;
  };
  std::deque<Receive> receives;
};

class FakeRegion final : public FabricRegion {
 public:
  FakeRegion(std::byte* memory, uint64_t key) : memory_(memory), key_(key) {}
  uint64_t remote_address() const override { return reinterpret_cast<uint64_t>(memory_); }
  uint64_t key() const override { return key_; }

 private:
  std::byte* memory_;
  uint64_t key_;
};

class FakeDomain final : public FabricDomain {
 public:
  FakeDomain(FakeFabric& fabric, FakeFabric::Site& site);
  ~FakeDomain() override;
  const std::string& description() const override { return description_; }
  const FabricLimits& limits() const override { return limits_; }
  Result<std::unique_ptr<FabricEndpoint>> open_endpoint(const EndpointRequest& request) override;
  Result<const FabricRegion*> register_memory(const FabricMemory& memory,
                                              uint64_t requested_key) override;
  void unregister(const FabricRegion* region) override;

 private:
  friend class FakeFabric;
  FakeFabric& fabric_;
  FakeFabric::Site& site_;
  const std::string description_;
  FabricLimits limits_;
  uint64_t num_endpoints_ = 0;
  uint64_t num_posted_ = 0;
  std::map<uint64_t, FakeFabric::Region> by_key_;
  std::map<const FabricRegion*, std::unique_ptr<FakeRegion>> regions_;
};

class FakeEndpoint final : public FabricEndpoint {
 public:
  FakeEndpoint(FakeFabric& fabric, FakeFabric::Port& port);
  ~FakeEndpoint() override;
  const std::string& name() const override { return name_; }
  Result<uint64_t> add_peer(std::string_view name) override;
  Result<bool> write(const FabricTransfer& transfer, FabricOp* op) override;
  Result<bool> read(const FabricTransfer& transfer, FabricOp* op) override;
  Result<bool> send(const FabricMessage& message, FabricOp* op) override;
  Result<bool> receive(const FabricMessage& message, FabricOp* op) override;
  size_t poll(std::span<FabricEvent> events) override;
  std::string why(const FabricEvent& failed) const override;

 private:
  FakeFabric& fabric_;
  FakeFabric::Port& port_;
  const std::string name_;
};

}  // namespace braid::sys
