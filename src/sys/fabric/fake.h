// A fabric inside the process that misbehaves on request. Real software providers deliver in order
// on one machine, so they can never show that something relied on order; and they fail when they
// like, not at the k-th write.
//
// Nothing moves by itself: a write lands, a read is answered and a message is taken when the TARGET
// polls, as on provider tcp. The source is read at that moment, not when it was posted, so a sender
// that reuses it too early is found out. Operations with has_more leave when one without it is
// posted, or with the next poll. With one thread polling all endpoints, everything that happens
// follows from the seed.
//
// A domain is known by the address it was opened at; faults, cuts, stalls and rates are of domains.
//
// Threads: any; one mutex. Endpoints may outlive each other, none may outlive its domain, and no
// domain the fabric.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "sys/fabric/api.h"

namespace braid::sys {

struct FakeRules {
  uint64_t seed = 1;
  uint32_t reorder_window =
      1;  // a target takes any of the first so many that are on their way to it
  uint32_t max_delay_polls = 0;    // every operation waits for 0 to so many polls of its target
  uint32_t duplicate_percent = 0;  // arrivals that are announced again later
  uint32_t busy_percent = 0;       // posts that are answered "busy"
  uint32_t max_writes_per_poll = 4;
  bool reaches_gpus = false;    // as its interface claims; such memory is read like any other
  uint32_t repeat_percent = 0;  // completions with success that come a second time
  bool is_truthful = false;     // else what is dropped or refused completes with success
  bool lost_fails = true;       // where truthful: what is dropped or refused fails; else silence
  bool has_trusted_immediates = false;  // endpoints refuse peers that they have not added
  bool can_read = true;
  bool fears_late_arrivals = false;      // as its domains say; nothing happens
  bool delays_acknowledgements = false;  // the same
  uint64_t max_write_bytes = UINT64_MAX;
  int64_t (*now_ns)() = &braid::now_ns;  // for rates
};

enum class FakeFault : uint8_t {
  kDrop,    // never lands; what its sender hears is told by is_truthful and lost_fails
  kReset,   // this one and all that are on their way between the two ends fail; none of them lands
  kZombie,  // as kReset, but the writes land all the same, much later and although their key was
            // taken back
  kMute,    // lands, and its completion never comes
  kFail,    // fails alone, without landing
  kRepeat,  // its completion comes twice, the second time one poll later
};

class FakeEndpoint;
class FakeDomain;

class FakeFabric : public FabricLibrary {
 public:
  explicit FakeFabric(const FakeRules& rules = {});
  ~FakeFabric() override;

  Result<std::unique_ptr<FabricDomain>> open(const DomainRequest& request) override;
  Result<std::vector<FabricInterface>> interfaces(const std::string& provider) override;

  /// The `nth` operation (from 0, from now on) that each domain at `address` posts meets `fault`.
  void inject(const std::string& address, uint64_t nth, FakeFault fault);
  /// While cut, nothing lands in either direction; writes wait, as in a socket whose link is down.
  void cut(const std::string& a, const std::string& b);
  void mend(const std::string& a, const std::string& b);
  /// A domain that says nothing until it is resumed: what it and others post to each other waits,
  /// and its endpoints hear of nothing.
  void stall(const std::string& address);
  void resume(const std::string& address);
  /// What leaves the domain from now on takes its time on one wire; 0: none, as at first.
  void set_rate(const std::string& address, double gbps);
  /// Somebody without any key, at no endpoint of ours, sends the endpoint called `name` an immediate,
  /// as who connects to a listening socket can.
  void forge(std::string_view name, uint32_t immediate);
  /// The next open() at `address` answers unavailable.
  void forbid(const std::string& address);
  /// Operations that named no valid region, or left it.
  uint64_t num_refused() const;
  /// Writes that landed.
  uint64_t num_landed() const;
  /// Domains, endpoints and regions that are open: 0 when everything was given back.
  uint64_t num_open() const;

 private:
  friend class FakeEndpoint;
  friend class FakeDomain;
  struct Flight;
  struct Region;
  struct Site;  // what an address has in the fabric, before and after a domain is opened there
  struct Port;  // what an endpoint has in the fabric

  Site& site_at(const std::string& address);
  Port* port_called(std::string_view name) const;
  uint64_t random(Port& port, uint64_t below);
  bool is_cut(const Site& a, const Site& b) const;

  // Posting (fake_flights.cc).
  Result<bool> post(Port& from, Flight flight, bool has_more);
  void flush(Port& from);
  void depart(Port& from, Flight flight);
  void meet_fault(Port& from, Flight flight, FakeFault fault);
  void reset(Port& a, Port& b, bool as_zombies);
  void complete(const Flight& flight);
  void fail(const Flight& flight, int provider_error);
  void lose(const Flight& flight, int provider_error);
  void close(Port& port);

  // Landing (fake_landing.cc).
  size_t poll(Port& port, std::span<FabricEvent> events);
  bool may_land(const Flight& flight, const Port& to) const;
  bool land_one(Port& to);
  void land(Port& to, Flight& flight);
  std::byte* resolve(const Port& to, const Flight& flight) const;
  void land_write(Port& to, Flight& flight);
  void land_message(Port& to, const Flight& flight);
  void announce(Port& to, const Flight& flight);

  const FakeRules rules_;
  mutable std::mutex mutex_;
  std::map<std::string, std::unique_ptr<Site>> sites_;
  std::vector<std::unique_ptr<Port>> ports_;  // by peer number; closed ones stay, empty
  std::vector<std::pair<const Site*, const Site*>> cuts_;
  std::vector<std::string> forbidden_;
  uint64_t num_refused_ = 0;
  uint64_t num_landed_ = 0;
  uint64_t num_open_ = 0;
};

}  // namespace braid::sys
