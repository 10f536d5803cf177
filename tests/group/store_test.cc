// The store against strangers: raw sockets that say wrong things, too much, too little or nothing.
#include "group/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <random>
#include <thread>

#include "group/frame_seal.h"
#include "group/proof.h"
#include "group/wire.h"
#include "support/ranks.h"
#include "sys/host/api.h"
#include "sys/net/api.h"

namespace braid::group {
namespace {

using test::soon;

constexpr int64_t kGreetingTime = 1_s;

class StoreTest : public ::testing::Test {
 protected:
  StoreTest() { restart(); }
  void restart(bool is_nameless = false, int64_t greeting_ns = kGreetingTime) {
    store_.reset();
    sys::Fd listener =
        std::move(sys::listen_on(sys::resolve("127.0.0.1", 0)->front(), 256)).value();
    endpoint_ = sys::local_endpoint(listener.get()).value();
    Terms terms{"token", "job", 2, greeting_ns};
    terms.is_nameless = terms.is_users_own = is_nameless;
    store_ = std::move(Store::serve(std::move(listener), std::move(terms))).value();
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
                      session.process, session.purpose, prove_rank(token, session)});
}

/// A member without a Group: what it says and hears is sealed.
struct RawMember {
  sys::Fd fd;
  FrameSeal seal, open;

  int get() const { return fd.get(); }
  void say(std::string_view frame) {
    std::string sealed;
    seal.seal(frame, sealed);
    say_raw(sealed);
  }
  void say_raw(std::string_view bytes) const { group::say(fd, bytes); }
  std::pair<FrameType, std::string> hear() {
    std::string frame(kFrameHeadBytes, '\0');
    EXPECT_TRUE(sys::recv_all(fd.get(), std::as_writable_bytes(std::span(frame)), soon()).ok());
    frame.resize(first_frame_bytes(frame) + kSealBytes);
    const auto rest = std::as_writable_bytes(std::span(frame)).subspan(kFrameHeadBytes);
    EXPECT_TRUE(sys::recv_all(fd.get(), rest, soon()).ok());
    EXPECT_TRUE(open.open(std::as_writable_bytes(std::span(frame))));
    return {static_cast<FrameType>(frame[4]),
            frame.substr(kFrameHeadBytes, frame.size() - kFrameHeadBytes - kSealBytes)};
  }
};

Nonce challenge_from(const sys::Fd& fd) {
  const auto [type, body] = hear(fd);
  EXPECT_EQ(type, FrameType::kChallenge);
  return decode_challenge(std::as_bytes(std::span(body)))->nonce;
}

RawMember join_with(sys::Fd fd, const Session& session) {
  say(fd, hello_of(session, "token"));
  const auto [type, body] = hear(fd);
  EXPECT_EQ(type, FrameType::kWelcome);
  auto welcome = decode_welcome(std::as_bytes(std::span(body)));
  EXPECT_TRUE(welcome.ok() && is_equal(welcome->proof, prove_store("token", session)));
  return {std::move(fd), FrameSeal(key_to_store("token", session), FrameSeal::Use::kSeal),
          FrameSeal(key_to_rank("token", session), FrameSeal::Use::kOpen)};
}

RawMember join_as(sys::Fd fd, uint32_t rank) {
  const Session session = session_with(challenge_from(fd), rank);
  return join_with(std::move(fd), session);
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
  say(fd, encode(Hello{other.rank_nonce, other.job_id, other.rank, other.size, other.process,
                       other.purpose, prove_rank("token", session)}));
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
  // More than the store hears at a time: some have made room.
  size_t num_closed = 0;
  for (const sys::Fd& fd : silent) num_closed += is_closed_within(fd, 1_ms) ? 1 : 0;
  EXPECT_GE(num_closed, 200u - 128u);
}

/// Runs `body` as another user of this host, and waits for it.
bool as_another_user(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setgid(65534) != 0 || ::setuid(65534) != 0) ::_exit(1);
    body();
    ::_exit(0);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return status == 0;
}

// A rank that takes its time to answer, and somebody who connects 400 times meanwhile.
TEST_F(StoreTest, AFloodTurnsOutItsOwn) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be somebody else";
  if (!sys::PeerUsers::open().ok()) GTEST_SKIP() << "the kernel does not tell users";
  restart(false, 20_s);
  sys::Fd slow = dial();
  const Session session = session_with(challenge_from(slow), 1);
  ASSERT_TRUE(as_another_user([this] {
    std::vector<sys::Fd> held;
    for (int i = 0; i < 400; ++i) {
      auto fd = sys::connect_to(endpoint_, Deadline::after_ns(5_s));
      if (fd.ok()) held.push_back(std::move(fd).value());
    }
  }));
  (void)join_with(std::move(slow), session);
}

