// Engines for tests: pairs of them over each kind of way, and memory that shows where a byte came
// from.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "sys/fabric/fake.h"

namespace braid::engine::test {

inline constexpr int64_t kSecond = 1'000'000'000;
inline Deadline in_seconds(int64_t seconds) { return Deadline::after_ns(seconds * kSecond); }

/// How two engines of a test reach each other.
struct Way {
  std::string name;
  bool is_local = false;
  std::string provider;
  int num_nics = 1;
  sys::FakeRules rules;  // provider "fake"
};
inline void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

/// Bytes that depend on their place and on `salt`.
inline std::vector<std::byte> pattern(size_t bytes, uint32_t salt) {
  std::vector<std::byte> out(bytes);
  uint32_t x = salt * 2654435761u + 1;
  for (size_t i = 0; i < bytes; ++i) {
    x = x * 1664525u + 1013904223u;
    out[i] = static_cast<std::byte>(x >> 24);
  }
  return out;
}

class Engines {
 public:
  explicit Engines(const Way& way) : way_(way) {
    if (way.provider == "fake") fabric_ = std::make_unique<sys::FakeFabric>(way.rules);
  }

  EngineOptions options(const std::string& name) {
    EngineOptions out;
    out.name = name;
    out.token = "a token of tests";
    out.uses_local = way_.is_local;
    out.lease_ns = 20 * kSecond;
    for (int i = 0; !way_.is_local && i < way_.num_nics; ++i) {
      NicRequest nic;
      nic.provider = way_.provider;
      if (way_.provider == "fake") {
        nic.address = name + std::to_string(i);
        nic.library = fabric_.get();
      } else if (way_.provider == "verbs") {
        nic.address = "rxe" + std::to_string(i);
      } else if (way_.provider != "shm") {
        nic.address = "127.0.0." + std::to_string(i + 1);
      }
      out.nics.push_back(nic);
    }
    return out;
  }
  std::unique_ptr<Engine> make(const std::string& name) { return make(options(name)); }
  static std::unique_ptr<Engine> make(const EngineOptions& options) {
    auto engine = Engine::create(options);
    EXPECT_TRUE(engine.ok()) << engine.status().to_string();
    return engine.ok() ? std::move(engine).value() : nullptr;
  }
  sys::FakeFabric& fabric() { return *fabric_; }

 private:
  const Way way_;
  std::unique_ptr<sys::FakeFabric> fabric_;
};

/// An engine's memory, registered.
struct Memory {
  Memory(Engine& engine, size_t size, uint32_t salt) : bytes(pattern(size, salt)) {
    auto made = engine.register_memory(bytes.data(), bytes.size());
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    region = std::move(made).value();
    descriptor = engine.descriptor(*region).value();
  }
  std::vector<std::byte> bytes;
  std::shared_ptr<Region> region;
  std::string descriptor;
};

inline RemoteRegion import(Engine& engine, const Memory& memory) {
  auto region = engine.import(memory.descriptor);
  EXPECT_TRUE(region.ok()) << region.status().to_string();
  return std::move(region).value();
}

inline Address address_of(Engine& from, const Engine& to) {
  return std::move(from.import_address(to.address())).value();
}

inline TransferOptions under(uint32_t immediate, int64_t timeout_ns = 0) {
  TransferOptions options;
  options.immediate = immediate;
  options.timeout_ns = timeout_ns;
  return options;
}

inline testing::AssertionResult is_ok(const Status& status) {
  if (status.ok()) return testing::AssertionSuccess();
  return testing::AssertionFailure() << status.to_string();
}
template <typename T>
testing::AssertionResult is_ok(const Result<T>& result) {
  return is_ok(result.status());
}
/// Whether it failed so, with these words in its message.
inline testing::AssertionResult failed(const Status& status, Code code, std::string_view words) {
  if (status.code() == code && status.message().find(words) != std::string::npos)
    return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << status.to_string() << "; expected " << code_name(code) << " with '" << words << "'";
}

inline Status wait(const Result<TicketPtr>& ticket, int64_t seconds = 20) {
  return ticket.ok() ? ticket.value()->wait(in_seconds(seconds)) : ticket.status();
}

}  // namespace braid::engine::test
