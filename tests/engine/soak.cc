// A soak of the transfer engine: two engines of one process, threads on both sides, transfers of every
// kind and of sizes from nothing to 64 KiB, 32 of each thread under way. Every byte is looked at three
// times: when the target has counted it, when a notification says that it is there, and when the
// source's ticket has ended.
//
//   soak WAY TRANSFERS SEED     prints one JSON object; 1 when anything was wrong
//   ways: local, tcp, tcp3, net, shm, unruly, unruly3 (a fake that reorders, delays and repeats)
//
// The tests have a short one of their own (Ways.Soak); records/engine_soak.json is of this.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <thread>

#include "base/units.h"
#include "engines.h"

namespace braid::engine::test {
namespace {

constexpr uint64_t kSlotBytes = 64_KiB;
constexpr size_t kSlots = 32;
constexpr int kThreads = 4;        // two on each side
constexpr int64_t kPatience = 60;  // seconds; whatever takes longer is lost

enum Kind { kWrite, kPages, kRead, kReadPages, kScatter, kNotified, kMessage, kNumKinds };
constexpr const char* kKindNames[] = {"write",   "pages",    "read",   "read_pages",
                                      "scatter", "notified", "message"};

struct Tally {
  std::atomic<uint64_t> bytes = 0, lost = 0, torn = 0, early = 0, spilt = 0, disorder = 0;
  std::array<std::atomic<uint64_t>, kNumKinds> kinds = {};

  void wrong(std::atomic<uint64_t>& what, const std::string& words) {
    if (what++ == 0) fmt::print(stderr, "soak: {}\n", words);
  }
  uint64_t num_wrong() const { return lost + torn + early + spilt + disorder; }
};

/// Byte `at` of transfer `id`.
std::byte byte_of(uint64_t id, uint64_t at) {
  const uint64_t word = (id + at / 8 + 1) * 0x9e3779b97f4a7c15u;
  return static_cast<std::byte>(word >> (8 * (at % 8)));
}
void fill(std::byte* to, uint64_t id, uint64_t bytes) {
  for (uint64_t i = 0; i < bytes; ++i) to[i] = byte_of(id, i);
}

/// One transfer under way.
struct Slot {
  uint64_t id = 0;
  Kind kind = kWrite;
  uint64_t bytes = 0, page_bytes = 0;
  std::vector<uint64_t> source_ids, target_ids;  // pages
  std::byte* landing = nullptr;
  std::byte behind{};  // the byte after the last one that may be written
  bool is_open = false;
  std::vector<TicketPtr> tickets;
  TicketPtr counted;
  std::atomic<uint64_t> told = 0;  // the notification of this id has come

  std::string words() const { return fmt::format("{} of {} bytes", kKindNames[kind], bytes); }
  bool has_landed() const {
    if (kind == kMessage) return true;
    if (page_bytes == 0) {
      for (uint64_t i = 0; i < bytes; ++i)
        if (landing[i] != byte_of(id, i)) return false;
      return true;
    }
    for (size_t page = 0; page < source_ids.size(); ++page)
      for (uint64_t i = 0; i < page_bytes; ++i)
        if (landing[target_ids[page] * page_bytes + i] !=
            byte_of(id, source_ids[page] * page_bytes + i))
          return false;
    return true;
  }
};

/// One thread's transfers from one engine to the other.
class Lane {
 public:
  Lane(Engine& self, Engine& peer, int number, bool can_read, uint64_t seed, Tally& tally)
      : self_(self),
        peer_(peer),
        number_(number),
        can_read_(can_read),
        tally_(tally),
        random_(seed * 1000 + static_cast<uint64_t>(number)),
        ours_(self, kSlots * kSlotBytes, 1),
        theirs_(peer, kSlots * kSlotBytes, 2),
        remote_(import(self, theirs_)),
        address_(address_of(self, peer)) {}

  void run(uint64_t num_transfers) {
    for (uint64_t i = 0; i < num_transfers; ++i) {
      settle(slots_[i % kSlots]);
      begin(i);
    }
    for (Slot& slot : slots_) settle(slot);
    for (size_t i = 0; i < kSlots; ++i)
      if (peer_.count(immediate(i)) != 0) tally_.wrong(tally_.disorder, "something counted twice");
  }

  /// On the peer's side: the notification of transfer `id` is here, so its bytes are.
  void told(uint64_t id) {
    Slot& slot = slots_[(id & 0xffffffff) % kSlots];
    if (slot.id != id) return tally_.wrong(tally_.disorder, "a notification of what is over");
    if (!slot.has_landed()) tally_.wrong(tally_.early, slot.words() + ": told early");
    slot.told = id;
  }
  /// And a message: each comes once, in order, whole.
  void heard(uint64_t id, std::string_view text) {
    if (id <= last_heard_) tally_.wrong(tally_.disorder, "a message out of order");
    last_heard_ = id;
    for (uint64_t i = 8; i < text.size(); ++i)
      if (static_cast<std::byte>(text[i]) != byte_of(id, i))
        return tally_.wrong(tally_.torn, "a message is torn");
    slots_[(id & 0xffffffff) % kSlots].told = id;
  }

