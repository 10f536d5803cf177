// A peer that holds the token and talks nonsense.
#include "engine/engine.h"
#include "engine/handshake.h"
#include "engine/session.h"
#include "engines.h"
#include "sys/net/api.h"

namespace braid::engine::test {
namespace {

/// A target that says what a test wants it to.
class Liar {
 public:
  Liar() {
    listener_ = sys::listen_on(sys::resolve("127.0.0.1", 0).value().front(), 8).value();
    self.name = "liar";
    self.incarnation.fill('x');
    self.host = "elsewhere";
    self.endpoints = {sys::local_endpoint(listener_.get()).value().text()};
    self.num_nics = 1;
  }
  void greet() {
    ControlSocket socket(sys::accept_on(listener_.get(), in_seconds(5)).value());
    TargetHandshake handshake(secret, self.incarnation);
    const Deadline deadline = in_seconds(5);
    while (!handshake.is_done() && !deadline.passed()) {
      ASSERT_TRUE(is_ok(socket.fill()));
      auto frame = socket.next();
      ASSERT_TRUE(is_ok(frame));
      if (!frame->has_value()) continue;
      ASSERT_TRUE(is_ok(
          handshake.on_frame(socket, **frame, [](const Introduction&) { return uint64_t{0}; })));
      ASSERT_TRUE(is_ok(socket.flush()));
    }
    session.attach(std::move(socket), 0);
  }
  /// Pumps until a frame of this type has come.
  bool hear(FrameType type) {
    bool found = false;
    const Deadline deadline = in_seconds(5);
    while (!found && !deadline.passed())
      (void)session.pump([&](const Frame& frame) {
        found |= frame.type == type;
        return Status();
      });
    return found;
  }

  const Secret secret{"a token of tests"};
  Address self;
  Session session;

 private:
  sys::Fd listener_;
};

TEST(Nonsense, NoVerdictEndsWhatWasNotStated) {
  Way way{"fake", false, "fake", 1, {}};
  way.rules.is_truthful = true;
  Engines engines(way);
  auto a = engines.make("a");
  Memory from(*a, 1000, 1);
  Liar liar;
  RegionDescriptor region;
  region.owner = liar.self;
  region.id = 1;
  region.bytes = 1000;
  region.keys = {{0, 1}};
  auto remote = a->import(encode(region, liar.secret));
  ASSERT_TRUE(is_ok(remote));
  auto ticket = a->write({from.region, 0}, {*remote, 0}, 1000);
  ASSERT_TRUE(is_ok(ticket));
  liar.greet();
  Accept accept;
  accept.rails = {{0, 0}};
  ASSERT_TRUE(liar.hear(FrameType::kOpen));
  liar.session.send(FrameType::kAccept, encode(accept));
  ASSERT_TRUE(liar.hear(FrameType::kRail));  // which nobody answers: no byte has moved
  const uint64_t id = ticket.value()->id();
  liar.session.send(FrameType::kDone, encode(Done{{id}}));
  liar.session.send(FrameType::kCancelled, encode(TransferNote{id}));
  liar.session.send(FrameType::kRefused, encode(Refused{id, Code::kInternal, "nonsense"}));
  ASSERT_TRUE(is_ok(liar.session.flush()));
  EXPECT_FALSE(ticket.value()->wait(Deadline::after_ns(kSecond / 2)).ok());
  EXPECT_FALSE(ticket.value()->is_done()) << ticket.value()->status().to_string();
}

}  // namespace
}  // namespace braid::engine::test
