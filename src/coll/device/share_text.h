// A link's shares as the text that is kept of them. Pure functions, so that a fuzzer can call them:
// the file may be anybody's.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "comm/device/shares/tuned_share.h"
#include "plan/plan.h"

namespace braid::coll::device {

inline constexpr const char* kSharesFormat = "braid gpu tuning";

struct LinkShares {
  std::array<comm::TunedShare, plan::kNumOps> of_op{};
  int64_t ended_ns = 0;  // measuring was ended by this time; 0: it was not
};

std::string shares_to_json(const std::string& key, const LinkShares& shares);
/// invalid_argument, which says what was expected, for a text that is damaged or of another key.
/// An empty key: of any.
Result<LinkShares> parse_shares(std::string_view text, const std::string& key);

}  // namespace braid::coll::device