 private:
  uint32_t immediate(size_t slot) const {
    return 1000 + static_cast<uint32_t>(number_) * kSlots + static_cast<uint32_t>(slot);
  }

  static bool is_read(const Slot& slot) { return slot.kind == kRead || slot.kind == kReadPages; }

  // Most are small, and all orders of size occur alike.
  uint64_t draw_bytes() {
    const uint64_t most = uint64_t{1} << (random_() % 17);
    return random_() % (std::min(most, kSlotBytes - 1) + 1);
  }

  void begin(uint64_t i) {
    Slot& slot = slots_[i % kSlots];
    slot.id = (static_cast<uint64_t>(number_) << 32) | i;
    do {
      slot.kind = static_cast<Kind>(random_() % kNumKinds);
    } while (!can_read_ && is_read(slot));
    slot.bytes = draw_bytes();
    slot.page_bytes = 0;
    slot.is_open = true;
    ++tally_.kinds[slot.kind];
    const uint64_t offset = (i % kSlots) * kSlotBytes;
    if (slot.kind == kPages || slot.kind == kReadPages) draw_pages(slot);
    fill((is_read(slot) ? theirs_ : ours_).bytes.data() + offset, slot.id, slot.bytes);
    slot.landing = (is_read(slot) ? ours_ : theirs_).bytes.data() + offset;
    slot.behind = slot.landing[slot.bytes];
    tally_.bytes += slot.bytes;
    submit(slot, i % kSlots, offset);
  }

  // Whole pages of a power of two, so that they fill `bytes`, which may be less than was drawn.
  void draw_pages(Slot& slot) {
    slot.page_bytes = uint64_t{64} << (random_() % 6);
    const size_t count = std::max<uint64_t>(1, slot.bytes / slot.page_bytes);
    slot.bytes = count * slot.page_bytes;
    if (slot.bytes >= kSlotBytes) slot.bytes -= slot.page_bytes;
    slot.source_ids.resize(slot.bytes / slot.page_bytes);
    std::iota(slot.source_ids.begin(), slot.source_ids.end(), 0);
    slot.target_ids = slot.source_ids;
    std::shuffle(slot.source_ids.begin(), slot.source_ids.end(), random_);
    std::shuffle(slot.target_ids.begin(), slot.target_ids.end(), random_);
  }

  void expect(Slot& slot, size_t at, uint64_t count) {
    auto counted = peer_.expect(immediate(at), count);
    if (!counted.ok()) return tally_.wrong(tally_.disorder, counted.status().to_string());
    slot.counted = std::move(counted).value();
  }
  void add(Slot& slot, Result<TicketPtr> ticket) {
    if (!ticket.ok()) return tally_.wrong(tally_.lost, ticket.status().to_string());
    slot.tickets.push_back(std::move(ticket).value());
  }

