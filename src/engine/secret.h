// What the engines of one job share: a secret, and the keys that follow from it. Whoever holds it
// may connect, and may make descriptors; nobody else can do either.
#pragma once

#include <array>
#include <cstddef>
#include <string>

namespace braid::engine {

using JobMark = std::array<char, 8>;

class Secret {
 public:
  explicit Secret(const std::string& token);

  /// Tells jobs apart in messages and tells nothing about the secret.
  const JobMark& job() const { return job_; }
  const std::string& handshake_key() const { return handshake_key_; }
  const std::string& descriptor_key() const { return descriptor_key_; }

 private:
  std::string handshake_key_, descriptor_key_;
  JobMark job_{};
};

}  // namespace braid::engine
