// Somebody sits between the ranks and the store: he took the first port before rank 0 did, and passes
// on what comes. He may look and he may cut, and nothing else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "group/frame_seal.h"
#include "group/group.h"
#include "group/wire.h"
#include "support/ranks.h"
#include "sys/net/api.h"

namespace braid::group {
namespace {

using test::as_rank;
using test::draw_job;
using test::run_threads;
using test::soon;
using ::testing::HasSubstr;

/// Sees each frame that goes by, and may change it. `is_from_store` says which way it goes.
using Hands = std::function<void(bool is_from_store, std::string& bytes)>;

class Relay {
 public:
  Relay(uint16_t port, Hands hands)
      : hands_(std::move(hands)),
        listener_(std::move(sys::listen_on(at(port), 64)).value()),
        store_(at(static_cast<uint16_t>(port + 1))),
        thread_([this] { run(); }) {}
  ~Relay() {
    is_done_ = true;
    thread_.join();
  }

 private:
  struct Pair {
    sys::Fd rank, store;
    std::string held[2];  // the beginning of a frame, by is_from_store
  };
  static sys::Endpoint at(uint16_t port) { return sys::resolve("127.0.0.1", port)->front(); }

  void run() {
    while (!is_done_) {
      std::vector<pollfd> entries{{listener_.get(), POLLIN, 0}};
      for (const Pair& pair : pairs_) {
        entries.push_back({pair.rank.get(), POLLIN, 0});
        entries.push_back({pair.store.get(), POLLIN, 0});
      }
      (void)::poll(entries.data(), entries.size(), 10);
      std::erase_if(pairs_, [this](Pair& pair) { return !pass(pair); });
      if (entries[0].revents != 0) accept();
    }
  }
  void accept() {
    auto rank = sys::accept_on(listener_.get(), Deadline::after_ns(0));
    if (!rank.ok()) return;
    auto store = sys::connect_to(store_, Deadline::after_ns(1_s));
    if (!store.ok()) return;
    pairs_.push_back({std::move(rank).value(), std::move(store).value(), {}});
  }
  bool pass(Pair& pair) const {
    return pass(pair.rank.get(), pair.store.get(), false, pair.held[0]) &&
           pass(pair.store.get(), pair.rank.get(), true, pair.held[1]);
  }
  bool pass(int from, int to, bool is_from_store, std::string& held) const {
    std::string bytes(1 << 16, '\0');
    auto got = sys::recv_some(from, std::as_writable_bytes(std::span(bytes)));
    if (!got.ok()) return false;
    held.append(bytes, 0, *got);
    for (std::string frame; !(frame = take_frame(held)).empty();) {
      hands_(is_from_store, frame);
      if (!sys::send_all(to, std::as_bytes(std::span(frame)), soon()).ok()) return false;
    }
    return true;
  }
  /// The first frame, however many came together; empty until all of it is there.
  static std::string take_frame(std::string& held) {
    if (held.size() < kFrameHeadBytes) return {};
    uint32_t length = 0;
    std::memcpy(&length, held.data(), sizeof length);
    const auto type = static_cast<FrameType>(held[4]);
    const size_t seal = type <= FrameType::kRefusal ? 0 : kSealBytes;
    const size_t whole = kFrameHeadBytes + length + seal;
    if (held.size() < whole) return {};
    std::string frame = held.substr(0, whole);
    held.erase(0, whole);
    return frame;
  }

