#include "sys/net/own_address.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "sys/net/api.h"

namespace braid::sys {
namespace {

bool is_own(const std::string& address) {
  const auto interfaces = list_interfaces();
  return interfaces.ok() &&
         std::any_of(interfaces->begin(), interfaces->end(),
                     [&](const Interface& each) { return each.address.host() == address; });
}

// Loopback leads to nobody else: the way to everywhere counts, where there is one.
TEST(OwnAddress, IsOneThatOthersCanReach) {
  for (const char* const host : {"127.0.0.1", "localhost", "192.0.2.7"}) {
    const std::string address = own_address_towards(host);
    EXPECT_TRUE(is_own(address)) << host << ": " << address;
    EXPECT_EQ(address, own_address_towards("192.0.2.1")) << host;
  }
}

TEST(OwnAddress, AHostThatHasNoNameIsNoError) {
  EXPECT_TRUE(is_own(own_address_towards("no-such-host.invalid")));
}

}  // namespace
}  // namespace braid::sys
