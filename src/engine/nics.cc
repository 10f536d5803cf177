#include "engine/nics.h"

#include <algorithm>
#include <array>
#include <set>

#include "sys/verbs/api.h"

namespace braid::engine {
namespace {

// Best first: efa by libfabric, verbs by libibverbs, and by libfabric where only that has it.
constexpr std::array<const char*, 3> kRdmaProviders = {"efa", "verbs", "verbs;ofi_rxm"};

Result<sys::FabricLibrary*> library_of(const std::string& provider) {
  return provider == "verbs" ? sys::real_verbs() : sys::real_fabric();
}

bool is_loopback(const std::string& address) {
  return address == "::1" || address.starts_with("127.");
}

// libfabric shows a device once for each of its addresses, and takes verbs' by address alone.
std::vector<NicRequest> one_per_device(std::span<const sys::FabricInterface> interfaces,
                                       const std::string& provider) {
  const bool goes_by_name = provider != "verbs;ofi_rxm";
  std::vector<NicRequest> out;
  std::set<std::string> devices;
  for (const sys::FabricInterface& found : interfaces) {
    const std::string& address = goes_by_name ? found.name : found.address;
    const bool is_usable = found.provider == provider && !address.empty() && !is_loopback(address);
    if (!is_usable || out.size() == kMostChosenNics || !devices.insert(found.name).second) continue;
    out.push_back({provider, address, nullptr});
  }
  return out;
}

// The addresses of a host's name, or of all interfaces for a wildcard.
Status add_addresses(const std::string& host, NicFacts& facts) {
  BRAID_ASSIGN_OR_RETURN(const auto found, sys::resolve(host, 0));
  const sys::Endpoint& endpoint = found.front();
  facts.are_loopback &= endpoint.is_loopback();
  if (!endpoint.is_wildcard()) {
    facts.addresses.push_back(endpoint.host());
    return {};
  }
  BRAID_ASSIGN_OR_RETURN(const auto interfaces, sys::list_interfaces());
  for (const sys::Interface& interface : interfaces)
    if (!interface.is_loopback && interface.address.family() == endpoint.family())
      facts.addresses.push_back(interface.address.host());
  return {};
}

}  // namespace

std::vector<NicRequest> choose_nics(const NicFacts& facts) {
  for (const char* provider : kRdmaProviders) {
    if (facts.are_loopback) break;
    if (auto found = one_per_device(facts.interfaces, provider); !found.empty()) return found;
  }
  std::vector<NicRequest> out;
  std::set<std::string> seen;
  for (const std::string& address : facts.addresses)
    if (out.size() < kMostChosenNics && seen.insert(address).second)
      out.push_back({facts.tcp_provider, address, nullptr});
  return out;
}

Result<std::vector<NicRequest>> find_nics(std::span<const std::string> hosts, bool uses_local) {
  NicFacts facts;
  facts.are_loopback = true;
  for (const std::string& host : hosts) BRAID_RETURN_IF_ERROR(add_addresses(host, facts));
  for (const char* provider : kRdmaProviders) {
    if (facts.are_loopback) break;
    // A library or a provider that is not there answers so, which here is a fact like others.
    Result<sys::FabricLibrary*> library = library_of(provider);
    if (!library.ok()) continue;
    auto found = (*library)->interfaces(provider);
    if (!found.ok()) continue;
    for (sys::FabricInterface& interface : *found) {
      interface.provider = provider;  // as it is asked for, whatever it calls itself
      facts.interfaces.push_back(std::move(interface));
    }
  }
  // libfabric 1.17 has its later tcp provider as `net` already: far less memory for each
  // rail, and faster pages from 64 KiB on (records/engine_cpu.json).
  Result<sys::FabricLibrary*> fabric = sys::real_fabric();
  if (fabric.ok() && (*fabric)->interfaces("net").ok()) facts.tcp_provider = "net";
  std::vector<NicRequest> chosen = choose_nics(facts);
  const bool has_tcp = !chosen.empty() && chosen.front().provider == facts.tcp_provider;
  const Status missing = has_tcp ? sys::real_fabric().status() : Status();
  if (missing.ok()) return chosen;
  if (facts.are_loopback && uses_local) return std::vector<NicRequest>{};
  return missing.with_context("NICs of an engine that peers of other hosts reach");
}

Result<NicRequest> parse_nic(std::string_view text) {
  const size_t colon = text.find(':');
  const std::string_view provider = text.substr(0, colon);
  if (provider.empty())
    return invalid_argument("NIC '{}': asked for PROVIDER or PROVIDER:ADDRESS, as tcp:127.0.0.1",
                            text);
  const bool has_address = colon != std::string_view::npos;
  return NicRequest{std::string(provider), has_address ? std::string(text.substr(colon + 1)) : "",
                    nullptr};
}

std::vector<std::string> choose_hosts(bool has_token, std::span<const sys::Interface> interfaces) {
  const auto reaches_others = [](const sys::Interface& interface) {
    return !interface.is_loopback && interface.address.family() == AF_INET;
  };
  const bool is_reached = std::any_of(interfaces.begin(), interfaces.end(), reaches_others);
  return {has_token && is_reached ? "0.0.0.0" : "127.0.0.1"};
}

Result<std::vector<std::string>> find_hosts(bool has_token) {
  BRAID_ASSIGN_OR_RETURN(const auto interfaces, sys::list_interfaces());
  return choose_hosts(has_token, interfaces);
}

}  // namespace braid::engine
