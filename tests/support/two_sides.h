// A test that runs on two sides, each with devices of its own: this process and a child of it, or
// two processes on two machines that run the same tests at the same time.
//
//   BRAID_VERBS_DEVICES=rxe0,rxe1  which devices; without it those that are there, and where there
//                                  are none the tests say skipped
//   BRAID_VERBS_SIDE=0|1           which side this process is, on two machines
//   BRAID_VERBS_PEER=10.80.0.1     where side 0 listens
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "sys/fd.h"
#include "sys/net/api.h"
#include "sys/verbs/api.h"

namespace braid::test {

/// The devices to test on; empty: skip.
std::vector<std::string> verbs_devices();

class Side {
 public:
  Side(int index, int other_pid, sys::Fd control)
      : index_(index), other_pid_(other_pid), control_(std::move(control)) {}

  bool is_first() const { return index_ == 0; }
  /// Sends a signal to the other side's process; only where it is a child of this one.
  void signal_other(int number) {
    ASSERT_GT(other_pid_, 0);
    was_killed_ |= number == SIGKILL;
    kill(other_pid_, number);
  }
  bool was_other_killed() const { return was_killed_; }
  /// Gives the other side `mine` and answers what it gave.
  std::string exchange(const std::string& mine);
  /// Both sides are here.
  void meet() { exchange(""); }

 private:
  int index_;
  int other_pid_;
  bool was_killed_ = false;
  sys::Fd control_;
};

/// Runs `body` on both sides. A failure on either is a failure of the test.
void run_two_sides(const std::function<void(Side&)>& body);
bool is_on_two_machines();

/// One side's end of a connection: 16 MiB of memory that can be written from and to.
struct End {
  static constexpr size_t kBytes = size_t{16} << 20;

  std::unique_ptr<sys::FabricDomain> domain;
  std::vector<std::byte> memory = std::vector<std::byte>(kBytes);
  const sys::FabricRegion* region = nullptr;
  std::unique_ptr<sys::FabricEndpoint> endpoint;
  uint64_t peer = 0;
  uint64_t remote_address = 0, remote_key = 0;

