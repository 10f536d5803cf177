#include "bindings/nccl/core/nodes/verdict.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "base/text.h"

namespace braid::nccl {

namespace {

constexpr int kMostNodes = 16, kMostPerNode = 16;
constexpr size_t kMostUnfit = 256;

template <typename Number>
bool read(std::string_view text, Number& number, int base) {
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number, base);
  return result.ec == std::errc() && result.ptr == text.data() + text.size();
}

/// By the first rank of each.
std::vector<int> nodes_of(std::span<const RankFacts> ranks) {
  std::vector<int> nodes;
  std::vector<std::string_view> hosts;
  for (const RankFacts& rank : ranks) {
    const auto found = std::find(hosts.begin(), hosts.end(), rank.host);
    nodes.push_back(static_cast<int>(found - hosts.begin()));
    if (found == hosts.end()) hosts.push_back(rank.host);
  }
  return nodes;
}

Status check_alike(std::span<const RankFacts> ranks, bool may_share_process) {
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (!ranks[i].unfit.empty()) return unsupported("rank {}: {}", i, ranks[i].unfit);
    if (ranks[i].settings != ranks[0].settings)
      return unsupported("ranks have different BRAID_ settings");
    if (ranks[i].nccl_version != ranks[0].nccl_version)
      return unsupported("rank {} has NCCL {}, rank 0 {}", i, ranks[i].nccl_version,
                         ranks[0].nccl_version);
    for (size_t j = 0; j < i && !may_share_process; ++j)
      if (ranks[i].process == ranks[j].process)
        return unsupported("one process has several of its GPUs, and BRAID_NCCL_SHARED is off");
  }
  return {};
}

}  // namespace

std::string encode(const RankFacts& facts) {
  return fmt::format("{} {:x} {:x} {} {}", facts.host, facts.process, facts.settings,
                     facts.nccl_version, facts.unfit.substr(0, kMostUnfit));
}

Result<RankFacts> decode_facts(std::string_view words) {
  RankFacts facts;
  std::string_view parts[4];
  for (std::string_view& part : parts) {
    const size_t space = words.find(' ');
    if (space == std::string_view::npos) return invalid_argument("a rank's facts are cut off");
    part = words.substr(0, space);
    words.remove_prefix(space + 1);
  }
  const bool is_good = parts[0].size() == kHostDigits && words.size() <= kMostUnfit &&
                       read(parts[1], facts.process, 16) && read(parts[2], facts.settings, 16) &&
                       read(parts[3], facts.nccl_version, 10);
  if (!is_good) return invalid_argument("a rank's facts are no facts");
  facts.host = parts[0];
  facts.unfit = printable(words);
  return facts;
}

Result<fabric::NodeMap> judge_nodes(std::span<const RankFacts> ranks, bool may_share_process) {
  BRAID_RETURN_IF_ERROR(check_alike(ranks, may_share_process));
  const std::vector<int> nodes = nodes_of(ranks);
  const int num_nodes = nodes.empty() ? 0 : 1 + *std::max_element(nodes.begin(), nodes.end());
  const auto size = static_cast<int>(nodes.size());
  if (num_nodes < 2) return unsupported("all of its {} ranks are on one host", size);
  if (num_nodes == size) return unsupported("it has one rank on each of {} nodes", num_nodes);
  const fabric::NodeMap map = fabric::node_map_of(nodes);
  if (!map.has_stages())
    return unsupported(
        "its {} ranks do not lie on {} nodes as many on each, one node's before the next one's",
        size, num_nodes);
  if (map.num_nodes > kMostNodes || map.per_node > kMostPerNode)
    return unsupported("{} nodes of {} ranks; at most {} of {} are taken over", map.num_nodes,
                       map.per_node, kMostNodes, kMostPerNode);
  return map;
}

}  // namespace braid::nccl
