// The store against strangers: raw sockets that say wrong things, too much, too little or nothing.
#include "group/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <random>
#include <thread>

#include "group/proof.h"
#include "group/wire.h"
#include "support/ranks.h"
#include "sys/net/api.h"

namespace braid::group {
namespace {

using test::soon;

constexpr int64_t kGreetingTime = 1_s;

class StoreTest : public ::testing::Test {
 protected:
  StoreTest() {
    sys::Fd listener =
        std::move(sys::listen_on(sys::resolve("127.0.0.1", 0)->front(), 256)).value();
    endpoint_ = sys::local_endpoint(listener.get()).value();
    store_ =
        std::move(Store::serve(std::move(listener), {"token", "job", 2, kGreetingTime})).value();
  }
  sys::Fd dial() { return std::move(sys::connect_to(endpoint_, soon())).value(); }
  sys::Endpoint endpoint_;
  std::unique_ptr<Store> store_;
};

void say(const sys::Fd& fd, std::string_view text) {
  (void)sys::send_all(fd.get(), std::as_bytes(std::span(text)), Deadline::after_ns(1_s));
}

// A frame's type and body; fails the test when none comes.
std::pair<FrameType, std::string> hear(const sys::Fd& fd) {
  std::string frame(kFrameHeadBytes, '\0');
  EXPECT_TRUE(sys::recv_all(fd.get(), std::as_writable_bytes(std::span(frame)), soon()).ok());
  const size_t body_bytes =
      static_cast<unsigned char>(frame[0]) + 256u * static_cast<unsigned char>(frame[1]);
  std::string body(body_bytes, '\0');
  EXPECT_TRUE(sys::recv_all(fd.get(), std::as_writable_bytes(std::span(body)), soon()).ok());
  return {static_cast<FrameType>(frame[4]), body};
}

// Reads to the end of the stream; false when it stays open for `patience_ns`.
bool is_closed_within(const sys::Fd& fd, int64_t patience_ns) {
  const Deadline deadline = Deadline::after_ns(patience_ns);
  std::byte chunk[1024];
  while (true) {
    auto got = sys::recv_some(fd.get(), chunk);
    if (!got.ok()) return true;
    if (*got == 0 && !sys::poll_one(fd.get(), POLLIN, deadline)) return false;
  }
}

Session session_with(const Nonce& store_nonce, uint32_t rank) {
  Session session;
  session.store_nonce = store_nonce;
  session.rank_nonce = fresh_nonce().value();
  session.job_id = "job";
  session.rank = rank;
  session.size = 2;
  return session;
}

std::string hello_of(const Session& session, std::string_view token) {
  return encode(Hello{session.rank_nonce, session.job_id, session.rank, session.size,
                      prove_rank(token, session)});
}

Nonce challenge_from(const sys::Fd& fd) {
  const auto [type, body] = hear(fd);
  EXPECT_EQ(type, FrameType::kChallenge);
  return decode_challenge(std::as_bytes(std::span(body)))->nonce;
}

sys::Fd join_as(sys::Fd fd, uint32_t rank) {
  const Session session = session_with(challenge_from(fd), rank);
  say(fd, hello_of(session, "token"));
  const auto [type, body] = hear(fd);
  EXPECT_EQ(type, FrameType::kWelcome);
  auto welcome = decode_welcome(std::as_bytes(std::span(body)));
  EXPECT_TRUE(welcome.ok() && is_equal(welcome->proof, prove_store("token", session)));
  return fd;
}

TEST_F(StoreTest, ProvesItselfToAMember) { (void)join_as(dial(), 1); }

TEST_F(StoreTest, EveryConnectionGetsItsOwnNonce) {
  const sys::Fd a = dial(), b = dial();
  EXPECT_NE(challenge_from(a), challenge_from(b));
}

TEST_F(StoreTest, RefusesAWrongTokenWithoutAProof) {
  const sys::Fd fd = dial();
  say(fd, hello_of(session_with(challenge_from(fd), 1), "guess"));
  const auto [type, body] = hear(fd);
  EXPECT_EQ(type, FrameType::kRefusal);
  auto refusal = decode_refusal(std::as_bytes(std::span(body)));
  ASSERT_TRUE(refusal.ok());
  EXPECT_EQ(refusal->kind, RefusalKind::kToken);
  EXPECT_EQ(refusal->proof, Proof{});  // a stranger gets nothing made from the token
  EXPECT_TRUE(is_closed_within(fd, 2_s));
}

TEST_F(StoreTest, AnOverheardHelloIsWorthNothing) {
  const sys::Fd first = dial();
  const std::string overheard = hello_of(session_with(challenge_from(first), 1), "token");
  const sys::Fd second = dial();
  (void)challenge_from(second);
  say(second, overheard);
  EXPECT_EQ(hear(second).first, FrameType::kRefusal);
}

TEST_F(StoreTest, AProofForOneRankDoesNotMakeAnother) {
  const sys::Fd fd = dial();
  const Session session = session_with(challenge_from(fd), 1);
  Session other = session;
  other.rank = 0;
  say(fd, encode(Hello{other.rank_nonce, other.job_id, other.rank, other.size,
                       prove_rank("token", session)}));
  EXPECT_EQ(hear(fd).first, FrameType::kRefusal);
}

TEST_F(StoreTest, GarbageIsHungUpOn) {
  for (const std::string text :
       {"GET / HTTP/1.1\r\n\r\n", "\xff\xff\xff\xff\x02garbage", "\x01\x01\x01\x01\x01\x01\x01"}) {
    const sys::Fd fd = dial();
    say(fd, text);
    EXPECT_TRUE(is_closed_within(fd, 2_s));
  }
}

TEST_F(StoreTest, FramesOfMembersAreNotForStrangers) {
  for (const std::string& frame :
       {encode(Blob{0, 1, "topic", "bytes"}), encode(News{Code::kInternal, 1, "lies"}),
        encode(FrameType::kLeft, RankNote{1}), encode_ready()}) {
    const sys::Fd fd = dial();
    say(fd, frame);
    EXPECT_TRUE(is_closed_within(fd, 2_s));
  }
}

TEST_F(StoreTest, AGreetingMayNotBeLong) {
  const sys::Fd fd = dial();
  say(fd, encode(Blob{0, 1, "topic", std::string(kMaxGreetingBytes, 'x')}));
  EXPECT_TRUE(is_closed_within(fd, 2_s));
}

TEST_F(StoreTest, RandomBytesNeverBreakIt) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const sys::Fd fd = dial();
    std::string text(random() % 200, '\0');
    for (char& c : text) c = static_cast<char>(random());
    say(fd, text);
  }
  (void)join_as(dial(), 1);
}

