// A fabric inside the process that misbehaves on request. Real software providers deliver in order
// on one machine, so they can never show that something relied on order; and they fail when they
// like, not at the k-th write.
//
// Nothing moves by itself: a write lands when its TARGET polls, as on provider tcp. The source is
// read at that moment, not when it was posted, so a sender that reuses it too early is found out.
// With one thread polling all endpoints, everything that happens follows from the seed.
//
// Threads: any; one mutex. Endpoints may outlive each other, none may outlive the fabric.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "sys/fabric/api.h"

namespace braid::sys {

struct FakeRules {
  uint64_t seed = 1;
  uint32_t reorder_window = 1;  // a target takes any of the first so many writes on their way to it
  uint32_t max_delay_polls = 0;    // every write waits for 0 to so many polls of its target
  uint32_t duplicate_percent = 0;  // arrivals that are announced again later
  uint32_t busy_percent = 0;       // posts that are answered "busy"
  uint32_t max_writes_per_poll = 4;
  bool reaches_gpus = false;  // as its interface claims
};

enum class FakeFault {
  kDrop,   // completes with success and never lands
  kReset,  // this write and all that are on their way between the two ends fail; none of them lands
  kZombie,  // as kReset, but they land all the same, much later and although their key was taken
            // back
  kMute,    // lands, and its completion never comes
};

class FakeEndpoint;

class FakeFabric : public FabricLibrary {
 public:
  explicit FakeFabric(const FakeRules& rules = {});
  ~FakeFabric() override;

  Result<std::unique_ptr<FabricEndpoint>> open(const EndpointRequest& request) override;
  Result<std::vector<FabricInterface>> interfaces(const std::string& provider) override;

  /// The `nth` write (from 0, from now on) that the endpoint opened at `address` posts meets
  /// `fault`.
  void inject(const std::string& address, uint64_t nth, FakeFault fault);
  /// While cut, nothing lands in either direction; writes wait, as in a socket whose link is down.
  void cut(const std::string& a, const std::string& b);
  void mend(const std::string& a, const std::string& b);
  /// The next open() at `address` answers unavailable.
  void forbid(const std::string& address);
  /// Writes that named no valid region, or left it. They complete with success, as on tcp and shm.
  uint64_t num_refused() const;
  /// Writes that landed.
  uint64_t num_landed() const;

 private:
  friend class FakeEndpoint;
  struct Flight;
  struct Port;  // what one endpoint has in the fabric

  Port* port_at(const std::string& address);
  uint64_t random(Port& port, uint64_t below);
  bool is_cut(const Port& a, const Port& b) const;
  Result<bool> post(Port& from, const FabricWrite& write, FabricOp* op);
  void meet_fault(Port& from, Flight flight, FakeFault fault);
  void reset(Port& a, Port& b, bool as_zombies, const char* why);
  size_t poll(Port& port, std::span<FabricEvent> events);
  bool land_one(Port& to);
  void land(Port& to, const Flight& flight);

  const FakeRules rules_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Port>> ports_;  // by peer number; closed ones stay, empty
  std::vector<std::pair<const Port*, const Port*>> cuts_;
  std::vector<std::string> forbidden_;
  std::map<std::string, std::map<uint64_t, FakeFault>>
      faults_;  // by address, before and after it opens
  uint64_t num_refused_ = 0;
  uint64_t num_landed_ = 0;
};

}  // namespace braid::sys
