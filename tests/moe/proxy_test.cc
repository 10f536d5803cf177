// The proxy alone, over a lane whose other end is the test: what it hands on, and when it may end.
#include "moe/host/proxy.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <utility>

namespace braid::moe {
namespace {

constexpr fabric::NodeMap kNodes{2, 2};
constexpr int kRank = 2, kMate = 3, kSource = 0;  // of node 1; on this rank's rail

/// What the proxy puts, and what the test lets come.
class Wire {
 public:
  struct Piece {
    int peer = 0;
    transport::PieceTag tag;
    std::vector<std::byte> payload;
  };
  void come(Piece piece) {
    const std::lock_guard lock(mutex);
    coming.push_back(std::move(piece));
  }
  std::vector<Piece> all_put() {
    const std::lock_guard lock(mutex);
    return put;
  }
  /// From the next piece but `more` on nothing is taken, until mend().
  void lose(int more) {
    const std::lock_guard lock(mutex);
    room = more;
  }
  /// When the lane next goes on: its state changes in its own thread alone, as a real one's.
  void mend() {
    const std::lock_guard lock(mutex);
    is_mended = true;
  }
  std::mutex mutex;
  std::vector<Piece> put, coming;
  bool is_full = false;    // under mutex
  int room = -1;           // under mutex; any number
  bool is_mended = false;  // under mutex
  bool is_dead = false;    // under mutex: what is lost is lost for good
};

class WireLane final : public transport::Lane {
 public:
  explicit WireLane(Wire& wire) : wire_(wire) { caps_.max_piece_bytes = 100; }
  const transport::LaneCaps& caps() const override { return caps_; }
  const std::string& name() const override { return name_; }
  transport::PutResult try_put(transport::PeerSet peers, const transport::PieceTag& tag,
                               std::span<const std::byte> payload) override {
    const std::lock_guard lock(wire_.mutex);
    if (wire_.is_full) return transport::PutResult::kFull;
    if (wire_.room == 0) return transport::PutResult::kDown;
    if (wire_.room > 0) --wire_.room;
    wire_.put.push_back({peers.first(), tag, {payload.begin(), payload.end()}});
    return transport::PutResult::kAccepted;
  }
  uint32_t available(int src) const override {
    const std::lock_guard lock(wire_.mutex);
    return !wire_.coming.empty() && wire_.coming.front().peer == src ? 1 : 0;
  }
  transport::Arrival at(int, uint32_t) const override {
    const std::lock_guard lock(wire_.mutex);
    return {wire_.coming.front().tag, wire_.coming.front().payload};
  }
  void release(int, uint32_t) override {
    const std::lock_guard lock(wire_.mutex);
    wire_.coming.erase(wire_.coming.begin());
  }
  uint64_t posted(int) const override { return 0; }
  uint64_t acked(int) const override { return 0; }
  void for_each_unacked(int, const std::function<void(const transport::Arrival&)>&) const override {
  }
  bool progress() override {
    const std::lock_guard lock(wire_.mutex);
    if (std::exchange(wire_.is_mended, false)) wire_.room = -1, wire_.is_full = false;
    return false;
  }
  int64_t next_event_ns() const override { return 0; }
  Status health(int) const override {
    const std::lock_guard lock(wire_.mutex);
    return wire_.room == 0 ? unavailable("reset") : Status();
  }
  bool is_mending(int) const override {
    const std::lock_guard lock(wire_.mutex);
    return wire_.room == 0 && !wire_.is_dead;
  }

