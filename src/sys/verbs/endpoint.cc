// Opening, connecting and closing; endpoint_post.cc and endpoint_poll.cc move things.
#include "sys/verbs/endpoint.h"

#include <algorithm>
#include <cerrno>

#include "sys/error_text.h"

namespace braid::sys::verbs {
namespace {

// Writes and reads are what the queue pair of data is for; messages land where their receiver said.
constexpr int kDataAccess = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

uint8_t small(int count) { return static_cast<uint8_t>(std::clamp(count, 0, 255)); }

uint32_t positive(int limit) { return static_cast<uint32_t>(std::max(limit, 0)); }

}  // namespace

Status Endpoint::open(const EndpointRequest& request) {
  if (request.num_peers != 1)
    return unsupported("an endpoint has one peer, {} asked for: open one for each",
                       request.num_peers);
  BRAID_RETURN_IF_ERROR(open_queues(request));
  name_ = encode(make_name());
  watch_.queue_pairs = {data_.name().number, messages_.name().number};
  watch_.completions = completions_.get();
  domain_.events().add(&watch_);
  offer_immediates(sizes_.immediates);
  return broken_ ? driver_error("{}", words_of(library_, *broken_)) : Status();
}

Status Endpoint::open_queues(const EndpointRequest& request) {
  const ibv_device_attr& device = domain_.port().device;
  BRAID_ASSIGN_OR_RETURN(sizes_, plan_queues(request.queue_depth, {positive(device.max_qp_wr),
                                                                   positive(device.max_cqe)}));
  transfer_credits_ = Credits(sizes_.transfers);
  send_credits_ = Credits(sizes_.sends);
  receive_credits_ = Credits(sizes_.receives);
  completions_ = {library_,
                  library_.create_cq(domain_.port().context.get(),
                                     static_cast<int>(sizes_.completions()), nullptr, nullptr, 0)};
  if (!completions_)
    return driver_error("ibv_create_cq of {}: {}", sizes_.completions(), error_text(errno));
  QueuePairRequest wanted{domain_.protection(), completions_.get(), domain_.port().number};
  wanted.max_sends = sizes_.transfers;
  wanted.max_receives = sizes_.immediates;
  wanted.remote_access = kDataAccess;
  BRAID_ASSIGN_OR_RETURN(data_, QueuePair::create(library_, wanted));
  wanted.max_sends = sizes_.sends;
  wanted.max_receives = sizes_.receives;
  wanted.remote_access = 0;
  BRAID_ASSIGN_OR_RETURN(messages_, QueuePair::create(library_, wanted));
  return {};
}

EndpointName Endpoint::make_name() const {
  const Port& port = domain_.port();
  EndpointName name;
  name.gid = domain_.gid().gid;
  name.gid_type = domain_.gid().type;
  name.lid = port.attributes.lid;
  name.mtu = small(port.attributes.active_mtu);
  name.max_reads = small(port.device.max_qp_rd_atom);
  name.data = data_.name();
  name.messages = messages_.name();
  return name;
}

Result<Route> Endpoint::route_to(const EndpointName& peer) const {
  const Port& port = domain_.port();
  const GidEntry& gid = domain_.gid();
  if (peer.gid_type != gid.type || is_ipv4(peer.gid) != is_ipv4(gid.gid))
    return invalid_argument(
        "the peer is at {} ({}), this end at {} ({}): choose GIDs of one kind by address or as "
        "DEVICE:PORT:GID_INDEX",
        gid_text(peer.gid), gid_type_name(peer.gid_type), gid_text(gid.gid),
        gid_type_name(gid.type));
  const bool is_same_subnet = std::equal(gid.gid.begin(), gid.gid.begin() + 8, peer.gid.begin());
  Route route;
  route.port = port.number;
  route.gid_index = gid.index;
  route.is_global = port.is_ethernet() || !is_same_subnet || peer.lid == 0 ||
                    (port.attributes.flags & IBV_QPF_GRH_REQUIRED) != 0;
  route.mtu = std::min(peer.mtu, small(port.attributes.active_mtu));
  route.reads_from_peer = small(port.device.max_qp_rd_atom);
  route.reads_to_peer = std::min(peer.max_reads, small(port.device.max_qp_init_rd_atom));
  return route;
}

// Until the peer has connected, too, its NIC drops what we send, and after a second the connection is
// broken: so both sides add each other before either writes.
Result<uint64_t> Endpoint::add_peer(std::string_view name) {
  if (is_connected_) return domain_.named(invalid_argument("this endpoint has its peer already"));
  const Result<EndpointName> peer = decode(name);
  if (!peer.ok()) return peer.status();
  const Result<Route> route = route_to(peer.value());
  if (!route.ok()) return domain_.named(route.status());
  Status connected = data_.connect(route.value(), peer.value(), peer.value().data);
  if (connected.ok())
    connected = messages_.connect(route.value(), peer.value(), peer.value().messages);
  if (!connected.ok())
    return domain_.named(connected.with_context("peer at " + gid_text(peer.value().gid)));
  is_connected_ = true;
  return uint64_t{0};
}

// Once a queue pair is destroyed, its NIC knows nothing any more that a packet could fit: what
// comes is dropped, and what had come is in memory, because the NIC's answer to destroying it is
// ordered behind its own writes.
Endpoint::~Endpoint() {
  domain_.events().remove(&watch_);
  data_.fail();
  messages_.fail();
}

std::string Endpoint::why(const FabricEvent& failed) const {
  std::string text = fmt::format("{}: {}", domain_.description(),
                                 words_of(library_, {failed.error, failed.provider_error}));
  if (broken_ && broken_->error != failed.error)
    text += fmt::format("; the connection broke because of: {}", words_of(library_, *broken_));
  return text;
}

}  // namespace braid::sys::verbs