TEST_F(StoreTest, OtherUsersAreTurnedOutWhereTheSecretIsThisUsers) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be somebody else";
  if (!sys::PeerUsers::open().ok()) GTEST_SKIP() << "the kernel does not tell users";
  const auto hears_a_word = [this] {
    auto fd = sys::connect_to(endpoint_, Deadline::after_ns(5_s));
    std::byte byte{};
    return fd.ok() && sys::recv_all(fd->get(), {&byte, 1}, Deadline::after_ns(5_s)).ok();
  };
  EXPECT_TRUE(as_another_user([&] { hears_a_word() ? void() : ::_exit(2); }));
  restart(true);
  EXPECT_TRUE(as_another_user([&] { hears_a_word() ? ::_exit(2) : void(); }));
  (void)join_as(dial(), 1);
}

// Two jobs that nothing tells apart: the second claim to a place, by another process, ends them.
class NamelessStore : public StoreTest {
 protected:
  NamelessStore() { restart(true); }
  Session claim(const sys::Fd& fd, uint32_t rank, std::byte process) {
    Session session = session_with(challenge_from(fd), rank);
    session.process.fill(process);
    return session;
  }
  RawMember join_from(std::byte process, uint32_t rank) {
    sys::Fd fd = dial();
    const Session session = claim(fd, rank, process);
    return join_with(std::move(fd), session);
  }
  Refusal refusal_of(Session session, const sys::Fd& fd) {
    say(fd, hello_of(session, "token"));
    const auto [type, body] = hear(fd);
    EXPECT_EQ(type, FrameType::kRefusal);
    auto refusal = decode_refusal(std::as_bytes(std::span(body)));
    EXPECT_TRUE(refusal.ok());
    return refusal.ok() ? *refusal : Refusal{};
  }
  static void expect_end(RawMember& member) {
    std::pair<FrameType, std::string> heard;
    while ((heard = member.hear()).first != FrameType::kNews) {
    }
    auto news = decode_news(std::as_bytes(std::span(heard.second)));
    EXPECT_EQ(news->code, Code::kInvalidArgument);
    EXPECT_THAT(news->text, ::testing::HasSubstr("set BRAID_JOB_TOKEN"));
  }
  static constexpr std::byte kOne{1}, kOther{2};
};

TEST_F(NamelessStore, ASecondClaimToAPlaceEndsAGroupThatForms) {
  RawMember zero = join_from(kOne, 0);
  const sys::Fd rival = dial();
  const Refusal refusal = refusal_of(claim(rival, 0, kOther), rival);
  EXPECT_EQ(refusal.kind, RefusalKind::kDisagreement);
  EXPECT_THAT(refusal.text, ::testing::HasSubstr("set BRAID_JOB_TOKEN"));
  expect_end(zero);
  const sys::Fd late = dial();  // of either job: nobody is taken any more
  EXPECT_EQ(refusal_of(claim(late, 1, kOne), late).text, refusal.text);
}

TEST_F(NamelessStore, AndOneThatIsWholeSinceAMoment) {
  RawMember zero = join_from(kOne, 0), one = join_from(kOther, 1);
  const sys::Fd rival = dial();
  EXPECT_EQ(refusal_of(claim(rival, 1, kOne), rival).kind, RefusalKind::kDisagreement);
  expect_end(zero);
  expect_end(one);
}

TEST_F(NamelessStore, AnotherRankZeroThatWouldServeEndsIt) {
  RawMember zero = join_from(kOne, 0);
  const sys::Fd rival = dial();
  Session session = claim(rival, 0, kOther);
  session.purpose = Purpose::kServe;
  const Refusal refusal = refusal_of(session, rival);
  EXPECT_EQ(refusal.kind, RefusalKind::kDisagreement);
  EXPECT_TRUE(is_equal(refusal.proof, prove_refusal("token", session, refusal.kind, refusal.text)));
  expect_end(zero);
}

TEST_F(NamelessStore, TheSameProcessMayHaveTwoGroups) {
  RawMember zero = join_from(kOne, 0), one = join_from(kOther, 1);
  sys::Fd again = dial();
  EXPECT_EQ(refusal_of(claim(again, 1, kOther), again).kind, RefusalKind::kRunning);
  again = dial();
  Session own = session_with(challenge_from(again), 0);
  own.process = sys::process_mark().value();  // the store's
  own.purpose = Purpose::kServe;
  EXPECT_EQ(refusal_of(own, again).kind, RefusalKind::kOwn);
}

TEST_F(NamelessStore, APlaceThatWasLeftIsNoClaim) {
  RawMember zero = join_from(kOne, 0), one = join_from(kOther, 1);
  one.say(encode(FrameType::kLeft, RankNote{1}));
  while (zero.hear().first != FrameType::kLeft) {
  }
  const sys::Fd next = dial();
  EXPECT_EQ(refusal_of(claim(next, 1, kOne), next).kind, RefusalKind::kRunning);
}

TEST_F(StoreTest, WithATokenOfItsOwnAGroupIsNotEndedByASecondClaim) {
  RawMember zero = join_as(dial(), 0);
  const sys::Fd rival = dial();
  Session session = session_with(challenge_from(rival), 0);
  session.process.fill(std::byte{7});
  say(rival, hello_of(session, "token"));
  EXPECT_EQ(hear(rival).first, FrameType::kRefusal);
  RawMember one = join_as(dial(), 1);
  while (zero.hear().first != FrameType::kReady) {
  }
}

