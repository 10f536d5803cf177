// Keys that cannot be guessed.
#include <sys/random.h>

#include <cerrno>

#include "base/check.h"
#include "sys/fabric/api.h"

namespace braid::sys {

uint64_t random_key() {
  uint64_t key = 0;
  while (key == 0) {
    // Up to 256 bytes never come short once seeded.
    const ssize_t got = getrandom(&key, sizeof key, 0);
    BRAID_CHECK(got == sizeof key || errno == EINTR, "getrandom answered {}, errno {}", got, errno);
    key &= ~(uint64_t{1} << 63);
  }
  return key;
}

}  // namespace braid::sys
