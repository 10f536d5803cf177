#include "comm/device/health.h"

#include <nlohmann/json.hpp>

namespace braid::comm {

namespace {

using Json = nlohmann::ordered_json;

Json balance_of(const Device& device) {
  const auto summary = device.balance_summary();
  if (!summary) return {{"on", false}};
  Json shares = Json::array();
  for (const ShareTable::Moved& m : summary->moved)
    shares.push_back({{"op", plan::op_name(m.key.op)},
                      {"up_to_bytes", most_bytes_of(m.key.size_class)},
                      {"tuned", static_cast<double>(m.tuned) / plan::kWhole},
                      {"now", static_cast<double>(m.now) / plan::kWhole},
                      {"moves", m.moves}});
  return {{"on", true},
          {"calls", summary->calls},
          {"samples", summary->samples},
          {"windows", summary->windows},
          {"moves", summary->moves},
          {"trials", summary->trials},
          {"shares", std::move(shares)}};
}

Json rdma_of(const Device& device) {
  const Rdma& rdma = device.rdma();
  const auto traffic = rdma.traffic();
  Json shares = Json::object();
  for (const plan::Op op : plan::kAllOps)
    if (rdma.share(op) > 0) shares[plan::op_name(op)] = rdma.share(op);
  return {{"on", rdma.is_on()},
          {"how", rdma.words()},
          {"sent_slots", traffic.sent_slots},
          {"received_slots", traffic.received_slots},
          {"shares", std::move(shares)}};
}

}  // namespace

Json gpu_health(const Device& device) {
  const Status trouble = device.status();
  return {{"ordinal", device.ordinal()},
          {"ok", trouble.ok()},
          {"why", trouble.to_string()},
          {"rdma", rdma_of(device)},
          {"balance", balance_of(device)}};
}

}  // namespace braid::comm
