#include "settings.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "base/text.h"
#include "base/units.h"
#include "engine/nics.h"

namespace braid::nixl {
namespace {

std::string environment(const char* name) {
  const char* value =
      secure_getenv(name);  // NOLINT(concurrency-mt-unsafe): read once, at the start
  return value == nullptr ? "" : value;
}

Result<int> number_of(const std::string& name, const std::string& text, int least, int most) {
  int value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, failed] = std::from_chars(text.data(), end, value);
  if (failed != std::errc() || stop != end || value < least || value > most)
    return invalid_argument("setting {}: asked for {} to {}, found '{}'", name, least, most,
                            printable(text));
  return value;
}

Result<bool> truth_of(const std::string& name, const std::string& text) {
  if (text == "yes" || text == "no") return text == "yes";
  return invalid_argument("setting {}: asked for yes or no, found '{}'", name, printable(text));
}

Result<std::vector<engine::NicRequest>> nics_of(const std::string& text,
                                                const engine::EngineOptions& options) {
  std::vector<engine::NicRequest> out;
  if (text == "none") return out;
  if (text == "auto") return engine::find_nics(options.hosts, options.uses_local);
  for (const std::string_view part : split(text, ',')) {
    BRAID_ASSIGN_OR_RETURN(engine::NicRequest nic, engine::parse_nic(part));
    out.push_back(std::move(nic));
  }
  return out;
}

}  // namespace

Settings default_settings() {
  return {{"hosts", ""},    {"port", "0"},   {"nics", "auto"},   {"device", "-1"},
          {"local", "yes"}, {"lease", "5s"}, {"timeout", "30s"}, {"cores", "auto"}};
}

Result<engine::EngineOptions> options_of(const std::string& agent, const Settings& given) {
  Settings all = default_settings();
  for (const auto& [name, text] : given) {
    const auto found = all.find(name);
    if (found == all.end())
      return invalid_argument(
          "setting '{}': asked for hosts, port, nics, device, local, lease, timeout or cores",
          printable(name));
    if (!text.empty()) found->second = text;
  }
  engine::EngineOptions out;
  out.name = agent;
  out.cores = all["cores"];
  if (out.cores != "auto" && out.cores != "off")
    return invalid_argument("setting cores: asked for auto or off, found '{}'",
                            printable(out.cores));
  out.host_id = environment("BRAID_HOST_ID");
  out.token = environment("BRAID_JOB_TOKEN");
  BRAID_ASSIGN_OR_RETURN(const int port, number_of("port", all["port"], 0, 65535));
  out.port = static_cast<uint16_t>(port);
  BRAID_ASSIGN_OR_RETURN(out.device, number_of("device", all["device"], -1, 1023));
  BRAID_ASSIGN_OR_RETURN(out.uses_local, truth_of("local", all["local"]));
  BRAID_ASSIGN_OR_RETURN(out.lease_ns, parse_duration_ns(all["lease"]));
  BRAID_ASSIGN_OR_RETURN(out.timeout_ns, parse_duration_ns(all["timeout"]));
  for (const std::string_view host : split(all["hosts"], ',')) out.hosts.emplace_back(host);
  if (out.hosts.empty()) {
    BRAID_ASSIGN_OR_RETURN(out.hosts, engine::find_hosts(!out.token.empty()));
  }
  BRAID_ASSIGN_OR_RETURN(out.nics, nics_of(all["nics"], out));
  return out;
}

}  // namespace braid::nixl
