// Broadcasts among three ranks or more by one kernel on every rank (coll/relay/relay.cu).
#pragma once

#include <string_view>

#include <cstdint>

#include "base/status.h"
#include "comm/device/device.h"

namespace braid::coll::device {

/// What its kernels ask for in every rank's arena.
inline constexpr std::string_view kRelayArea = "relay";

/// What a rank's flags need: nothing for two ranks, where the root's copy engine is alone with its
/// receiver.
comm::AreaRequest relay_area(int num_ranks);

/// Whether broadcasts of this comm go that way: not where pushes are held to a rate.
bool can_relay(const comm::Device& device);

/// What this rank sends of a broadcast: the root everything once, the others their part to all other
/// others.
uint64_t relayed_bytes(const comm::Device& device, int root, uint64_t bytes);

/// What one rank knows of it.
struct RelayCall {
  int root = 0;
  uint64_t bytes = 0;
  sys::DevicePtr source = 0;     // the root's message; not looked at elsewhere
  comm::SymmetricAddress place;  // where it lands with the others: registered memory
  uint64_t place_bytes = 0;      // so far into the place
};
/// Behind a barrier of all ranks on `stream`; when the stream has come past it, all has landed on
/// this rank. Equal bytes and root on all ranks. Errors: driver.
Status run_relay(comm::Device& device, sys::Stream stream, const RelayCall& call);

/// Its kernel, loaded before any graph capture.
Result<sys::Kernel> relay_kernel(comm::Device& device);

}  // namespace braid::coll::device
