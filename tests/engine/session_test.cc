// Frames arrive in order and once, over sockets that break anywhere.
#include "engine/session.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "engines.h"

namespace braid::engine::test {
namespace {

struct Sockets {
  Sockets() {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    first = sys::Fd(fds[0]);
    second = sys::Fd(fds[1]);
  }
  sys::Fd first, second;
};

void connect(Session& a, Session& b, std::string_view key_of_b = "b") {
  Sockets sockets;
  ControlSocket of_a(std::move(sockets.first)), of_b(std::move(sockets.second));
  of_a.seal("a", "b");
  of_b.seal(key_of_b, "a");
  const uint64_t a_received = a.received(), b_received = b.received();
  a.attach(std::move(of_a), b_received);
  b.attach(std::move(of_b), a_received);
}

TEST(Session, FramesSurviveSocketsThatBreak) {
  std::mt19937 random(1);
  Session a, b;
  connect(a, b);
  int to_b = 0, to_a = 0, at_b = 0, at_a = 0;
  const auto take = [](int& next) {
    return [&next](const Frame& frame) {
      EXPECT_EQ(frame.body, std::to_string(next));
      ++next;
      return Status();
    };
  };
  for (int step = 0; step < 20'000; ++step) {
    switch (random() % 8) {
      case 0:
      case 1: a.send(FrameType::kLanded, std::to_string(to_b++)); break;
      case 2: b.send(FrameType::kDone, std::to_string(to_a++)); break;
      case 3: (void)a.pump(take(at_a)); break;
      case 4: (void)b.pump(take(at_b)); break;
      case 5: (void)a.flush(); break;
      case 6: a.beat(INT64_MAX / 2); break;
      default:
        if (random() % 10 == 0) {
          if (random() % 2 == 0) a.detach();
          if (random() % 2 == 0) b.detach();
          connect(a, b);
        }
    }
  }
  connect(a, b);
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(is_ok(a.pump(take(at_a))));
    ASSERT_TRUE(is_ok(b.pump(take(at_b))));
  }
  EXPECT_EQ(at_b, to_b);
  EXPECT_EQ(at_a, to_a);
  EXPECT_GT(to_b, 1000);
}

// A peer that takes as much as is queued, but is always some frames behind.
TEST(ControlSocket, WhatWasSentIsNotKept) {
  Sockets sockets;
  ControlSocket socket(std::move(sockets.first));
  const std::string body(64 << 10, 'x');
  for (int i = 0; i < 32; ++i) socket.queue(FrameType::kPull, 0, 0, body);
  std::string taken(body.size() + kFrameHeadBytes, '\0');
  size_t num_most = 0;
  for (int i = 0; i < 500; ++i) {
    socket.queue(FrameType::kPull, 0, 0, body);
    ASSERT_TRUE(is_ok(socket.flush()));
    ASSERT_TRUE(socket.has_output());
    for (size_t at = 0; at < taken.size();) {
      const ssize_t got = ::read(sockets.second.get(), taken.data(), taken.size() - at);
      ASSERT_TRUE(is_ok(socket.flush()));
      at += static_cast<size_t>(std::max<ssize_t>(got, 0));
    }
    num_most = std::max(num_most, socket.output_bytes());
  }
  EXPECT_LT(num_most, 32 * 3 * body.size());
}

TEST(Session, ABrokenSealEndsTheSocket) {
  Session a, b;
  connect(a, b, "not b");
  b.send(FrameType::kDone, "x");
  ASSERT_TRUE(is_ok(b.flush()));
  const auto never = [](const Frame&) {
    ADD_FAILURE();
    return Status();
  };
  EXPECT_TRUE(failed(a.pump(never), Code::kInvalidArgument, "seal is broken"));
  EXPECT_FALSE(a.is_attached());
}

TEST(Session, GarbageEndsTheSocket) {
  std::mt19937 random(2);
  for (int round = 0; round < 300; ++round) {
    Sockets sockets;
    Session a;
    ControlSocket socket(std::move(sockets.first));
    socket.seal("a", "b");
    a.attach(std::move(socket), 0);
    std::string garbage(1 + random() % 200, '\0');
    for (char& c : garbage) c = static_cast<char>(random());
    ASSERT_EQ(::write(sockets.second.get(), garbage.data(), garbage.size()),
              static_cast<ssize_t>(garbage.size()));
    (void)a.pump([](const Frame&) {
      ADD_FAILURE();
      return Status();
    });
  }
}

}  // namespace
}  // namespace braid::engine::test
