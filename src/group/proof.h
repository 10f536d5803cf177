// How a rank and the store prove to each other that they hold the job's token, without sending it:
// each answers the other's fresh nonce with an HMAC-SHA256 under the token. The label in each proof
// keeps one side's answer from being played back as the other's; the nonces keep an old answer from
// being played back at all.
//
// What it does not do: frames after the welcome are neither signed nor encrypted. Who can alter
// packets between the ranks can alter the control traffic; keep the store on loopback or a network
// of your own.
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
};

Proof prove_rank(std::string_view token, const Session& session);
Proof prove_store(std::string_view token, const Session& session);
/// Signs a refusal that is final, so that a stranger on a candidate port cannot send a rank away.
Proof prove_refusal(std::string_view token, const Session& session, std::string_view text);
/// Takes the same time wherever the first difference lies.
bool is_equal(const Proof& a, const Proof& b);
Result<Nonce> fresh_nonce();

}  // namespace braid::group
