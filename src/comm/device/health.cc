#include "comm/device/health.h"

#include <nlohmann/json.hpp>

namespace braid::comm {

namespace {

using Json = nlohmann::ordered_json;

Json balance_of(const ShareBalance* balance) {
  if (balance == nullptr) return {{"on", false}};
  const ShareBalance::Summary summary = balance->summary();
  Json shares = Json::array();
  for (const ShareTable::Moved& m : summary.moved)
    shares.push_back({{"op", plan::op_name(m.key.op)},
                      {"up_to_bytes", most_bytes_of(m.key.size_class)},
                      {"tuned", static_cast<double>(m.tuned) / plan::kWhole},
                      {"now", static_cast<double>(m.now) / plan::kWhole},
                      {"moves", m.moves}});
  return {{"on", true},
          {"calls", summary.calls},
          {"samples", summary.samples},
          {"windows", summary.windows},
          {"moves", summary.moves},
          {"trials", summary.trials},
          {"shares", std::move(shares)}};
}

Json link_of(const DeviceLink& link) {
  const DeviceLinkState state = link.state();
  Json shares = Json::object();
  for (const plan::Op op : plan::kAllOps)
    if (const double share = link.shares().tuned(op).long_share; share > 0)
      shares[plan::op_name(op)] = share;
  Json json{{"on", state.is_on}, {"how", state.how}};
  if (state.traffic) {
    json["sent_slots"] = state.traffic->sent_slots;
    json["received_slots"] = state.traffic->received_slots;
  }
  json["shares"] = std::move(shares);
  return json;
}

}  // namespace

Json gpu_health(const Device& device) {
  const Status fault = device.faults().status();
  Json json{{"ordinal", device.ordinal()}, {"ok", fault.ok()}, {"why", fault.to_string()}};
  for (const auto& link : device.links().all()) json[link->facts().name] = link_of(*link);
  json["balance"] = balance_of(device.links().main().balance());
  return json;
}

Json json_of(const fabric::Link& facts) {
  return {{"name", facts.name},
          {"kind", fabric::link_kind_name(facts.kind)},
          {"rate_gbps", facts.rate_gbps},
          {"latency_ns", facts.latency_ns},
          {"source", fabric::source_name(facts.source)},
          {"can_multicast", facts.can_multicast}};
}

Json gpu_links(const Device& device) {
  Json all = Json::array();
  for (const auto& link : device.links().all()) {
    const DeviceLinkState state = link->state();
    Json one = json_of(link->facts());
    one["state"] = state.is_on ? "up" : "off";
    one["how"] = state.how;
    all.push_back(std::move(one));
  }
  return all;
}

}  // namespace braid::comm