  /// A transfer of `bytes` between our memory at `here` and the peer's at `there`.
  sys::FabricTransfer transfer(size_t here, size_t there, size_t bytes) const;
  /// Polls, once at least, until `count` events are there or `seconds` have passed.
  std::vector<sys::FabricEvent> wait(size_t count, double seconds = 30);
};

/// Opens `device`, registers, and connects with the other side.
void connect(Side& side, End& end, const std::string& device, uint32_t queue_depth = 256);
/// A new endpoint on the same domain, connected with the other side's.
void connect_again(Side& side, End& end, uint32_t queue_depth = 256);

inline constexpr int64_t kSecondNs = 1'000'000'000;
inline constexpr uint16_t kMeetingPort = 5999;

inline Deadline soon() { return Deadline::after_ns(60 * kSecondNs); }

inline std::string variable(const char* name) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nobody writes it
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

inline sys::Fd meet_other_machine(int index) {
  static sys::Fd listener;
  if (index == 1) {
    const auto where = sys::resolve(variable("BRAID_VERBS_PEER"), kMeetingPort).value().front();
    for (const Deadline end = soon(); !end.passed();) {
      auto connected = sys::connect_to(where, Deadline::after_ns(kSecondNs));
      if (connected.ok()) return std::move(connected).value();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return {};
  }
  if (!listener.is_open()) {
    const auto where = sys::resolve("0.0.0.0", kMeetingPort).value().front();
    listener = std::move(sys::listen_on(where, 8)).value();
  }
  auto accepted = sys::accept_on(listener.get(), soon());
  return accepted.ok() ? std::move(accepted).value() : sys::Fd();
}

inline void run_with_child(const std::function<void(Side&)>& body) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
  sys::Fd ours(ends[0]), theirs(ends[1]);
  const pid_t child = fork();
  if (child == 0) {
    ours.reset();
    {
      Side side(1, 0, std::move(theirs));
      body(side);
    }
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  theirs.reset();
  bool was_killed = false;
  {
    Side side(0, child, std::move(ours));
    body(side);
    was_killed = side.was_other_killed();
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (!was_killed) {
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
        << "the other side failed: status " << status;
  }
}

inline std::vector<std::string> verbs_devices() {
  std::vector<std::string> devices;
  std::istringstream names(variable("BRAID_VERBS_DEVICES"));
  for (std::string name; std::getline(names, name, ',');) devices.push_back(name);
  if (!devices.empty()) return devices;
  const auto library = sys::real_verbs();
  if (!library.ok()) return devices;
  auto found = library.value()->interfaces("verbs");
  for (size_t i = 0; found.ok() && i < found.value().size(); ++i)
    devices.push_back(found.value()[i].name);
  return devices;
}

inline bool is_on_two_machines() { return !variable("BRAID_VERBS_SIDE").empty(); }

inline void run_two_sides(const std::function<void(Side&)>& body) {
  if (!is_on_two_machines()) return run_with_child(body);
  const int index = variable("BRAID_VERBS_SIDE") == "1" ? 1 : 0;
  sys::Fd control = meet_other_machine(index);
  ASSERT_TRUE(control.is_open()) << "the other machine did not come";
  Side side(index, 0, std::move(control));
  body(side);
}

inline std::string Side::exchange(const std::string& mine) {
  const auto size = static_cast<uint32_t>(mine.size());
  std::string out(sizeof size, '\0');
  std::memcpy(out.data(), &size, sizeof size);
  out += mine;
  EXPECT_TRUE(sys::send_all(control_.get(), std::as_bytes(std::span(out)), soon()).ok());
  uint32_t theirs = 0;
  EXPECT_TRUE(
      sys::recv_all(control_.get(), std::as_writable_bytes(std::span(&theirs, 1)), soon()).ok());
  std::string in(theirs, '\0');
  EXPECT_TRUE(sys::recv_all(control_.get(), std::as_writable_bytes(std::span(in)), soon()).ok());
  return in;
}

inline void connect_again(Side& side, End& end, uint32_t queue_depth) {
  end.endpoint.reset();
  auto opened = end.domain->open_endpoint({.queue_depth = queue_depth});
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  end.endpoint = std::move(opened).value();
  const auto peer = end.endpoint->add_peer(side.exchange(end.endpoint->name()));
  ASSERT_TRUE(peer.ok()) << peer.status().to_string();
  end.peer = peer.value();
  side.meet();
}

inline void connect(Side& side, End& end, const std::string& device, uint32_t queue_depth) {
  const auto library = sys::real_verbs();
  ASSERT_TRUE(library.ok()) << library.status().to_string();
  auto opened = library.value()->open({.address = device});
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  end.domain = std::move(opened).value();
  const auto region =
      end.domain->register_memory({.base = end.memory.data(), .bytes = end.memory.size()}, 0);
  ASSERT_TRUE(region.ok()) << region.status().to_string();
  end.region = region.value();
  const uint64_t mine[2] = {end.region->remote_address(), end.region->key()};
  const std::string theirs =
      side.exchange(std::string(reinterpret_cast<const char*>(mine), sizeof mine));
  ASSERT_EQ(theirs.size(), sizeof mine);
  std::memcpy(&end.remote_address, theirs.data(), 8);
  std::memcpy(&end.remote_key, theirs.data() + 8, 8);
  connect_again(side, end, queue_depth);
}

inline sys::FabricTransfer End::transfer(size_t here, size_t there, size_t bytes) const {
  return {.peer = peer,
          .local_region = region,
          .local = const_cast<std::byte*>(memory.data()) + here,
          .bytes = bytes,
          .remote_address = remote_address + there,
          .remote_key = remote_key,
          .immediate = std::nullopt};
}

inline std::vector<sys::FabricEvent> End::wait(size_t count, double seconds) {
  std::vector<sys::FabricEvent> out;
  const Deadline end = Deadline::after_ns(static_cast<int64_t>(seconds * 1e9));
  do {
    sys::FabricEvent events[16];
    const size_t wanted = std::min(std::size(events), count - out.size());
    const size_t got = endpoint->poll(std::span(events).first(wanted));
    out.insert(out.end(), events, events + got);
    if (got == 0) std::this_thread::yield();
  } while (out.size() < count && !end.passed());
  return out;
}

}  // namespace braid::test
