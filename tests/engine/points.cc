// A peer that is killed or stopped at a random moment, again and again: transfers of every kind are
// under way to it and from it, and each of them must end, well or not, within its deadline; nothing
// hangs, nothing is left behind, nothing is torn. A peer that was stopped goes on later, and must do
// no harm then.
//
//   points WAY POINTS SEED     prints one JSON object; 1 when anything was wrong
//   ways: local, tcp, net
//
// The tests have a few of their own (process_test.cc); records/engine_points.json is of this.
#include <dirent.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <thread>

#include "base/units.h"
#include "child.h"

namespace braid::engine::test {
namespace {

constexpr size_t kBytes = 1_MiB;
constexpr size_t kPageBytes = 4_KiB;
constexpr int64_t kLeaseNs = 1'000'000'000;
constexpr int64_t kDeadlineNs = 2'000'000'000;
constexpr int64_t kSlackNs = 1'000'000'000;  // of a machine that has other work
constexpr int64_t kHung = 30;                // seconds

struct Tally {
  uint64_t killed = 0, stopped = 0, ended_well = 0, errors = 0, lost = 0, timeouts = 0;
  uint64_t late = 0, hung = 0, strange = 0, torn = 0, leaked_fds = 0, leaked_threads = 0;
  double longest_s = 0;
  uint64_t num_wrong() const { return late + hung + strange + torn + leaked_fds + leaked_threads; }
  void wrong(uint64_t& what, const std::string& words) {
    if (what++ == 0) fmt::print(stderr, "points: {}\n", words);
  }
};

size_t num_entries(const char* path) {
  DIR* const folder = ::opendir(path);
  size_t count = 0;
  while (folder != nullptr && ::readdir(folder) != nullptr) ++count;
  if (folder != nullptr) ::closedir(folder);
  return count;
}

class Points {
 public:
  Points(const std::string& way, uint64_t seed, Tally& tally)
      : way_{way, way == "local", way == "local" ? "" : way, way == "local" ? 0 : 2, {}},
        random_(seed),
        tally_(tally) {}

  void one() {
    const bool is_source = random_() % 3 == 0;
    const bool is_stop = random_() % 2 == 0;
    Child child(options("child"), kBytes, is_source);  // before there are threads
    auto own = Engines::make(options("own"));
    if (own == nullptr || child.descriptor.empty())
      return tally_.wrong(tally_.strange, "no engine");
    ++(is_stop ? tally_.stopped : tally_.killed);
    Memory memory(*own, kBytes, 2);
    auto remote = own->import(child.descriptor);
    if (is_source) child.aim(memory.descriptor);
    std::thread striker([&, wait_us = random_() % 40'000] {
      std::this_thread::sleep_for(std::chrono::microseconds(wait_us));
      if (is_stop)
        child.stop();
      else
        child.end(SIGKILL);
    });
    if (is_source)
      take_from(*own, memory, striker);
    else
      give_to(*own, memory, *remote, striker);
    if (is_stop) child.go_on();
    if (is_source)
      check_untouched(memory);
    else if (is_stop)
      give_again(*own, memory, *remote);
    if (const std::string how = is_stop ? child.how_ended() : ""; !how.empty())
      tally_.wrong(tally_.strange, "the peer that was stopped ended " + how);
  }

 private:
  EngineOptions options(const std::string& name) const {
    EngineOptions out = Engines(way_).options(name);
    out.lease_ns = kLeaseNs;
    out.rail_silence_ns = 300'000'000;
    return out;
  }

  Result<TicketPtr> begin(Engine& own, const Memory& memory, const RemoteRegion& remote) {
    TransferOptions options;
    options.timeout_ns = kDeadlineNs;
    const bool is_told = random_() % 4 == 0;
    if (is_told) options.notification = "told";
    const uint64_t bytes = 1 + random_() % kBytes;
    switch (random_() % 4) {
      case 0: return own.read({memory.region, 0}, {remote, 0}, bytes, options);
      case 1: {
        std::vector<uint64_t> ids(kBytes / kPageBytes), places;
        std::iota(ids.begin(), ids.end(), 0);
        places = ids;
        std::shuffle(places.begin(), places.end(), random_);
        const PageList pages{kPageBytes, ids, places, 0, 0, 0, 0};
        options.immediate = 3;
        return own.write_pages(memory.region, remote, pages, options);
      }
      case 2: return own.send(remote->owner, "some words", options);
      default:
        options.immediate = 1;
        return own.write({memory.region, 0}, {remote, 0}, bytes, options);
    }
  }

