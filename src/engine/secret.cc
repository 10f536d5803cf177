#include "engine/secret.h"

#include <cstring>

#include "group/keyed_hash.h"

namespace braid::engine {

Secret::Secret(const std::string& token)
    : handshake_key_(group::derive_key(token, "braid engine handshake")),
      descriptor_key_(group::derive_key(token, "braid engine descriptor")) {
  const std::string mark = group::derive_key(token, "braid engine job");
  std::memcpy(job_.data(), mark.data(), job_.size());
}

}  // namespace braid::engine
