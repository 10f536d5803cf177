#include "comm/device/links/nvlinks.h"

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

/// What is missing; empty: nothing.
std::string why_not(sys::Cuda& cuda, int ordinal, const std::vector<std::string>& places) {
  for (const std::string& place : places)
    if (const Status link = check_link(cuda, ordinal, place); !link.ok()) return link.message();
  return {};
}

/// A rank's answer: the number of its multiprocessors, and what is missing behind a blank.
struct Answer {
  int num_sms = 0;
  std::string why_not;
};
Result<Answer> read_answer(const std::string& text, size_t rank) {
  Answer answer;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, answer.num_sms);
  if (read.ec != std::errc() || read.ptr == end || *read.ptr != ' ')
    return internal_error("gpu nvlinks: rank {} said '{}'", rank, text);
  answer.why_not.assign(read.ptr + 1, end);
  return answer;
}

}  // namespace

Result<Nvlinks> find_nvlinks(group::Group& group, sys::Cuda& cuda, int ordinal, Deadline deadline) {
  BRAID_ASSIGN_OR_RETURN(const sys::DeviceFacts facts, cuda.device(ordinal));
  BRAID_ASSIGN_OR_RETURN(const auto places,
                         group.exchange("gpu places", facts.pci_address, deadline));
  const std::string own = fmt::format("{} {}", facts.num_sms, why_not(cuda, ordinal, places));
  BRAID_ASSIGN_OR_RETURN(const auto answers, group.exchange("gpu nvlinks", own, deadline));
  Nvlinks found{{}, std::numeric_limits<int>::max()};
  found.are_shared = std::set(places.begin(), places.end()).size() < places.size();
  for (size_t r = 0; r < answers.size(); ++r) {
    BRAID_ASSIGN_OR_RETURN(const Answer answer, read_answer(answers[r], r));
    found.least_sms = std::min(found.least_sms, answer.num_sms);
    if (found.why_not.empty() && !answer.why_not.empty())
      found.why_not = fmt::format("rank {}: {}", r, answer.why_not);
  }
  return found;
}

}  // namespace braid::comm
