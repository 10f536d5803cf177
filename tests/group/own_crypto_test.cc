#include "group/own_crypto.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <thread>

#include "base/check.h"
#include "group/frame_seal.h"
#include "group/proof.h"
#include "group/wire.h"

namespace braid::group {
namespace {

/// What a store does with who comes.
void greet() {
  const std::string key = key_to_rank("token", Session{});
  FrameSeal seal(key, FrameSeal::Use::kSeal), open(key, FrameSeal::Use::kOpen);
  std::string sealed;
  seal.seal(encode_ready(), sealed);
  BRAID_CHECK(open.open(std::as_writable_bytes(std::span(sealed))), "a frame is not its own");
}

// Threads of stores and rolls go on beside a process's exit handlers, of which one is libcrypto's.
TEST(OwnCryptoDeathTest, AThreadGreetsBehindLibcryptosEnd) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a program in which libcrypto begins here
  EXPECT_EXIT(
      {
        std::atexit([] { std::thread(greet).join(); });  // before libcrypto's, so it runs after it
        greet();
        std::exit(0);  // NOLINT(concurrency-mt-unsafe)
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace braid::group
