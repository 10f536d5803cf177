#include "group/proof.h"

#include <openssl/crypto.h>

#include "group/keyed_hash.h"
#include "sys/host/api.h"

namespace braid::group {

namespace {

void append(std::string& to, std::span<const std::byte> bytes) {
  to.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void append(std::string& to, uint32_t value) {
  for (int i = 0; i < 4; ++i) to.push_back(static_cast<char>(value >> (8 * i)));
}

// Every part of variable length follows its length: no two different sessions make the same text.
Proof prove(std::string_view label, std::string_view token, const Session& session,
            std::string_view text) {
  std::string message;
  append(message, static_cast<uint32_t>(label.size()));
  message += label;
  append(message, session.store_nonce);
  append(message, session.rank_nonce);
  append(message, static_cast<uint32_t>(session.job_id.size()));
  message += session.job_id;
  append(message, session.rank);
  append(message, session.size);
  append(message, session.process);
  message.push_back(static_cast<char>(session.purpose));
  message += text;
  return hmac(token, message);
}

std::string as_key(const Proof& proof) {
  return {reinterpret_cast<const char*>(proof.data()), proof.size()};
}

}  // namespace

Proof prove_rank(std::string_view token, const Session& session) {
  return prove("braid rank", token, session, "");
}
Proof prove_store(std::string_view token, const Session& session) {
  return prove("braid store", token, session, "");
}
Proof prove_refusal(std::string_view token, const Session& session, RefusalKind kind,
                    std::string_view text) {
  std::string all(1, static_cast<char>(kind));
  return prove("braid refusal", token, session, all.append(text));
}
std::string key_to_store(std::string_view token, const Session& session) {
  return as_key(prove("braid frames to the store", token, session, ""));
}
std::string key_to_rank(std::string_view token, const Session& session) {
  return as_key(prove("braid frames to a rank", token, session, ""));
}

bool is_equal(const Proof& a, const Proof& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Result<Nonce> fresh_nonce() {
  Nonce nonce{};
  BRAID_RETURN_IF_ERROR(sys::random_bytes(nonce));
  return nonce;
}

}  // namespace braid::group
