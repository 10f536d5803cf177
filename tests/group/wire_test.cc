#include "group/wire.h"

#include <gtest/gtest.h>

#include <random>

namespace braid::group {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

Nonce nonce_of(int seed) {
  Nonce nonce;
  for (size_t i = 0; i < nonce.size(); ++i)
    nonce[i] = static_cast<std::byte>(static_cast<int>(i) * 5 + seed);
  return nonce;
}

// The body of a frame that must be whole and of the given type.
std::span<const std::byte> body_of(std::string_view frame, FrameType type) {
  const Frame parsed = parse_frame(bytes_of(frame), kMaxBodyBytes);
  EXPECT_EQ(parsed.state, Frame::State::kComplete);
  EXPECT_EQ(parsed.type, type);
  EXPECT_EQ(parsed.frame_bytes, frame.size());
  return parsed.body;
}

std::vector<std::string> one_of_each() {
  return {encode(Challenge{nonce_of(1)}),
          encode(Hello{nonce_of(2), "job", 3, 4, {}, Purpose::kJoin, nonce_of(5)}),
          encode(Welcome{nonce_of(6)}),
          encode(Refusal{RefusalKind::kDisagreement, "no", nonce_of(7)}),
          encode(FrameType::kJoined, RankNote{1}),
          encode(FrameType::kGone, RankNote{2}),
          encode_ready(),
          encode(Blob{9, 1, "topic", "bytes"}),
          encode(News{Code::kTimeout, 2, "late"}),
          encode(FrameType::kLeft, RankNote{3})};
}

// Every decoder on one body; none may crash, whatever the bytes.
int count_accepting(std::span<const std::byte> body) {
  return decode_challenge(body).ok() + decode_hello(body).ok() + decode_welcome(body).ok() +
         decode_refusal(body).ok() + decode_rank_note(body).ok() + decode_blob(body).ok() +
         decode_news(body).ok();
}

TEST(Wire, MessagesComeBackAsTheyWere) {
  const std::string challenge = encode(Challenge{nonce_of(1)});
  EXPECT_EQ(decode_challenge(body_of(challenge, FrameType::kChallenge))->nonce, nonce_of(1));

  ProcessMark mark{};
  mark[15] = std::byte{9};
  const std::string hello =
      encode(Hello{nonce_of(2), "job 7", 3, 40'000, mark, Purpose::kServe, nonce_of(5)});
  auto h = decode_hello(body_of(hello, FrameType::kHello));
  ASSERT_TRUE(h.ok());
  EXPECT_EQ(h->nonce, nonce_of(2));
  EXPECT_EQ(h->job_id, "job 7");
  EXPECT_EQ(h->rank, 3u);
  EXPECT_EQ(h->size, 40'000u);
  EXPECT_EQ(h->process, mark);
  EXPECT_EQ(h->purpose, Purpose::kServe);
  EXPECT_EQ(h->proof, nonce_of(5));

  const std::string refusal = encode(Refusal{RefusalKind::kToken, "why", nonce_of(8)});
  auto r = decode_refusal(body_of(refusal, FrameType::kRefusal));
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(r->kind, RefusalKind::kToken);
  EXPECT_EQ(r->text, "why");
  EXPECT_EQ(r->proof, nonce_of(8));

  const std::string bytes("zero\0inside", 11);
  const std::string blob = encode(Blob{1ull << 40, 77, "topic", bytes});
  auto b = decode_blob(body_of(blob, FrameType::kBlob));
  ASSERT_TRUE(b.ok());
  EXPECT_EQ(b->sequence, 1ull << 40);
  EXPECT_EQ(b->rank, 77u);
  EXPECT_EQ(b->topic, "topic");
  EXPECT_EQ(b->bytes, bytes);

  const std::string news = encode(News{Code::kPeerLost, 5, "rank 5 died"});
  auto n = decode_news(body_of(news, FrameType::kNews));
  ASSERT_TRUE(n.ok());
  EXPECT_EQ(n->code, Code::kPeerLost);
  EXPECT_EQ(n->rank, 5u);
  EXPECT_EQ(n->text, "rank 5 died");
}

TEST(Wire, GreetingsFitTheStrangersLimit) {
  const std::string longest(10'000, 'x');
  for (const std::string& frame :
       {encode(Hello{nonce_of(1), longest, 1, 2, {}, Purpose::kJoin, nonce_of(2)}),
        encode(Refusal{RefusalKind::kToken, longest, nonce_of(1)}), encode(Challenge{})})
    EXPECT_EQ(parse_frame(bytes_of(frame), kMaxGreetingBytes).state, Frame::State::kComplete);
}

TEST(Wire, TheLargestBlobFitsTheMembersLimit) {
  const std::string frame =
      encode(Blob{1, 2, std::string(kMaxTopicBytes, 't'), std::string(kMaxBlobBytes, 'b')});
  EXPECT_EQ(decode_blob(body_of(frame, FrameType::kBlob))->bytes.size(), kMaxBlobBytes);
}

TEST(Wire, HalfAFrameIsIncompleteAtEveryLength) {
  for (const std::string& frame : one_of_each())
    for (size_t n = 0; n < frame.size(); ++n)
      EXPECT_EQ(parse_frame(bytes_of(frame).first(n), kMaxBodyBytes).state,
                Frame::State::kIncomplete);
}

TEST(Wire, ABodyOfAnyOtherLengthIsRefused) {
  for (const std::string& frame : one_of_each()) {
    const auto body = body_of(frame, static_cast<FrameType>(frame[4]));
    for (size_t n = 0; n < body.size(); ++n) EXPECT_EQ(decode_hello(body.first(n)).ok(), false);
    std::string longer(reinterpret_cast<const char*>(body.data()), body.size());
    longer += 'x';
    EXPECT_EQ(count_accepting(bytes_of(longer)), 0) << "type " << int(frame[4]);
  }
}

TEST(Wire, LengthsAboveTheLimitAreGarbageBeforeTheyAreBelieved) {
  const std::string huge("\xff\xff\xff\xff\x08", 5);
  EXPECT_EQ(parse_frame(bytes_of(huge), kMaxBodyBytes).state, Frame::State::kGarbage);
  const std::string large = encode(Blob{1, 1, "t", std::string(2'000, 'b')});
  EXPECT_EQ(parse_frame(bytes_of(large), kMaxGreetingBytes).state, Frame::State::kGarbage);
  EXPECT_EQ(parse_frame(bytes_of(large), kMaxBodyBytes).state, Frame::State::kComplete);
}

TEST(Wire, UnknownTypesAndForeignProtocolsAreGarbage) {
  for (const int type : {0, kLastFrameType + 1, 255}) {
    const std::string frame{'\0', '\0', '\0', '\0', static_cast<char>(type)};
    EXPECT_EQ(parse_frame(bytes_of(frame), kMaxBodyBytes).state, Frame::State::kGarbage);
  }
  EXPECT_EQ(parse_frame(bytes_of("HTTP/1.1 400 Bad Request"), kMaxGreetingBytes).state,
            Frame::State::kGarbage);
  EXPECT_EQ(parse_frame(bytes_of("SSH-2.0-OpenSSH_9.2"), kMaxGreetingBytes).state,
            Frame::State::kGarbage);
}

TEST(Wire, ValuesThatNoBraidSendsAreRefused) {
  std::string challenge = encode(Challenge{nonce_of(1)});
  challenge[kFrameHeadBytes] ^= 1;  // the magic
  EXPECT_FALSE(decode_challenge(body_of(challenge, FrameType::kChallenge)).ok());
  for (const char kind : {'\0', '\6'}) {
    std::string refusal = encode(Refusal{});
    refusal[kFrameHeadBytes] = kind;
    EXPECT_FALSE(decode_refusal(body_of(refusal, FrameType::kRefusal)).ok());
  }
  for (const char code : {'\0', '\x09'}) {
    std::string news = encode(News{});
    news[kFrameHeadBytes] = code;
    EXPECT_FALSE(decode_news(body_of(news, FrameType::kNews)).ok());
  }
  // A text whose length points far outside.
  std::string blob = encode(Blob{1, 1, "t", "b"});
  blob[kFrameHeadBytes + 12] = '\xff';
  EXPECT_FALSE(decode_blob(body_of(blob, FrameType::kBlob)).ok());
}

TEST(Wire, RandomBytesAndFlippedBitsNeverCrash) {
  std::mt19937 random(20'260'101);
  const auto frames = one_of_each();
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = frames[random() % frames.size()];
    for (int flips = static_cast<int>(random() % 4); flips >= 0; --flips)
      bytes[random() % bytes.size()] ^= static_cast<char>(1 << (random() % 8));
    if (random() % 8 == 0) bytes.resize(random() % (bytes.size() + 1));
    const Frame frame = parse_frame(bytes_of(bytes), kMaxBodyBytes);
    if (frame.state == Frame::State::kComplete) {
      EXPECT_LE(frame.frame_bytes, bytes.size());
      (void)count_accepting(frame.body);
    }
    (void)count_accepting(bytes_of(bytes));
  }
}

}  // namespace
}  // namespace braid::group