  const Hands hands_;
  const sys::Fd listener_;
  const sys::Endpoint store_;
  std::vector<Pair> pairs_;
  std::atomic<bool> is_done_{false};
  std::thread thread_;
};

struct End {
  Status join, exchange;
  std::vector<std::string> heard;
};

struct Meeting {
  Identity job;
  std::vector<End> ends;
  std::string from_rank, from_store;  // all that went by, as it came
  bool is_through_relay = false;
};

constexpr const char* kSecret = "key 4711 of rank ";

void await_store(uint16_t port) {
  const sys::Endpoint store = sys::resolve("127.0.0.1", port)->front();
  for (const Deadline deadline = soon(); !deadline.passed(); usleep(1000))
    if (sys::connect_to(store, Deadline::after_ns(100_ms)).ok()) return;
}

// Rank 0 finds its port taken and serves on the next one; rank 1 comes through the relay. It comes
// when rank 0 serves: before that the relay has nobody to pass it on to, and it would go on to the
// next port by itself.
std::vector<End> join_and_exchange(const Identity& job) {
  std::vector<End> ends(2);
  run_threads(2, [&](int rank) {
    if (rank == 1) await_store(static_cast<uint16_t>(job.store_port + 1));
    End& end = ends[static_cast<size_t>(rank)];
    auto group = Group::join(as_rank(job, rank), Config(), soon());
    end.join = group.status();
    if (!group.ok()) return;
    auto heard = (*group)->exchange("keys", kSecret + std::to_string(rank), soon());
    end.exchange = heard.status();
    if (heard.ok()) end.heard = std::move(heard).value();
  });
  return ends;
}

// Where a test beside this one has the next port, too, rank 0 serves behind it, and rank 1 goes there
// past the relay: then once more, elsewhere.
Meeting meet_through_relay(const Hands& hands) {
  Meeting meeting;
  for (int attempt = 0; attempt < 5 && !meeting.is_through_relay; ++attempt) {
    meeting = {draw_job(2), {}, {}, {}};
    const Relay relay(meeting.job.store_port, [&](bool is_from_store, std::string& bytes) {
      (is_from_store ? meeting.from_store : meeting.from_rank) += bytes;
      if (bytes[4] == char(FrameType::kBlob)) meeting.is_through_relay = true;
      hands(is_from_store, bytes);
    });
    meeting.ends = join_and_exchange(meeting.job);
  }
  EXPECT_TRUE(meeting.is_through_relay);
  return meeting;
}

TEST(Relay, ReadsNothingThatRanksExchange) {
  const Meeting meeting = meet_through_relay([](bool, std::string&) {});
  for (const End& end : meeting.ends) {
    ASSERT_TRUE(end.exchange.ok()) << end.join.to_string() << end.exchange.to_string();
    EXPECT_THAT(end.heard, ::testing::ElementsAre("key 4711 of rank 0", "key 4711 of rank 1"));
  }
  for (const std::string& seen : {meeting.from_rank, meeting.from_store}) {
    EXPECT_GT(seen.size(), 100u);
    EXPECT_EQ(seen.find("4711"), std::string::npos);
    EXPECT_EQ(seen.find("keys"), std::string::npos);
  }
}

// From some point on he changes what he passes: every exchange is right, or it fails and the message
// says why.
TEST(Relay, CannotChangeWhatRanksExchange) {
  for (const bool from_store : {false, true}) {
    const auto ends = meet_through_relay([&](bool is_from_store, std::string& bytes) {
                        if (is_from_store != from_store || bytes[4] != char(FrameType::kBlob))
                          return;
                        bytes[bytes.size() - kSealBytes - 1] ^= 1;  // the last letter that was said
                      }).ends;
    for (const End& end : ends)
      for (size_t rank = 0; rank < end.heard.size(); ++rank)
        EXPECT_EQ(end.heard[rank], kSecret + std::to_string(rank));
    const Status& victim = ends[from_store ? 1 : 0].exchange;
    EXPECT_EQ(victim.code(), Code::kPeerLost) << victim.to_string();
    EXPECT_THAT(victim.message(), HasSubstr("a frame")) << from_store;
    EXPECT_THAT(victim.message(), HasSubstr("had been altered"));
  }
}

TEST(Relay, CannotBringNews) {
  const std::string news =
      encode(News{Code::kInternal, 1, "hello from nobody"}) + std::string(kSealBytes, '\0');
  bool is_told = false;
  const auto ends = meet_through_relay([&](bool is_from_store, std::string& bytes) {
                      if (is_from_store || bytes[4] != char(FrameType::kBlob)) return;
                      if (!std::exchange(is_told, true)) bytes.insert(0, news);
                    }).ends;
  for (const End& end : ends)
    EXPECT_EQ(end.exchange.message().find("hello from nobody"), std::string::npos);
  // Rank 1 may have heard rank 0 and be through before it is cut off.
  EXPECT_EQ(ends[0].exchange.code(), Code::kPeerLost) << ends[0].exchange.to_string();
  EXPECT_THAT(ends[0].exchange.message(), HasSubstr("rank 1 died: a frame from it"));
}

// What he has heard once is worth nothing in another connection.
TEST(Relay, CannotPlayAConnectionBack) {
  const Meeting meeting = meet_through_relay([](bool, std::string&) {});
  for (const End& end : meeting.ends) ASSERT_TRUE(end.exchange.ok());
  Status end;
  std::thread rank0([&] {
    end = Group::join(as_rank(meeting.job, 0), Config(), Deadline::after_ns(1_s)).status();
  });
  const sys::Endpoint store = sys::resolve("127.0.0.1", meeting.job.store_port)->front();
  while (true) {  // until rank 0 serves
    auto fd = sys::connect_to(store, soon());
    if (!fd.ok()) continue;
    EXPECT_TRUE(sys::send_all(fd->get(), std::as_bytes(std::span(meeting.from_rank)), soon()).ok());
    std::byte bytes[256];
    while (sys::poll_one(fd->get(), POLLIN, soon()) && sys::recv_some(fd->get(), bytes).ok()) {
    }
    break;
  }
  rank0.join();
  EXPECT_THAT(end.message(), HasSubstr("rank 1 did not join"));
}

}  // namespace
}  // namespace braid::group
