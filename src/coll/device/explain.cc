#include "coll/device/explain.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/units.h"
#include "coll/device/call.h"
#include "coll/device/direct.h"
#include "coll/device/relay.h"
#include "coll/device/route.h"
#include "coll/device/segments.h"
#include "comm/device/device.h"
#include "comm/state.h"

namespace braid::coll::device {

namespace {

const char* name_of(Path path) {
  switch (path) {
    case Path::kNone: return "none";
    case Path::kPackets: return "packets";
    case Path::kLines: return "lines";
    case Path::kDirect: return "direct";
    case Path::kCopyEngines: break;
  }
  return "copy engines";
}

const char* meaning_of(Path path) {
  switch (path) {
    case Path::kNone: return "one rank: nothing is sent";
    case Path::kPackets: return "one kernel, 8 bytes and a number in every 16, without a barrier";
    case Path::kLines: return "one kernel, 120 bytes and a number in every 128, without a barrier";
    case Path::kDirect: return "one kernel whose blocks store into the peers' memory";
    case Path::kCopyEngines: break;
  }
  return "copy engines between barriers on the stream";
}

void add_balance(const comm::Device& device, uint64_t block_bytes, Explanation& e) {
  const comm::DeviceLink& link = device.links().main();
  e.tuned_share = link.shares().tuned(e.op).at(block_bytes);
  e.is_balanced = link.balance() != nullptr;
  e.balanced = link.facts().name;
  if (!e.is_balanced) return;
  const comm::ShareBalance::Summary summary = link.balance()->summary();
  e.windows = summary.windows;
  for (const comm::ShareTable::Moved& moved : summary.moved)
    if (moved.key == comm::share_key(e.op, block_bytes)) e.moves = moved.moves;
}

std::string balance_words(const Explanation& e) {
  if (!e.is_balanced) return "  shares stay as tuned: balancing is off\n";
  return fmt::format("  {} was tuned to {:.1f} %, and moved {} times since ({} windows)\n",
                     e.balanced, 100 * e.tuned_share, e.moves, e.windows);
}

std::string registered_words(const Explanation& e) {
  const std::string others =
      e.direct_pieces > 0
          ? fmt::format("others go by direct kernels, {} in a row{}", e.direct_pieces,
                        e.op == plan::Op::kBroadcast
                            ? ""
                            : fmt::format(", over {} alone", e.links.front().name))
          : fmt::format("others go through {} of scratch", format_bytes(e.scratch_bytes));
  std::string words =
      fmt::format("  results in registered memory ({} spans, {}) are written in place{}, {}\n",
                  e.registered.spans, format_bytes(e.registered.bytes),
                  e.is_relayed ? " and passed on while they land" : "", others);
  if (e.registered.remapped > 0)
    words += fmt::format("  {} of these spans were unmapped since, and go through scratch\n",
                         e.registered.remapped);
  return words;
}

std::string link_words(const Explanation::Link& link) {
  if (!link.is_on) return fmt::format("  {:<6} {}\n", link.name, link.how);
  return fmt::format("  {:<6} {:5.1f} %, {}\n", link.name, 100 * link.share, link.how);
}

/// What a call's share is asked about: a block; of a long all-reduce, in registered memory, a
/// segment.
uint64_t asked_bytes(const comm::Device& device, plan::Op op, uint64_t block_bytes) {
  return op == plan::Op::kAllReduce ? segments_of(device, block_bytes, true).bytes_of(0)
                                    : block_bytes;
}

void add_links(const comm::Device& device, uint64_t block_bytes, Explanation& e) {
  for (const auto& link : device.links().all()) {
    const comm::DeviceLinkState state = link->state();
    e.links.push_back({link->facts().name, state.is_on, state.how, 0});
  }
  e.links.front().share = 1;
  if (e.path != Path::kCopyEngines || block_bytes == 0) return;
  block_bytes = asked_bytes(device, e.op, block_bytes);
  const Cut cut = cut_of(device, e.op, block_bytes);
  const bool is_half =  // of what moves
      e.op == plan::Op::kAllReduce &&
      sends_results_only(device.size(), cut.beside_bytes(), block_bytes);
  for (size_t i = 1; i < e.links.size(); ++i) {
    e.links[i].share =
        static_cast<double>(cut.beside[i]) / static_cast<double>(block_bytes) / (is_half ? 2 : 1);
    e.links.front().share -= e.links[i].share;
  }
}

std::string escaped(const std::string& text) { return nlohmann::json(text).dump(); }

}  // namespace

Result<Explanation> explain(comm::Comm& comm, plan::Op op, uint64_t bytes) {
  comm::CallGuard guard(comm);
  BRAID_RETURN_IF_ERROR(guard.status());
  if (!guard.state().device)
    return invalid_argument("explain: no call on GPU memory was made on this comm yet");
  const comm::Device& device = *guard.state().device;
  const uint64_t block =
      plan::is_one_buffer(op) ? bytes : bytes / static_cast<uint64_t>(std::max(device.size(), 1));
  Explanation e{.op = op,
                .bytes = bytes,
                .num_ranks = device.size(),
                .gpu = device.ordinal(),
                .path = path_of(device, op, block),
                .link_cap_gbps = device.links().base().throttle_gbps(),
                .memory_bytes = device.arena().memory_bytes(),
                .scratch_bytes = device.arena().scratch_bytes()};
  e.registered = device.registrations().summary();
  if (e.path == Path::kCopyEngines) {
    e.direct_pieces = num_direct_pieces(device, op, block);
    e.is_relayed = op == plan::Op::kBroadcast && can_relay(device);
  }
  add_balance(device, block, e);
  add_links(device, block, e);
  return e;
}

std::string to_words(const Explanation& e) {
  std::string words =
      fmt::format("{} of {} on {} GPUs: {} ({})\n", plan::op_name(e.op), format_bytes(e.bytes),
                  e.num_ranks, name_of(e.path), meaning_of(e.path));
  if (e.path == Path::kNone) return words;
  for (const Explanation::Link& link : e.links) words += link_words(link);
  if (e.path == Path::kCopyEngines) words += balance_words(e) + registered_words(e);
  return words +
         fmt::format("  the comm takes {} of the GPU's memory\n", format_bytes(e.memory_bytes));
}

std::string to_json(const Explanation& e) {
  std::string links;
  for (const Explanation::Link& link : e.links)
    links += fmt::format(R"({}{{"name":"{}","state":"{}","share":{},"why":{}}})",
                         links.empty() ? "" : ",", link.name, link.is_on ? "up" : "off", link.share,
                         escaped(link.how));
  return fmt::format(
      R"({{"op":"{}","bytes":{},"ranks":{},"gpu":{},"path":"{}","link_cap_gbps":{},)"
      R"("memory_bytes":{},"scratch_bytes":{},"direct_pieces":{},"relayed":{},"links":[{}],)"
      R"("registered":{{"spans":{},"bytes":{},"remapped":{}}},)"
      R"("balance":{{"on":{},"tuned_share":{},"windows":{},"moves":{}}}}})",
      plan::op_name(e.op), e.bytes, e.num_ranks, e.gpu, name_of(e.path), e.link_cap_gbps,
      e.memory_bytes, e.scratch_bytes, e.direct_pieces, e.is_relayed, links, e.registered.spans,
      e.registered.bytes, e.registered.remapped, e.is_balanced, e.tuned_share, e.windows, e.moves);
}

}  // namespace braid::coll::device
