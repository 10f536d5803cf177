// How a rank and the store prove to each other that they hold the job's token, without sending it:
// each answers the other's fresh nonce with an HMAC-SHA256 under the token. The label in each proof
// keeps one side's answer from being played back as the other's; the nonces keep an old answer from
// being played back at all.
//
// From the same token and nonces both derive the keys under which all that follows is sealed
// (frame_seal.h). Who passes the greeting on between a rank and the store learns none of them.
//
// Addresses are bound to nothing: ranks may come through a port that is forwarded, and a relay can
// do no more than a cable.
#pragma once

#include <string>
#include <string_view>

#include "group/wire.h"

namespace braid::group {

/// What both proofs of one connection are bound to.
struct Session {
  Nonce store_nonce{};
  Nonce rank_nonce{};
  std::string job_id;
  uint32_t rank = 0;
  uint32_t size = 0;
  ProcessMark process{};
  Purpose purpose = Purpose::kJoin;
};

Proof prove_rank(std::string_view token, const Session& session);
Proof prove_store(std::string_view token, const Session& session);
/// Signs a refusal that is final, so that a stranger on a candidate port cannot send a rank away.
Proof prove_refusal(std::string_view token, const Session& session, RefusalKind kind,
                    std::string_view text);
/// The keys of what follows the welcome.
std::string key_to_store(std::string_view token, const Session& session);
std::string key_to_rank(std::string_view token, const Session& session);
/// Takes the same time wherever the first difference lies.
bool is_equal(const Proof& a, const Proof& b);
Result<Nonce> fresh_nonce();

}  // namespace braid::group
