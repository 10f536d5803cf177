#include "comm/link_spec.h"

#include <algorithm>

#include "base/text.h"
#include "base/units.h"

namespace braid::comm {

namespace {

Status add_rdma(std::vector<LinkSpec>& links, const std::string& provider,
                const std::string& address) {
  BRAID_RETURN_IF_ERROR(check_provider(provider));
  LinkSpec link;
  link.kind = fabric::LinkKind::kRdma;
  link.provider = provider;
  link.address = address;
  links.push_back(link);
  return {};
}

Status add_item(std::vector<LinkSpec>& links, const std::string& item, const Config& config) {
  if (item == "shm" || item == "staged") {
    LinkSpec link;
    link.name = item;
    link.kind = item == "shm" ? fabric::LinkKind::kShm : fabric::LinkKind::kStaged;
    links.push_back(link);
    return {};
  }
  if (item == "rdma") {
    for (const std::string_view address : split(config.text("BRAID_RDMA_ADDRS"), ','))
      BRAID_RETURN_IF_ERROR(
          add_rdma(links, config.text("BRAID_RDMA_PROVIDER"), std::string(address)));
    return {};
  }
  if (item.rfind("rdma:", 0) == 0) {
    const std::string rest = item.substr(5);
    const size_t colon = rest.find(':');
    const std::vector<std::string_view> addresses = split(config.text("BRAID_RDMA_ADDRS"), ',');
    const std::string fallback(addresses.empty() ? "127.0.0.1" : addresses.front());
    return add_rdma(links, rest.substr(0, colon),
                    colon == std::string::npos ? fallback : rest.substr(colon + 1));
  }
  return invalid_argument(
      "BRAID_LINKS: '{}' is not a link; expected shm, staged, rdma or rdma:PROVIDER:ADDRESS", item);
}

// Addresses differ between ranks, so an rdma link is named by its place in the list.
void name_rdma(std::vector<LinkSpec>& links) {
  const auto is_rdma = [](const LinkSpec& l) { return l.kind == fabric::LinkKind::kRdma; };
  const bool one = std::count_if(links.begin(), links.end(), is_rdma) == 1;
  int index = 0;
  for (LinkSpec& link : links)
    if (is_rdma(link)) link.name = one ? "rdma" : fmt::format("rdma{}", index++);
}

Status apply_pace(std::vector<LinkSpec>& links, const std::string& item) {
  const size_t equals = item.find('=');
  const std::string name = item.substr(0, equals);
  if (equals == std::string::npos)
    return invalid_argument("BRAID_PACE: '{}' has no '='; expected link=rate[@latency]", item);
  const std::string value = item.substr(equals + 1);
  const size_t at = value.find('@');
  transport::PaceOptions pace;
  BRAID_ASSIGN_OR_RETURN(pace.rate_gbps, parse_rate_gbps(value.substr(0, at)));
  if (at != std::string::npos) {
    BRAID_ASSIGN_OR_RETURN(pace.latency_ns, parse_duration_ns(value.substr(at + 1)));
  }
  bool found = false;
  for (LinkSpec& link : links) {
    if (link.name != name && !(name == "rdma" && link.kind == fabric::LinkKind::kRdma)) continue;
    link.is_paced = found = true;
    link.pace = pace;
  }
  if (!found) return invalid_argument("BRAID_PACE: '{}' names no link of BRAID_LINKS", name);
  return {};
}

Status check_names(const std::vector<LinkSpec>& links) {
  if (links.empty()) return invalid_argument("BRAID_LINKS: no link is named");
  if (links.size() > 16) return invalid_argument("BRAID_LINKS: {} links, at most 16", links.size());
  for (size_t i = 0; i < links.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (links[i].name == links[j].name)
        return invalid_argument("BRAID_LINKS: '{}' is named twice", links[i].name);
  return {};
}

}  // namespace

Status check_provider(const std::string& provider) {
  for (const std::string_view layer : split(provider, ';'))
    if (layer == "shm" || layer == "sm2")
      return invalid_argument(
          "BRAID_LINKS, BRAID_RDMA_PROVIDER: libfabric's provider '{}' is refused: a rank that is "
          "killed while it holds a lock in that provider's shared memory stops the others for "
          "ever; between ranks of one host use the link shm (BRAID_LINKS=shm), or rdma:tcp",
          provider);
  return {};
}

Result<LinkSpecs> link_specs(const Config& config, Hosts hosts) {
  LinkSpecs specs;
  const std::string& text = config.text("BRAID_LINKS");
  specs.are_named = text != "auto";
  // One host: memory is faster than a loopback network, and a third link would only take cores from
  // the others.
  const std::string wanted = specs.are_named            ? text
                             : hosts == Hosts::kOne     ? "shm,staged"
                             : hosts == Hosts::kSeveral ? "rdma"
                                                        : "rdma,shm,staged";
  for (const std::string_view item : split(wanted, ','))
    BRAID_RETURN_IF_ERROR(add_item(specs.links, std::string(item), config));
  name_rdma(specs.links);
  BRAID_RETURN_IF_ERROR(check_names(specs.links));
  for (const std::string_view item : split(config.text("BRAID_PACE"), ','))
    BRAID_RETURN_IF_ERROR(apply_pace(specs.links, std::string(item)));
  if (hosts == Hosts::kStages)
    std::stable_partition(specs.links.begin(), specs.links.end(), [](const LinkSpec& link) {
      return link.kind == fabric::LinkKind::kRdma;
    });
  return specs;
}

}  // namespace braid::comm
