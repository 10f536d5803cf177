#include "group/proof.h"

#include <gtest/gtest.h>

#include <set>

namespace braid::group {
namespace {

Session session_of(int seed) {
  Session session;
  session.store_nonce.fill(static_cast<std::byte>(seed));
  session.rank_nonce.fill(static_cast<std::byte>(seed + 1));
  session.job_id = "job";
  session.rank = 1;
  session.size = 4;
  return session;
}

TEST(Proof, IsTheSameForTheSameSession) {
  EXPECT_TRUE(is_equal(prove_rank("token", session_of(1)), prove_rank("token", session_of(1))));
}

// Whatever differs, the proof differs: nothing can be played back in another place.
TEST(Proof, DependsOnEverything) {
  const Session base = session_of(1);
  std::set<Proof> proofs{prove_rank("token", base),
                         prove_store("token", base),
                         prove_refusal("token", base, RefusalKind::kDisagreement, ""),
                         prove_refusal("token", base, RefusalKind::kDisagreement, "why"),
                         prove_refusal("token", base, RefusalKind::kOwn, "why"),
                         prove_rank("Token", base),
                         prove_rank("", base)};
  size_t expected = 7;
  const auto add = [&](auto change) {
    Session other = base;
    change(other);
    proofs.insert(prove_rank("token", other));
    EXPECT_EQ(proofs.size(), ++expected);
  };
  add([](Session& s) { s.store_nonce[31] = std::byte{0}; });
  add([](Session& s) { s.rank_nonce[0] = std::byte{0}; });
  add([](Session& s) { std::swap(s.store_nonce, s.rank_nonce); });
  add([](Session& s) { s.job_id = "jo"; });
  add([](Session& s) { s.rank = 2; });
  add([](Session& s) { s.size = 5; });
  add([](Session& s) { std::swap(s.rank, s.size); });
  add([](Session& s) { s.process[3] = std::byte{1}; });
  add([](Session& s) { s.purpose = Purpose::kServe; });
}

// Neither direction's key is the other's, or a proof that went over the wire.
TEST(Proof, KeysAreOfOneDirectionAndOneSession) {
  const Session one = session_of(1), other = session_of(2);
  std::set<std::string> all{key_to_store("token", one), key_to_rank("token", one),
                            key_to_store("token", other), key_to_store("Token", one)};
  for (const Proof& proof : {prove_rank("token", one), prove_store("token", one)})
    all.insert(std::string(reinterpret_cast<const char*>(proof.data()), proof.size()));
  EXPECT_EQ(all.size(), 6u);
}

// Pins the primitive and the message to a value computed apart from this code:
// python3 -c 'import hmac; hmac.new(b"key", b"\x0a\0\0\0braid rank" + bytes(64) + bytes(4) +
// bytes(8) + bytes(16) + b"\1", "sha256")'.
TEST(Proof, IsHmacSha256) {
  const Proof proof = prove_rank("key", Session{});
  std::string hex;
  for (const std::byte b : proof) hex += fmt::format("{:02x}", static_cast<unsigned>(b));
  EXPECT_EQ(hex, "36cee724fa072d68b174e8f72b0283167a4b99d2c78fcbdb50272d528d25e2ca");
}

TEST(Proof, ComparisonSeesEveryByte) {
  const Proof a = prove_rank("token", session_of(1));
  for (size_t i = 0; i < a.size(); ++i) {
    Proof b = a;
    b[i] ^= std::byte{0x10};
    EXPECT_FALSE(is_equal(a, b)) << i;
  }
}

TEST(Proof, NoncesNeverRepeat) {
  std::set<Nonce> seen;
  for (int i = 0; i < 100; ++i) seen.insert(fresh_nonce().value());
  EXPECT_EQ(seen.size(), 100u);
}

}  // namespace
}  // namespace braid::group