TEST_F(StoreTest, ASilentConnectionIsClosedInTime) {
  const sys::Fd fd = dial();
  EXPECT_FALSE(is_closed_within(fd, kGreetingTime / 2));
  EXPECT_TRUE(is_closed_within(fd, 10_s));
}

TEST_F(StoreTest, AMemberThatSendsGarbageIsADeath) {
  RawMember zero = join_as(dial(), 0), one = join_as(dial(), 1);
  one.say_raw("\xff\xff\xff\xff\xff");
  while (true) {
    const auto [type, body] = zero.hear();
    if (type != FrameType::kNews) continue;
    auto news = decode_news(std::as_bytes(std::span(body)));
    EXPECT_EQ(news->code, Code::kPeerLost);
    EXPECT_EQ(news->text, "rank 1 died: it sent garbage");
    break;
  }
  EXPECT_TRUE(is_closed_within(one.fd, 2_s));
}

TEST_F(StoreTest, AMemberMayNotSpeakForAnother) {
  RawMember zero = join_as(dial(), 0), one = join_as(dial(), 1);
  one.say(encode(Blob{0, 0, "topic", "forged"}));
  EXPECT_TRUE(is_closed_within(one.fd, 2_s));
}

// Who sits between a rank and the store and has seen both greet. What he says is never heard, and the
// rank that it seems to come from is told to be lost, with the reason.
TEST_F(StoreTest, WhatWasNotSealedByTheMemberIsNotHeard) {
  const std::string lie = encode(News{Code::kInternal, 1, "lies"});
  std::string of_another_key = lie;
  FrameSeal stranger(std::string(kSealKeyBytes, 'k'), FrameSeal::Use::kSeal);
  of_another_key.clear();
  stranger.seal(lie, of_another_key);
  for (const std::string& forged : {lie + std::string(kSealBytes, '\0'), of_another_key}) {
    restart();
    RawMember zero = join_as(dial(), 0), one = join_as(dial(), 1);
    one.say_raw(forged);
    std::pair<FrameType, std::string> heard;
    while ((heard = zero.hear()).first != FrameType::kNews) {
    }
    auto news = decode_news(std::as_bytes(std::span(heard.second)));
    EXPECT_EQ(news->code, Code::kPeerLost);
    EXPECT_EQ(news->text,
              "rank 1 died: a frame from it had been altered: somebody is on its control "
              "connection");
    EXPECT_TRUE(is_closed_within(one.fd, 2_s));
  }
}

TEST_F(StoreTest, AFrameIsHeardOnceAndInItsTurn) {
  for (const bool is_repeated : {true, false}) {
    restart();
    RawMember zero = join_as(dial(), 0), one = join_as(dial(), 1);
    std::string first, second;
    one.seal.seal(encode(Blob{0, 1, "topic", "one"}), first);
    one.seal.seal(encode(Blob{1, 1, "topic", "two"}), second);
    one.say_raw(is_repeated ? first + first : second);
    int blobs = 0;
    std::pair<FrameType, std::string> heard;
    while ((heard = zero.hear()).first != FrameType::kNews)
      blobs += heard.first == FrameType::kBlob ? 1 : 0;
    EXPECT_EQ(blobs, is_repeated ? 1 : 0);
  }
}

TEST_F(StoreTest, AFreedPlaceMayBeTakenAgain) {
  RawMember zero = join_as(dial(), 0);
  while (zero.hear().first != FrameType::kJoined) {
  }
  {
    (void)join_as(dial(), 1).get();
  }  // comes, completes the group, and goes: a death
  while (zero.hear().first != FrameType::kNews) {
  }
  const sys::Fd late = dial();
  const Session session = session_with(challenge_from(late), 1);
  say(late, hello_of(session, "token"));
  EXPECT_EQ(hear(late).first, FrameType::kRefusal);  // a whole group takes nobody
}

// Its end of stream may come after the last rank, and says nothing then: the goodbye itself counts.
TEST_F(StoreTest, APlaceIsFreeOnceItsRankHasLeftAGroupThatForms) {
  RawMember early = join_as(dial(), 0);
  EXPECT_EQ(early.hear().first, FrameType::kJoined);
  early.say(encode(FrameType::kLeft, RankNote{0}));
  EXPECT_TRUE(is_closed_within(early.fd, 2_s));
  RawMember last = join_as(dial(), 1);
  EXPECT_EQ(last.hear().first, FrameType::kJoined);
  RawMember again = join_as(dial(), 0);
  const auto [joined, who] = last.hear();
  EXPECT_EQ(joined, FrameType::kJoined);  // not ready without it
  EXPECT_EQ(last.hear().first, FrameType::kReady);
}

TEST_F(StoreTest, ClosesInTimeWhateverStrangersDo) {
  const RawMember member = join_as(dial(), 0);
  const sys::Fd stranger = dial();
  const int64_t start_ns = now_ns();
  store_->close(Deadline::after_ns(300_ms));  // the member does not answer the end of its stream
  EXPECT_LT(now_ns() - start_ns, 3_s);
  EXPECT_TRUE(is_closed_within(member.fd, 1_s));
}

}  // namespace
}  // namespace braid::group
