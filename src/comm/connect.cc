#include "comm/connect.h"

#include <algorithm>

#include "base/log.h"
#include "base/text.h"
#include "base/units.h"
#include "comm/link_spec.h"
#include "comm/node_group.h"
#include "fabric/discover.h"
#include "fabric/json.h"
#include "fabric/merge.h"
#include "group/agree.h"
#include "sys/host/api.h"
#include "transport/connect.h"
#include "transport/part.h"

namespace braid::comm {

namespace {

fabric::Link facts_of(const LinkSpec& spec) {
  if (spec.is_paced)
    return fabric::paced_link(spec.kind, spec.name, spec.pace.rate_gbps, spec.pace.latency_ns);
  return fabric::assumed_link(spec.kind, spec.name);
}

Result<std::unique_ptr<transport::Lane>> open_lane(Comm::State& state, const LinkSpec& spec,
                                                   Deadline deadline) {
  const auto slot_bytes = static_cast<uint32_t>(state.config.bytes("BRAID_SLOT"));
  const auto depth = static_cast<uint32_t>(state.config.integer("BRAID_DEPTH"));
  if (spec.kind == fabric::LinkKind::kRdma)
    return transport::connect_rdma(
        *state.group, {spec.name, spec.provider, spec.address, slot_bytes, depth}, deadline);
  const transport::HostLaneOptions options{slot_bytes, depth, state.config.text("BRAID_HOST_ID")};
  return spec.kind == fabric::LinkKind::kShm
             ? transport::connect_shm(*state.group, *state.doorbell, options, deadline)
             : transport::connect_staged(*state.group, *state.doorbell, options, deadline);
}

// A link in memory between the ranks of each node, under the comm's ranks. All nodes have it or
// none: a rank that could not open its end is known to every rank.
Result<std::unique_ptr<transport::Lane>> open_node_lane(Comm::State& state, const LinkSpec& spec,
                                                        Deadline deadline) {
  NodeGroup node(*state.group, state.nodes);
  const transport::Part part{state.nodes.rank_at(state.nodes.node_of(state.rank()), 0),
                             state.nodes.per_node, state.size()};
  const transport::HostLaneOptions options{
      static_cast<uint32_t>(state.config.bytes("BRAID_SLOT")),
      static_cast<uint32_t>(state.config.integer("BRAID_DEPTH")),
      state.config.text("BRAID_HOST_ID")};
  auto bells = transport::part_doorbell(*state.doorbell, part);
  auto lane = spec.kind == fabric::LinkKind::kShm
                  ? transport::connect_shm(node, *bells, options, deadline)
                  : transport::connect_staged(node, *bells, options, deadline);
  BRAID_RETURN_IF_ERROR(node.finish(deadline));
  BRAID_RETURN_IF_ERROR(group::agree(*state.group, "node link " + spec.name,
                                     lane.status().with_context(node.name()), "", deadline)
                            .status());
  state.node_bells.push_back(std::move(bells));
  return transport::part_lane(std::move(lane).value(), part);
}

bool is_of_node(const Comm::State& state, const LinkSpec& spec) {
  return state.nodes.has_stages() && spec.kind != fabric::LinkKind::kRdma;
}

// Of two ranks' options, a line each: those in which they differ, as the first one has them; all
// where only blanks do.
std::string differing(const std::string& options, const std::string& others) {
  const std::vector<std::string_view> first = split(options, '\n'), second = split(others, '\n');
  std::string found;
  for (size_t i = 0; i < first.size(); ++i) {
    if (first != second && i < second.size() && first[i] == second[i]) continue;
    if (!found.empty()) found += ' ';
    found += first[i];
  }
  return found;
}

// All ranks must have been started with the same wishes, or they would open different links and
// wait for each other.
Status check_same_wishes(Comm::State& state, Deadline deadline) {
  const Config& c = state.config;
  // Each rank has its own; their number says how many links plain "rdma" means.
  const size_t num_addresses = split(c.text("BRAID_RDMA_ADDRS"), ',').size();
  const std::string wish = fmt::format(
      "BRAID_LINKS={}\nBRAID_PACE={}\nBRAID_SLOT={}\nBRAID_DEPTH={}\nBRAID_CELL={}\n"
      "BRAID_RDMA_PROVIDER={}\nBRAID_RDMA_ADDRS of {} addresses\nBRAID_TUNE={}\n"
      "BRAID_TUNE_TIME={}\nBRAID_NODES={}",
      c.text("BRAID_LINKS"), c.text("BRAID_PACE"), c.bytes("BRAID_SLOT"), c.integer("BRAID_DEPTH"),
      c.bytes("BRAID_CELL"), c.text("BRAID_RDMA_PROVIDER"), num_addresses, c.text("BRAID_TUNE"),
      format_ns(c.duration_ns("BRAID_TUNE_TIME")), c.text("BRAID_NODES"));
  BRAID_ASSIGN_OR_RETURN(const std::vector<std::string> wishes,
                         state.group->exchange("options", wish, deadline));
  for (size_t r = 0; r < wishes.size(); ++r)
    if (wishes[r] != wish)
      return invalid_argument("options differ: rank {} has {}; rank {} has {}", state.rank(),
                              differing(wish, wishes[r]), r, differing(wishes[r], wish));
  return {};
}

}  // namespace

Status check_lane_options(const Config& config) {
  constexpr int64_t kMostWindowCalls = 1'000'000;
  const uint64_t slot = config.bytes("BRAID_SLOT");
  const int64_t depth = config.integer("BRAID_DEPTH");
  if (slot < 4_KiB || slot > 16_MiB)
    return invalid_argument("BRAID_SLOT is {}, expected 4 KiB to 16 MiB", format_bytes(slot));
  if (slot % 64 != 0)
    return invalid_argument("BRAID_SLOT is {} bytes, expected a multiple of 64", slot);
  const std::string& nodes = config.text("BRAID_NODES");
  if (nodes != "auto" && nodes != "flat" && nodes != "exact")
    return invalid_argument("BRAID_NODES is '{}', expected auto, flat or exact", nodes);
  if (depth < 2 || depth > kMaxDepthPieces)
    return invalid_argument("BRAID_DEPTH is {}, expected 2 to {}", depth, kMaxDepthPieces);
  const int64_t window = config.integer("BRAID_BALANCE_WINDOW");
  if (window < 1 || window > kMostWindowCalls)
    return invalid_argument("BRAID_BALANCE_WINDOW is {}, expected 1 to {}", window,
                            kMostWindowCalls);
  return {};
}

Status discover_fabric(Comm::State& state, Deadline deadline) {
  BRAID_ASSIGN_OR_RETURN(const fabric::Discovery here,
                         fabric::discover_here(state.config.text("BRAID_HOST_ID")));
  for (const std::string& gap : here.gaps) log::debug("comm", "discovery: {}", gap);
  BRAID_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                         state.group->exchange("nodes", fabric::to_json(here.node), deadline));
  std::vector<fabric::Node> nodes;
  for (size_t r = 0; r < texts.size(); ++r) {
    auto node = fabric::parse_node(texts[r]);
    if (!node.ok()) return node.status().with_context(fmt::format("facts of rank {}", r));
    nodes.push_back(std::move(node).value());
  }
  state.fabric = fabric::merge(nodes);
  state.nodes = state.config.text("BRAID_NODES") == "flat"
                    ? fabric::NodeMap{1, state.size()}
                    : fabric::node_map_of(state.fabric.node_of_rank);
  if (state.nodes.has_stages())
    for (int r = 0; r < state.size(); ++r)
      if (r != state.rank() && state.nodes.share_node(r, state.rank()))
        state.node_peers = state.node_peers.with(r);
  const auto ranks_here = std::count_if(nodes.begin(), nodes.end(), [&](const fabric::Node& node) {
    return node.host_id == here.node.host_id;
  });
  state.is_oversubscribed = ranks_here > sys::usable_cores();
  return {};
}

