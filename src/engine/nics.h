// Which NICs an engine opens, and where its control port is, when nobody says.
//
// A NIC of RDMA reaches the peers of a fabric; several are used at once. Where there is none, bytes
// go over TCP by the addresses of the control port. Loopback reaches this host alone, and NICs of
// RDMA would only make its copies slower.
//
// Threads: any.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/regions.h"
#include "sys/net/api.h"

namespace braid::engine {

inline constexpr size_t kMostChosenNics = 8;

/// The facts by which choose_nics() decides.
struct NicFacts {
  std::vector<sys::FabricInterface> interfaces;  // of all providers of RDMA
  std::vector<std::string> addresses;            // of the control port, without wildcards
  bool are_loopback = false;                     // all of these
  std::string tcp_provider = "tcp";              // of libfabric, for these addresses
};

/// efa where there is any, else verbs (by libibverbs, else by libfabric), else tcp by `addresses`:
/// one for each device, kMostChosenNics at most.
std::vector<NicRequest> choose_nics(const NicFacts& facts);
/// The same by this machine's facts. No NIC at all for loopback without libfabric when
/// `uses_local`: peers of this host are reached without one.
Result<std::vector<NicRequest>> find_nics(std::span<const std::string> hosts, bool uses_local);
/// "tcp:127.0.0.1", "verbs:mlx5_0", "shm": a provider, then where. invalid_argument: no provider.
Result<NicRequest> parse_nic(std::string_view text);

/// Where to listen: with a token at all addresses, since only its holders may connect; else for
/// this host alone.
std::vector<std::string> choose_hosts(bool has_token, std::span<const sys::Interface> interfaces);
Result<std::vector<std::string>> find_hosts(bool has_token);

}  // namespace braid::engine