  void submit(Slot& slot, size_t at, uint64_t offset) {
    TransferOptions options;
    const PageList pages{slot.page_bytes, slot.source_ids, slot.target_ids, 0, 0, offset, offset};
    const std::string id(reinterpret_cast<const char*>(&slot.id), sizeof slot.id);
    switch (slot.kind) {
      case kNotified: options.notification = id; [[fallthrough]];
      case kWrite:
        expect(slot, at, 1);
        options.immediate = immediate(at);
        return add(slot,
                   self_.write({ours_.region, offset}, {remote_, offset}, slot.bytes, options));
      case kPages:
        expect(slot, at, slot.source_ids.size());
        options.immediate = immediate(at);
        return add(slot, self_.write_pages(ours_.region, remote_, pages, options));
      case kRead:
        return add(slot, self_.read({ours_.region, offset}, {remote_, offset}, slot.bytes));
      case kReadPages: return add(slot, self_.read_pages(ours_.region, remote_, pages));
      case kScatter: return scatter(slot, at, offset);
      default: return add(slot, self_.send(address_, id + text_of(slot)));
    }
  }
  void scatter(Slot& slot, size_t at, uint64_t offset) {
    expect(slot, at, 2);
    TransferOptions options;
    options.immediate = immediate(at);
    const uint64_t half = slot.bytes / 2;
    const ScatterPart parts[] = {{half, offset, {remote_, offset}},
                                 {slot.bytes - half, offset + half, {remote_, offset + half}}};
    auto tickets = self_.scatter(ours_.region, parts, options);
    if (!tickets.ok()) return tally_.wrong(tally_.lost, tickets.status().to_string());
    slot.tickets = std::move(tickets).value();
  }
  static std::string text_of(const Slot& slot) {
    std::string text(std::min<uint64_t>(slot.bytes, 32_KiB), '\0');
    for (uint64_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(byte_of(slot.id, i + 8));
    return text;
  }

  void settle(Slot& slot) {
    if (!slot.is_open) return;
    if (slot.counted) {
      const Status counted = slot.counted->wait(in_seconds(kPatience));
      if (!counted.ok())
        tally_.wrong(tally_.lost, slot.words() + ": not counted: " + counted.to_string());
      else if (!slot.has_landed())
        tally_.wrong(tally_.early, slot.words() + ": counted early");
    }
    for (const TicketPtr& ticket : slot.tickets)
      if (const Status ended = ticket->wait(in_seconds(kPatience)); !ended.ok())
        tally_.wrong(tally_.lost, slot.words() + ": " + ended.to_string());
    const bool is_told = slot.kind == kNotified || slot.kind == kMessage;
    for (const Deadline until = in_seconds(kPatience); is_told && slot.told != slot.id;) {
      if (until.passed()) {
        tally_.wrong(tally_.lost, slot.words() + ": was never told");
        break;
      }
      std::this_thread::yield();
    }
    if (!slot.has_landed()) tally_.wrong(tally_.torn, slot.words() + ": wrong bytes");
    if (slot.kind != kMessage && slot.landing[slot.bytes] != slot.behind)
      tally_.wrong(tally_.spilt, slot.words() + ": a byte behind it was written");
    slot.counted.reset();
    slot.tickets.clear();
    slot.is_open = false;
  }

  Engine& self_;
  Engine& peer_;
  const int number_;
  const bool can_read_;
  Tally& tally_;
  std::mt19937_64 random_;
  Memory ours_, theirs_;
  RemoteRegion remote_;
  Address address_;
  std::array<Slot, kSlots> slots_;
  uint64_t last_heard_ = 0;  // the drain's
};

/// Takes what arrives at one engine until told to stop.
void drain(Engine& engine, std::map<uint64_t, Lane*>& lanes, const std::atomic<bool>& is_over) {
  const auto id_of = [](const Message& message) {
    uint64_t id = 0;
    std::memcpy(&id, message.bytes.data(), sizeof id);
    return id;
  };
  while (!is_over) {
    while (const auto note = engine.take_notification(Deadline::at_ns(0)))
      lanes.at(id_of(*note) >> 32)->told(id_of(*note));
    while (const auto message = engine.receive(Deadline::after_ns(1_ms)))
      lanes.at(id_of(*message) >> 32)->heard(id_of(*message), message->bytes);
  }
}

Way way_of(const std::string& name) {
  sys::FakeRules unruly;
  unruly.seed = 5;
  unruly.is_truthful = true;
  unruly.reorder_window = 16;
  unruly.max_delay_polls = 8;
  unruly.repeat_percent = 20;
  unruly.busy_percent = 30;
  const int num_nics = name.back() == '3' ? 3 : 1;
  if (name == "local") return {name, true, "", 0, {}};
  if (name.starts_with("unruly")) return {name, false, "fake", num_nics, unruly};
  return {name, false, num_nics == 3 ? name.substr(0, name.size() - 1) : name, num_nics, {}};
}

int run(const std::string& way, uint64_t num_transfers, uint64_t seed) {
  Engines engines(way_of(way));
  auto a = engines.make("a"), b = engines.make("b");
  if (!a || !b) return 2;
  const bool can_read = way != "shm";  // libfabric's shm refuses reads
  Tally tally;
  std::vector<std::unique_ptr<Lane>> lanes;
  std::map<uint64_t, Lane*> by_number;
  for (int i = 0; i < kThreads; ++i) {
    const bool is_back = i % 2 == 1;
    lanes.push_back(
        std::make_unique<Lane>(is_back ? *b : *a, is_back ? *a : *b, i + 1, can_read, seed, tally));
    by_number[static_cast<uint64_t>(i) + 1] = lanes.back().get();
  }
  const int64_t began_ns = now_ns();
  std::atomic<bool> is_over = false;
  std::vector<std::thread> drains, threads;
  for (Engine* engine : {a.get(), b.get()})
    drains.emplace_back([&, engine] { drain(*engine, by_number, is_over); });
  for (auto& lane : lanes)
    threads.emplace_back([&lane, num_transfers] { lane->run(num_transfers / kThreads); });
  for (std::thread& thread : threads) thread.join();
  is_over = true;
  for (std::thread& thread : drains) thread.join();
  const double seconds = static_cast<double>(now_ns() - began_ns) / 1e9;
  std::string kinds;
  for (size_t i = 0; i < kNumKinds; ++i)
    kinds += fmt::format("{}\"{}\": {}", i == 0 ? "" : ", ", kKindNames[i], tally.kinds[i].load());
  fmt::print(
      R"({{"way": "{}", "seed": {}, "transfers": {}, "kinds": {{{}}}, "bytes": {}, "seconds": {:.1f}, )"
      R"("lost": {}, "early": {}, "torn": {}, "spilt": {}, "disorder": {}}})"
      "\n",
      way, seed, num_transfers / kThreads * kThreads, kinds, tally.bytes.load(), seconds,
      tally.lost.load(), tally.early.load(), tally.torn.load(), tally.spilt.load(),
      tally.disorder.load());
  return tally.num_wrong() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace braid::engine::test

int main(int argc, char** argv) {
  if (argc != 4) return fmt::print(stderr, "usage: soak WAY TRANSFERS SEED\n"), 2;
  return braid::engine::test::run(argv[1], std::stoull(argv[2]), std::stoull(argv[3]));
}
