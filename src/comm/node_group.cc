#include "comm/node_group.h"

#include <algorithm>

namespace braid::comm {

namespace {

// With no line's end, as behind every topic, so it is no blob of an exchange.
constexpr std::string_view kThrough = "through";

}  // namespace

std::string NodeGroup::name() const {
  return fmt::format("node {} (from rank {} on)", map_.node_of(whole_.rank()), first());
}

// The topic travels in the blob: another node may be at another one, or have given up.
Result<std::vector<std::string>> NodeGroup::exchange(std::string_view topic, std::string_view blob,
                                                     Deadline deadline) {
  BRAID_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                         whole_.exchange("nodes", fmt::format("{}\n{}", topic, blob), deadline));
  std::vector<std::string> ours;
  for (int r = first(); r < first() + size(); ++r) {
    const std::string& text = all[static_cast<size_t>(r)];
    const size_t end = text.find('\n');
    if (text.substr(0, end) != topic)
      return unavailable("{}: rank {} is at '{}'", topic, r - first(), text.substr(0, end));
    ours.push_back(text.substr(end + 1));
  }
  return ours;
}

Status NodeGroup::finish(Deadline deadline) {
  while (true) {
    BRAID_ASSIGN_OR_RETURN(const auto all, whole_.exchange("nodes", kThrough, deadline));
    if (std::ranges::all_of(all, [](const auto& said) { return said == kThrough; })) return {};
  }
}

}  // namespace braid::comm
