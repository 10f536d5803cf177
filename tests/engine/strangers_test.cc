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

/// Whether the handshake comes to its end, with this in its midst.
template <typename Body>
bool greet(const Engine& engine, Body meanwhile) {
  const Secret secret("a token of tests");
  const SessionId session{};
  SourceHandshake handshake(secret, Incarnation{}, engine.self(), session, 0);
  ControlSocket socket(sys::connect_to(where(engine), in_seconds(5)).value());
  EXPECT_TRUE(is_ok(handshake.start(socket)));
  EXPECT_TRUE(is_ok(socket.flush()));
  meanwhile();
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

// Who has come and said hello stays, however many come after him and say nothing.
TEST(Strangers, DoNotTurnOutWhoHasSaidHello) {
  const auto engine = Engines(Way{"local", true, "", 0, {}}).make("target");
  std::vector<sys::Fd> flood;
  EXPECT_TRUE(greet(*engine, [&] {
    rest(20);  // he has been taken
    flood = connect_many(where(*engine), 80);
    rest(50);  // so have they
  }));
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
