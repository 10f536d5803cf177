#include "comm/device/nvlinks.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <set>

namespace braid::comm {

namespace {

/// The device of this process that lies there.
Result<int> device_at(sys::Cuda& cuda, const std::string& pci_address) {
  BRAID_ASSIGN_OR_RETURN(const int num_devices, cuda.num_devices());
  for (int ordinal = 0; ordinal < num_devices; ++ordinal) {
    BRAID_ASSIGN_OR_RETURN(const sys::DeviceFacts facts, cuda.device(ordinal));
    if (facts.pci_address == pci_address) return ordinal;
  }
  return unavailable("the gpu at {} is not among this process's {}", pci_address, num_devices);
}

/// ok, or what keeps this rank's GPU from the one at `pci_address`.
Status check_link(sys::Cuda& cuda, int ordinal, const std::string& pci_address) {
  BRAID_ASSIGN_OR_RETURN(const int peer, device_at(cuda, pci_address));
  BRAID_ASSIGN_OR_RETURN(const bool has, cuda.has_native_atomics(ordinal, peer));
  return has ? Status() : unavailable("no NVLink to the gpu at {}", pci_address);
}

/// A rank's answer: the number of its multiprocessors, or what is missing.
std::string answer_of(sys::Cuda& cuda, int ordinal, int num_sms,
                      const std::vector<std::string>& places) {
  for (const std::string& place : places)
    if (const Status link = check_link(cuda, ordinal, place); !link.ok()) return link.message();
  return std::to_string(num_sms);
}

}  // namespace

Result<Nvlinks> find_nvlinks(group::Group& group, sys::Cuda& cuda, int ordinal, Deadline deadline) {
  BRAID_ASSIGN_OR_RETURN(const sys::DeviceFacts facts, cuda.device(ordinal));
  BRAID_ASSIGN_OR_RETURN(const auto places,
                         group.exchange("gpu places", facts.pci_address, deadline));
  const std::string own = answer_of(cuda, ordinal, facts.num_sms, places);
  BRAID_ASSIGN_OR_RETURN(const auto answers, group.exchange("gpu nvlinks", own, deadline));
  Nvlinks found{{}, std::numeric_limits<int>::max()};
  found.are_shared = std::set(places.begin(), places.end()).size() < places.size();
  for (size_t r = 0; r < answers.size(); ++r) {
    int num_sms = 0;
    const std::string& answer = answers[r];
    const char* const end = answer.data() + answer.size();
    if (std::from_chars(answer.data(), end, num_sms).ptr == end) {
      found.least_sms = std::min(found.least_sms, num_sms);
    } else if (found.why_not.empty()) {
      found.why_not = fmt::format("rank {}: {}", r, answer);
    }
  }
  return found;
}

}  // namespace braid::comm
