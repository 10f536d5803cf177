// Who connects to an engine and has not said yet who he is.
#include <poll.h>

#include <chrono>
#include <thread>

#include "engine/engine.h"
#include "engine/handshake.h"
#include "engines.h"
#include "sys/net/api.h"

namespace braid::engine::test {
namespace {

void rest(int64_t ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

sys::Endpoint where(const Engine& engine) {
  const std::string text = engine.self().endpoints.front();
  const size_t colon = text.rfind(':');
  return sys::resolve(text.substr(0, colon),
                      static_cast<uint16_t>(std::stoul(text.substr(colon + 1))))
      .value()
      .front();
}

/// Connections that say nothing.
std::vector<sys::Fd> connect_many(const sys::Endpoint& at, int count) {
  std::vector<sys::Fd> out;
  for (int i = 0; i < count; ++i) out.push_back(sys::begin_connect(at).value());
  return out;
}

/// Whether the handshake comes to its end.
bool greet(sys::Fd fd, const Engine& engine, char session_mark) {
  const Secret secret("a token of tests");
  SessionId session{};
  session.fill(session_mark);
  SourceHandshake handshake(secret, Incarnation{}, engine.self(), session, 0);
  ControlSocket socket(std::move(fd));
  EXPECT_TRUE(is_ok(handshake.start(socket)));
  const Deadline deadline = in_seconds(5);
  while (!handshake.is_done() && !deadline.passed()) {
    (void)sys::poll_one(socket.fd(), POLLIN, Deadline::after_ns(1'000'000));
    if (!socket.flush().ok()) return false;
    const bool is_open = socket.fill().ok();
    auto frame = socket.next();
    if (!frame.ok() || (!is_open && !frame->has_value())) return false;
    if (frame->has_value() && !handshake.on_frame(socket, **frame).ok()) return false;
  }
  (void)socket.flush();
  return handshake.is_done();
}

// A flood of strangers turns out none that has just come. A machine that is busy may be too slow to say
// hello in the time that a guest has for sure, so it is tried several times.
TEST(Strangers, DoNotTurnOutWhoIsAboutToSayHello) {
  constexpr int64_t kSureNs = 150'000'000;
  const auto engine = Engines(Way{"local", true, "", 0, {}}).make("target");
  bool was_in_time = false;
  for (char i = 1; i <= 40 && !was_in_time; ++i) {
    const int64_t came = now_ns();
    sys::Fd fd = sys::connect_to(where(*engine), in_seconds(5)).value();
    rest(5);
    const std::vector<sys::Fd> flood = connect_many(where(*engine), 80);
    rest(30);
    const bool is_in = greet(std::move(fd), *engine, i);
    was_in_time = now_ns() - came < kSureNs;
    if (was_in_time) {
      EXPECT_TRUE(is_in);
    }
  }
  if (!was_in_time) GTEST_SKIP() << "this machine is too busy";
}

TEST(Strangers, MakeRoomForOthersAndAreCounted) {
  Engines engines(Way{"local", true, "", 0, {}});
  const auto engine = engines.make("target"), peer = engines.make("peer");
  const std::vector<sys::Fd> silent = connect_many(where(*engine), 100);
  EXPECT_TRUE(is_ok(wait(peer->connect(address_of(*peer, *engine)))));
  EXPECT_GE(engine->stats().handshakes_refused, 37u);  // all but 63
}

}  // namespace
}  // namespace braid::engine::test
