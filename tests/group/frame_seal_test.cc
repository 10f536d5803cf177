#include "group/frame_seal.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "base/sanitizer.h"
#include "group/wire.h"

namespace braid::group {
namespace {

const std::string kKey(kSealKeyBytes, 'k'), kOtherKey(kSealKeyBytes, 'o');

std::string sealed_by(FrameSeal& seal, const std::string& frame) {
  std::string out;
  seal.seal(frame, out);
  return out;
}

bool opens(FrameSeal& open, std::string frame) {
  return open.open(std::as_writable_bytes(std::span(frame)));
}

std::string blob(uint64_t number, const std::string& bytes) {
  return encode(Blob{number, 1, "topic", bytes});
}

TEST(FrameSeal, FramesComeBackAsTheyWere) {
  FrameSeal seal(kKey, FrameSeal::Use::kSeal), open(kKey, FrameSeal::Use::kOpen);
  for (uint64_t i = 0; i < 50; ++i) {
    const std::string frame = i % 3 == 0
                                  ? encode_ready()
                                  : blob(i, std::string(i * 977, static_cast<char>('a' + i % 20)));
    std::string sealed = sealed_by(seal, frame);
    ASSERT_EQ(sealed.size(), frame.size() + kSealBytes);
    ASSERT_TRUE(open.open(std::as_writable_bytes(std::span(sealed)))) << i;
    EXPECT_EQ(sealed.substr(0, frame.size()), frame) << i;
  }
}

TEST(FrameSeal, HidesTheBodyAndNeverTheSameWay) {
  FrameSeal seal(kKey, FrameSeal::Use::kSeal);
  const std::string frame = blob(1, "a key of registered memory");
  const std::string first = sealed_by(seal, frame), second = sealed_by(seal, frame);
  EXPECT_EQ(first.find("a key of"), std::string::npos);
  EXPECT_EQ(first.find("topic"), std::string::npos);
  EXPECT_EQ(first.substr(0, kFrameHeadBytes), second.substr(0, kFrameHeadBytes));
  EXPECT_NE(first.substr(kFrameHeadBytes), second.substr(kFrameHeadBytes));
}

TEST(FrameSeal, OpensNothingTwiceEarlyLateOrUnderAnotherKey) {
  FrameSeal seal(kKey, FrameSeal::Use::kSeal), open(kKey, FrameSeal::Use::kOpen),
      other(kOtherKey, FrameSeal::Use::kOpen);
  std::vector<std::string> frames;
  for (uint64_t i = 0; i < 3; ++i) frames.push_back(sealed_by(seal, blob(i, "bytes")));
  EXPECT_FALSE(opens(other, frames[0]));
  EXPECT_FALSE(opens(open, frames[1]));  // the first was held back
  EXPECT_TRUE(opens(open, frames[0]));
  EXPECT_FALSE(opens(open, frames[0]));
  EXPECT_FALSE(opens(open, frames[2]));  // the second was left out
  EXPECT_TRUE(opens(open, frames[1]));
  EXPECT_TRUE(opens(open, frames[2]));
  EXPECT_FALSE(opens(open, ""));
  EXPECT_FALSE(opens(open, std::string(kFrameHeadBytes + kSealBytes - 1, '\0')));
}

// A million frames that no end has sealed as its next: bits turned, cut, grown, taken from elsewhere,
// made up. The one that is right opens after all of them.
TEST(FrameSeal, AMillionForgeriesAndNoneOpens) {
  constexpr int kRounds = kIsThreadSanitized ? 20'000 : 1'000'000;  // of one thread
  FrameSeal seal(kKey, FrameSeal::Use::kSeal), stranger(kOtherKey, FrameSeal::Use::kSeal),
      open(kKey, FrameSeal::Use::kOpen);
  const std::string before = sealed_by(seal, blob(6, "before"));
  ASSERT_TRUE(opens(open, before));
  const std::string right = sealed_by(seal, blob(7, "what the member said")),
                    after = sealed_by(seal, blob(8, "what the member said"));
  std::mt19937 random(11);
  int num_opened = 0;
  std::string forged;
  for (int i = 0; i < kRounds; ++i) {
    switch (i % 6) {
      case 0:  // one bit
        forged = right;
        forged[random() % forged.size()] ^= static_cast<char>(1 << (random() % 8));
        break;
      case 1:  // several bytes
        forged = right;
        for (int k = 0; k < 4; ++k)
          forged[random() % forged.size()] += static_cast<char>(1 + random() % 255);
        if (forged == right) continue;
        break;
      case 2:  // cut or grown
        forged = right;
        forged.resize(random() % (2 * right.size()));
        if (forged.size() == right.size()) continue;
        break;
      case 3:  // the head of one, the body of another
        forged = (random() % 2 == 0 ? before : after);
        break;
      case 4:  // made up
        forged.resize(kFrameHeadBytes + kSealBytes + random() % 100);
        for (char& c : forged) c = static_cast<char>(random());
        break;
      default:  // well made, under another key
        forged.clear();
        stranger.seal(blob(7, "what the member said"), forged);
    }
    num_opened += open.open(std::as_writable_bytes(std::span(forged))) ? 1 : 0;
  }
  EXPECT_EQ(num_opened, 0);
  EXPECT_TRUE(opens(open, right));
  EXPECT_TRUE(opens(open, after));
}

}  // namespace
}  // namespace braid::group
