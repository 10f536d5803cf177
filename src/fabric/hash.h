// The fabric's fingerprint: the key of the tuning cache. Two fabrics have the same one when a
// tuning of the first is worth using on the second.
#pragma once

#include <string>

#include "fabric/types.h"

namespace braid::fabric {

/// 16 hex digits. Counts: devices by kind and model, cores, rates within a fifth, links, where the
/// ranks are. Does not count: names and ids of hosts, addresses, memory sizes, rates that were
/// measured, links' order of discovery on PCI.
std::string fabric_hash(const Fabric& fabric);

/// 16 hex digits of a text, the same in every build.
std::string text_hash(const std::string& text);

/// The text under the hash, for people who wonder why a cache was not used.
std::string fingerprint(const Fabric& fabric);

}  // namespace braid::fabric
