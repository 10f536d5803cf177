#include "group/keyed_hash.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include "base/check.h"
#include "group/own_crypto.h"

namespace braid::group {

struct KeyedHash::State {
  EVP_MAC_CTX* context = nullptr;
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { EVP_MAC_CTX_free(context); }
};

KeyedHash::KeyedHash(std::string_view key) : state_(std::make_unique<State>()) {
  EVP_MAC* mac = EVP_MAC_fetch(own_crypto(), "HMAC", nullptr);
  BRAID_CHECK(mac != nullptr, "libcrypto has no HMAC");
  state_->context = EVP_MAC_CTX_new(mac);
  EVP_MAC_free(mac);  // the context keeps a reference
  char hash[] = "SHA256";
  const OSSL_PARAM parameters[] = {OSSL_PARAM_construct_utf8_string("digest", hash, 0),
                                   OSSL_PARAM_construct_end()};
  const int set = EVP_MAC_init(state_->context, reinterpret_cast<const unsigned char*>(key.data()),
                               key.size(), parameters);
  BRAID_CHECK(set == 1, "HMAC-SHA256 refused a key of {} bytes", key.size());
}
KeyedHash::~KeyedHash() = default;
KeyedHash::KeyedHash(KeyedHash&&) noexcept = default;
KeyedHash& KeyedHash::operator=(KeyedHash&&) noexcept = default;

Digest KeyedHash::digest(std::string_view head, std::string_view body) {
  Digest out{};
  size_t length = 0;
  // A null key starts anew with the one that is set.
  const bool made =
      EVP_MAC_init(state_->context, nullptr, 0, nullptr) == 1 &&
      EVP_MAC_update(state_->context, reinterpret_cast<const unsigned char*>(head.data()),
                     head.size()) == 1 &&
      EVP_MAC_update(state_->context, reinterpret_cast<const unsigned char*>(body.data()),
                     body.size()) == 1 &&
      EVP_MAC_final(state_->context, reinterpret_cast<unsigned char*>(out.data()), &length,
                    out.size()) == 1;
  BRAID_CHECK(made && length == out.size(), "HMAC-SHA256 gave {} bytes", length);
  return out;
}

Digest hmac(std::string_view key, std::string_view text) { return KeyedHash(key).digest(text, ""); }

std::string derive_key(std::string_view key, std::string_view label) {
  const Digest digest = hmac(key, label);
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

bool is_equal(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace braid::group