  /// Until an error comes of it.
  void give_to(Engine& own, const Memory& memory, const RemoteRegion& remote,
               std::thread& striker) {
    std::vector<TicketPtr> tickets;
    Status ended;
    while (ended.ok()) {
      const int64_t began = now_ns();
      tickets.clear();
      for (int i = 0; i < 3; ++i) {
        auto ticket = begin(own, memory, remote);
        if (ticket.ok())
          tickets.push_back(*ticket);
        else
          ended = ticket.status();
      }
      for (const TicketPtr& ticket : tickets) {
        const Status one = ticket->wait(in_seconds(kHung));
        if (!ticket->is_done()) tally_.wrong(tally_.hung, "hung: " + ticket->what());
        note(one, now_ns() - began);
        if (!one.ok()) ended = one;
      }
    }
    striker.join();
  }

  void note(const Status& ended, int64_t took_ns) {
    tally_.longest_s = std::max(tally_.longest_s, static_cast<double>(took_ns) / 1e9);
    if (ended.ok()) {
      ++tally_.ended_well;
      return;
    }
    ++tally_.errors;
    if (ended.code() == Code::kPeerLost)
      ++tally_.lost;
    else if (ended.code() == Code::kTimeout)
      ++tally_.timeouts;
    else if (ended.code() != Code::kExhausted)  // its mailbox, which nobody empties
      tally_.wrong(tally_.strange, ended.to_string());
    if (took_ns > kDeadlineNs + kLeaseNs + kSlackNs)
      tally_.wrong(tally_.late, fmt::format("after {:.1f} s: {}",
                                            static_cast<double>(took_ns) / 1e9, ended.to_string()));
  }

  /// The peer writes; when it has been struck our memory is ours again once it is unregistered.
  void take_from(Engine& own, Memory& memory, std::thread& striker) {
    striker.join();
    const int64_t began = now_ns();
    const Status gone = own.unregister(*memory.region, in_seconds(kHung));
    if (!gone.ok()) tally_.wrong(tally_.hung, gone.to_string());
    note({}, now_ns() - began);
    std::fill(memory.bytes.begin(), memory.bytes.end(), std::byte{0x5a});
  }
  void check_untouched(const Memory& memory) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const bool is_untouched = std::all_of(memory.bytes.begin(), memory.bytes.end(),
                                          [](std::byte x) { return x == std::byte{0x5a}; });
    if (!is_untouched) tally_.wrong(tally_.torn, "a write landed in memory that was given back");
  }

  /// A peer that goes on can be written to again.
  void give_again(Engine& own, const Memory& memory, const RemoteRegion& remote) {
    Status ended;
    for (const Deadline until = in_seconds(kHung); !until.passed();) {
      ended = wait(own.write({memory.region, 0}, {remote, 0}, kBytes));
      if (ended.ok()) return;
    }
    tally_.wrong(tally_.strange, "it went on, but: " + ended.to_string());
  }

  const Way way_;
  std::mt19937_64 random_;
  Tally& tally_;
};

int run(const std::string& way, uint64_t num_points, uint64_t seed) {
  Tally tally;
  Points points(way, seed, tally);
  const int64_t began_ns = now_ns();
  points.one();  // what libraries keep for ever is there now
  const size_t fds = num_entries("/proc/self/fd"), threads = num_entries("/proc/self/task");
  for (uint64_t i = 1; i < num_points; ++i) points.one();
  const size_t fds_after = num_entries("/proc/self/fd");
  const size_t threads_after = num_entries("/proc/self/task");
  if (fds_after > fds)
    tally.wrong(tally.leaked_fds, fmt::format("{} descriptors, {} before", fds_after, fds));
  if (threads_after > threads) tally.wrong(tally.leaked_threads, "threads are left");
  fmt::print(
      R"({{"way": "{}", "seed": {}, "points": {}, "killed": {}, "stopped": {}, "ended_well": {}, )"
      R"("errors": {}, "peer_lost": {}, "timeouts": {}, "longest_s": {:.2f}, "seconds": {:.1f}, )"
      R"("late": {}, "hung": {}, "strange": {}, "torn": {}, "leaked_fds": {}, "leaked_threads": {}}})"
      "\n",
      way, seed, num_points, tally.killed, tally.stopped, tally.ended_well, tally.errors,
      tally.lost, tally.timeouts, tally.longest_s, static_cast<double>(now_ns() - began_ns) / 1e9,
      tally.late, tally.hung, tally.strange, tally.torn, tally.leaked_fds, tally.leaked_threads);
  return tally.num_wrong() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace braid::engine::test

int main(int argc, char** argv) {
  if (argc != 4) return fmt::print(stderr, "usage: points WAY POINTS SEED\n"), 2;
  return braid::engine::test::run(argv[1], std::stoull(argv[2]), std::stoull(argv[3]));
}
