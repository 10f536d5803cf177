#include "bindings/nccl/core/nodes/own_facts.h"

#include <cstdlib>
#include <string_view>

#include "bindings/nccl/core/nodes/verdict.h"
#include "group/keyed_hash.h"
#include "sys/host/api.h"

namespace braid::nccl {

Result<std::string> hashed_host(const std::string& host_id) {
  BRAID_ASSIGN_OR_RETURN(const std::string host, sys::host_id(host_id));
  const group::Digest digest = group::hmac("braid nccl host", host);
  std::string hex;
  for (size_t i = 0; i < kHostDigits / 2; ++i)
    hex += fmt::format("{:02x}", static_cast<unsigned>(digest[i]));
  return hex;
}

std::string unfit_by_environment() {
  const char* const collnet =
      secure_getenv("NCCL_COLLNET_ENABLE");  // NOLINT(concurrency-mt-unsafe)
  if (collnet != nullptr && std::string_view(collnet) != "0")
    return "NCCL_COLLNET_ENABLE is set: NCCL adds in the network's switches";
  return "";
}

}  // namespace braid::nccl