Status connect_links(Comm::State& state, Deadline deadline) {
  BRAID_RETURN_IF_ERROR(check_same_wishes(state, deadline));
  const Hosts hosts = fabric::is_one_host(state.fabric) ? Hosts::kOne
                      : state.nodes.has_stages()        ? Hosts::kStages
                                                        : Hosts::kSeveral;
  BRAID_ASSIGN_OR_RETURN(const LinkSpecs specs, link_specs(state.config, hosts));
  BRAID_ASSIGN_OR_RETURN(
      state.doorbell,
      transport::Doorbell::connect(*state.group, deadline, state.config.text("BRAID_HOST_ID")));
  std::vector<Status> not_opened;
  for (const LinkSpec& spec : specs.links) {
    const bool is_nodes_own = is_of_node(state, spec);
    auto lane =
        is_nodes_own ? open_node_lane(state, spec, deadline) : open_lane(state, spec, deadline);
    if (!lane.ok()) {
      const Status why = lane.status().with_context(fmt::format("link {}", spec.name));
      if (specs.are_named || lane.status().code() == Code::kTimeout || state.group->broken())
        return why;
      log::info("comm", "{}", why.to_string());
      not_opened.push_back(why);
      continue;
    }
    LinkState link;
    link.facts = facts_of(spec);
    link.lane = std::move(lane).value();
    if (spec.is_paced) link.lane = transport::paced(std::move(link.lane), spec.pace, state.size());
    if (is_nodes_own) link.reach = state.node_peers;
    (is_nodes_own ? state.node_link_facts : state.link_facts).push_back(link.facts);
    state.links.push_back(std::move(link));
  }
  state.fabric.links = state.link_facts;
  return state.link_facts.empty() ? no_link(state.size(), not_opened) : Status();
}

Status no_link(int num_ranks, const std::vector<Status>& why) {
  Code code = Code::kUnavailable;
  std::string words = fmt::format("the {} ranks share no link that can be opened", num_ranks);
  for (const Status& one : why) {
    if (one.code() == Code::kExhausted) code = Code::kExhausted;
    words += fmt::format("; {}", one.message());
  }
  return {code, words};
}

}  // namespace braid::comm