TEST_F(StoreTest, SilentConnectionsDoNotKeepMembersOut) {
  std::vector<sys::Fd> silent;
  for (int i = 0; i < 200; ++i) silent.push_back(dial());
  for (int i = 0; i < 200; i += 3)
    say(silent[static_cast<size_t>(i)], "\x20");  // a frame that never ends
  const int64_t start_ns = now_ns();
  (void)join_as(dial(), 1);
  EXPECT_LT(now_ns() - start_ns, 3_s);
  // More than the store hears at a time: the oldest has made room.
  EXPECT_TRUE(is_closed_within(silent[0], 2_s));
}

TEST_F(StoreTest, ASilentConnectionIsClosedInTime) {
  const sys::Fd fd = dial();
  EXPECT_FALSE(is_closed_within(fd, kGreetingTime / 2));
  EXPECT_TRUE(is_closed_within(fd, 10_s));
}

TEST_F(StoreTest, AMemberThatSendsGarbageIsADeath) {
  const sys::Fd zero = join_as(dial(), 0), one = join_as(dial(), 1);
  say(one, "\xff\xff\xff\xff\xff");
  while (true) {
    const auto [type, body] = hear(zero);
    if (type != FrameType::kNews) continue;
    auto news = decode_news(std::as_bytes(std::span(body)));
    EXPECT_EQ(news->code, Code::kPeerLost);
    EXPECT_EQ(news->text, "rank 1 died: it sent garbage");
    break;
  }
  EXPECT_TRUE(is_closed_within(one, 2_s));
}

TEST_F(StoreTest, AMemberMayNotSpeakForAnother) {
  const sys::Fd zero = join_as(dial(), 0), one = join_as(dial(), 1);
  say(one, encode(Blob{0, 0, "topic", "forged"}));
  EXPECT_TRUE(is_closed_within(one, 2_s));
}

TEST_F(StoreTest, AFreedPlaceMayBeTakenAgain) {
  const sys::Fd zero = join_as(dial(), 0);
  while (hear(zero).first != FrameType::kJoined) {
  }
  {
    (void)join_as(dial(), 1).get();
  }  // comes, completes the group, and goes: a death
  while (hear(zero).first != FrameType::kNews) {
  }
  const sys::Fd late = dial();
  const Session session = session_with(challenge_from(late), 1);
  say(late, hello_of(session, "token"));
  EXPECT_EQ(hear(late).first, FrameType::kRefusal);  // a whole group takes nobody
}

TEST_F(StoreTest, ClosesInTimeWhateverStrangersDo) {
  const sys::Fd member = join_as(dial(), 0), stranger = dial();
  const int64_t start_ns = now_ns();
  store_->close(Deadline::after_ns(300_ms));  // the member does not answer the end of its stream
  EXPECT_LT(now_ns() - start_ns, 3_s);
  EXPECT_TRUE(is_closed_within(member, 1_s));
}

}  // namespace
}  // namespace braid::group
