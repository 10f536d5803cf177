#include "bindings/nccl/core/settings.h"

#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"

namespace braid::nccl {

namespace {

/// Everything that decides what is taken over and how a call goes; not where caches and logs are.
bool must_agree(std::string_view option) {
  if (option == "BRAID_NCCL_REAL") return false;
  return option.starts_with("BRAID_NCCL") || option.starts_with("BRAID_GPU") ||
         option == "BRAID_TUNE" || option == "BRAID_TUNE_TIME" || option == "BRAID_LINK_CAP";
}

}  // namespace

uint64_t fingerprint_of_settings(uint64_t of_caller) {
  uint64_t hash = 0xcbf29ce484222325 ^ of_caller;  // FNV-1a
  for (const Option& option : all_options()) {
    if (!must_agree(option.name)) continue;
    const char* value = secure_getenv(option.name);  // NOLINT(concurrency-mt-unsafe)
    const bool is_set = value && *value != '\0';
    for (const char* c = is_set ? value : option.default_value; *c != '\0'; ++c)
      hash = (hash ^ static_cast<unsigned char>(*c)) * 0x100000001b3;
    hash = (hash ^ 0xff) * 0x100000001b3;  // between two values
  }
  return hash;
}

Result<Config> config_for_calls() {
  std::vector<std::string> warnings;
  BRAID_ASSIGN_OR_RETURN(Config config, Config::from_environment(&warnings));
  for (const std::string& warning : warnings) log::debug("nccl", "{}", warning);
  const int64_t timeout_ns = config.duration_ns("BRAID_NCCL_TIMEOUT");
  BRAID_RETURN_IF_ERROR(config.set("BRAID_TIMEOUT", fmt::format("{}ns", timeout_ns)));
  BRAID_RETURN_IF_ERROR(config.set("BRAID_BIND", "127.0.0.1"));
  BRAID_RETURN_IF_ERROR(config.set("BRAID_LINKS", "shm"));
  BRAID_RETURN_IF_ERROR(config.set("BRAID_BALANCE", "off"));
  return config;
}

}  // namespace braid::nccl