 private:
  Wire& wire_;
  transport::LaneCaps caps_;
  std::string name_ = "wire";
};

class MoeProxy : public testing::Test {
 protected:
  MoeProxy() : layout(WindowLayout::with_halves(4, 4096)) {
    for (auto& window : windows) window.resize(layout.bytes() / 8);
  }
  std::byte* window(int rank) {
    return reinterpret_cast<std::byte*>(windows[static_cast<size_t>(rank - kRank)].data());
  }
  void start() {
    Proxy::Neighbours neighbours;
    neighbours.windows = {nullptr, nullptr, window(kRank), window(kMate)};
    neighbours.nodes = kNodes;
    neighbours.landed = [this](int target) { rung[static_cast<size_t>(target)] = true; };
    neighbours.are_over = [this] { return is_over.load(); };
    proxy = std::make_unique<Proxy>(std::make_unique<WireLane>(wire), layout, std::move(neighbours),
                                    kRank);
  }
  template <typename Done>
  static bool soon(Done&& done) {
    for (int i = 0; i < 2000 && !done(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return done();
  }

  // What another proxy would send, made by one of its own.
  std::vector<Wire::Piece> pieces_of(const std::function<void(Proxy&)>& body) {
    Wire out;
    Proxy::Neighbours neighbours;
    neighbours.windows = {window(kRank), window(kMate), nullptr, nullptr};  // not written to
    neighbours.nodes = kNodes;
    neighbours.landed = [](int) {};
    neighbours.are_over = [] { return true; };
    {
      Proxy other(std::make_unique<WireLane>(out), layout, std::move(neighbours), kSource);
      body(other);
    }
    for (Wire::Piece& piece : out.put) {
      EXPECT_EQ(piece.peer, kRank);
      piece.peer = kSource;
    }
    return out.put;
  }

  const WindowLayout layout;
  std::vector<uint64_t> windows[2];
  Wire wire;
  std::array<std::atomic<bool>, 4> rung{};
  std::atomic<bool> is_over{false};
  std::unique_ptr<Proxy> proxy;
};

// One copy crosses, two windows get it; then the flags of both, and at last the farewell, before which
// the proxy does not end.
TEST_F(MoeProxy, HandsOnToItsNodeMateAndDoesNotEndBefore) {
  const std::vector<std::byte> row(300, std::byte{7});
  const uint64_t offset = layout.region(0, kSource);
  auto pieces = pieces_of([&](Proxy& other) {
    const Windows::Place places[] = {{kRank, offset}, {kMate, offset + 128}};
    other.put(places, row);
    EXPECT_EQ(other.carried_bytes(kRank), 300 + sizeof(StreamRecord) + 2 * sizeof(StreamPlace));
    other.signal(kRank, layout.flag_line(0, kSource), {}, 5);
    other.signal(kMate, layout.flag_line(0, kSource), {}, 5);
  });
  ASSERT_EQ(pieces.size(), 4U + 2 + 1);  // of a hundred bytes, flags, farewell
  start();
  for (size_t i = 0; i < 5; ++i) wire.come(pieces[i]);
  ASSERT_TRUE(soon([&] { return rung[kRank].load(); }));
  EXPECT_FALSE(rung[kMate]);
  std::atomic<bool> has_ended{false};
  std::thread ending([&] {
    proxy.reset();
    has_ended = true;
  });
  ASSERT_TRUE(soon([&] { return !wire.all_put().empty(); }));  // its own farewell
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(has_ended);
  wire.come(pieces[5]);
  EXPECT_TRUE(soon([&] { return rung[kMate].load(); }));
  EXPECT_FALSE(has_ended);
  wire.come(pieces[6]);
  ending.join();
  EXPECT_EQ(0, std::memcmp(window(kRank) + offset, row.data(), row.size()));
  EXPECT_EQ(0, std::memcmp(window(kMate) + offset + 128, row.data(), row.size()));
}

// An ack that waited behind a round's rows came when the link had nothing left to carry.
TEST_F(MoeProxy, PutsAcksBeforeRowsThatWait) {
  wire.is_full = true;
  start();
  const std::vector<std::byte> row(300, std::byte{7});
  const Windows::Place places[] = {{kSource, layout.region(0, kRank)}};
  proxy->put(places, row);
  proxy->signal(kSource, layout.flag_line(0, kRank), {}, 5);
  proxy->signal(kSource, layout.ack_line(1, kRank), {}, 4);
  proxy->signal(kSource + 1, layout.ack_line(1, kRank), {}, 4);
  wire.mend();
  ASSERT_TRUE(soon([&] { return wire.all_put().size() == 2 + 4 + 1; }));
  const auto put = wire.all_put();
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(put[i].tag.words[1], layout.ack_line(1, kRank));
    EXPECT_EQ(put[i].tag.words[3], i);
  }
  EXPECT_EQ(put[6].tag.words[1], layout.flag_line(0, kRank));
  is_over = true;
}

// A way that is made anew loses nothing and repeats nothing, wherever it was lost.
TEST_F(MoeProxy, WaitsForAWayThatIsMadeAnew) {
  std::vector<std::byte> row(300);
  for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<std::byte>(i * 7);
  const Windows::Place places[] = {{kSource, layout.region(0, kRank)}};
  for (int more = 0; more < 6; ++more) {
    wire.lose(more);
    start();
    proxy->put(places, row);
    proxy->signal(kSource, layout.flag_line(0, kRank), {}, 5);
    const auto has_put = [&](size_t count) {
      return soon([&] { return wire.all_put().size() >= count; });
    };
    ASSERT_TRUE(has_put(std::min<size_t>(static_cast<size_t>(more), 5)));
    proxy->signal(kSource, layout.ack_line(1, kRank), {}, 4);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // many of its passes
    EXPECT_TRUE(proxy->health(kSource).ok()) << proxy->health(kSource).to_string();
    wire.mend();
    EXPECT_TRUE(has_put(4 + 1 + 1)) << "lost after " << more;
    std::vector<std::byte> stream;
    size_t num_flags = 0, num_acks = 0;
    for (const Wire::Piece& piece : wire.all_put()) {
      stream.insert(stream.end(), piece.payload.begin(), piece.payload.end());
      const bool is_flag = piece.tag.words[1] == layout.flag_line(0, kRank);
      if (is_flag) {
        EXPECT_EQ(stream.size(), sizeof(StreamRecord) + sizeof(StreamPlace) + row.size());
      }
      num_flags += is_flag ? 1 : 0;
      num_acks += piece.tag.words[1] == layout.ack_line(1, kRank) ? 1 : 0;
    }
    EXPECT_EQ(num_flags, 1U);
    EXPECT_EQ(num_acks, 1U);
    ASSERT_EQ(stream.size(), sizeof(StreamRecord) + sizeof(StreamPlace) + row.size());
    EXPECT_TRUE(std::equal(row.begin(), row.end(), stream.end() - 300));
    is_over = true;
    proxy.reset();
    is_over = false;
    wire.put.clear();
  }
}

TEST_F(MoeProxy, AWayThatIsLostForGoodIsSaid) {
  wire.is_dead = true;
  wire.lose(1);
  start();
  proxy->signal(kSource, layout.flag_line(0, kRank), {}, 5);
  proxy->signal(kSource, layout.flag_line(1, kRank), {}, 6);
  ASSERT_TRUE(soon([&] { return !proxy->health(kSource).ok(); }));
  EXPECT_EQ(proxy->health(kSource).message(), "moe: way to rank 0: reset");
  is_over = true;
}

// Nobody is left who could make it anew: it is not waited for as long as it might be.
TEST_F(MoeProxy, EndsWhereTheGroupIsBrokenAndAWayIsMadeAnew) {
  wire.lose(0);
  start();
  proxy->signal(kSource, layout.flag_line(0, kRank), {}, 5);
  is_over = true;
  const auto begin = std::chrono::steady_clock::now();
  proxy.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(4500));
  EXPECT_TRUE(wire.all_put().empty());
}

TEST_F(MoeProxy, EndsWhereTheGroupIsBroken) {
  start();
  is_over = true;
  proxy.reset();  // nobody says farewell
  ASSERT_EQ(wire.all_put().size(), 1U);
  EXPECT_EQ(wire.all_put()[0].peer, kSource);
}

// Rows outside of halves, signals in others' lines, ranks of other nodes: the way is given up.
TEST_F(MoeProxy, LandsNothingThatIsNotTheSources) {
  const std::vector<std::byte> row(16);
  const std::vector<std::function<void(Proxy&)>> forged = {
      [&](Proxy& other) {
        const Windows::Place places[] = {{kRank, layout.half(0) - 128}, {kMate, layout.half(0)}};
        other.put(places, row);
      },
      [&](Proxy& other) {
        const Windows::Place places[] = {{kRank, layout.half(0)}, {kMate, layout.bytes() - 8}};
        other.put(places, row);
      },
      [&](Proxy& other) { other.signal(kMate, layout.flag_line(0, 1), {}, 5); },
      [&](Proxy& other) { other.signal(kMate, layout.flag_line(0, kSource) + 8, {}, 5); },
  };
  for (const auto& each : forged) {
    start();
    for (auto& piece : pieces_of(each))
      if (piece.payload.size() > 0 || piece.tag.words[1] != 0) wire.come(piece);
    if (!wire.coming.empty()) {
      EXPECT_TRUE(soon([&] { return !proxy->health(kSource).ok(); }));
    }
    is_over = true;
    proxy.reset();
    is_over = false;
    EXPECT_FALSE(rung[kMate]);
    for (const auto& window : windows)
      for (const uint64_t word : window) ASSERT_EQ(word, 0U);
  }
}

}  // namespace
}  // namespace braid::moe
