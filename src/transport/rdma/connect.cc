// connect_rdma: open an endpoint, tell everyone its name and keys, greet everyone. After each step
// all ranks compare notes, so that either all have the lane or all know which rank could not and
// why.
#include <algorithm>
#include <optional>

#include "group/agree.h"
#include "transport/rdma/lane.h"

namespace braid::transport {
namespace rdma {
namespace {

struct Card {  // what precedes the endpoints and the endpoint's name in a rank's blob
  uint32_t slot_bytes = 0;
  uint32_t depth_pieces = 0;
};

std::string write_card(const RdmaLane& lane, int self, int size) {
  const Card card{lane.caps().max_piece_bytes, lane.caps().depth_pieces};
  std::string out(reinterpret_cast<const char*>(&card), sizeof card);
  for (int r = 0; r < size; ++r) {
    const RemoteEndpoint remote = r == self ? RemoteEndpoint{} : lane.remote_endpoint_for(r);
    out.append(reinterpret_cast<const char*>(&remote), sizeof remote);
  }
  return out + lane.endpoint_name();
}

Status meet_from(RdmaLane& lane, int self, int size, int peer, const std::string& blob) {
  const size_t name_at = sizeof(Card) + sizeof(RemoteEndpoint) * size;
  if (blob.size() <= name_at)
    return internal_error("rank {} sent {} bytes, more than {} expected", peer, blob.size(),
                          name_at);
  Card card;
  std::memcpy(&card, blob.data(), sizeof card);
  if (card.slot_bytes != lane.caps().max_piece_bytes ||
      card.depth_pieces != lane.caps().depth_pieces)
    return invalid_argument("rank {} uses {} slots of {} bytes, rank {} {} of {}", peer,
                            card.depth_pieces, card.slot_bytes, self, lane.caps().depth_pieces,
                            lane.caps().max_piece_bytes);
  RemoteEndpoint remote;
  std::memcpy(&remote, blob.data() + sizeof(Card) + sizeof(RemoteEndpoint) * self, sizeof remote);
  return lane.meet(peer, blob.substr(name_at), remote);
}

Status meet_all(RdmaLane& lane, int self, int size, const std::vector<std::string>& blobs) {
  for (int r = 0; r < size; ++r)
    if (r != self) BRAID_RETURN_IF_ERROR(meet_from(lane, self, size, r, blobs[r]));
  return {};
}

}  // namespace

Result<std::unique_ptr<RdmaLane>> connect(sys::FabricLibrary& library, group::Group& group,
                                          const RdmaLaneOptions& options, Deadline deadline) {
  const int self = group.rank(), size = group.size();
  const std::string topic = "lane " + options.name;
  Result<std::unique_ptr<RdmaLane>> opened = RdmaLane::open(library, options, self, size);
  const std::string card = opened.ok() ? write_card(**opened, self, size) : "";
  BRAID_ASSIGN_OR_RETURN(
      const auto blobs, group::agree(group, topic + " endpoints", opened.status(), card, deadline));
  std::unique_ptr<RdmaLane> lane = std::move(opened).value();
  const Status met = meet_all(*lane, self, size, blobs);
  BRAID_RETURN_IF_ERROR(group::agree(group, topic + " met", met, "", deadline).status());
  // Half of what is left, so that there is time to tell the others that it failed.
  const Status greeted = lane->greet(Deadline::after_ns(deadline.left_ns() / 2));
  BRAID_RETURN_IF_ERROR(group::agree(group, topic + " greeted", greeted, "", deadline).status());
  return lane;
}

}  // namespace rdma

Result<std::unique_ptr<Lane>> connect_rdma(group::Group& group, const RdmaLaneOptions& options,
                                           Deadline deadline) {
  const Result<sys::FabricLibrary*> library = sys::real_fabric();
  if (!library.ok()) {  // the others wait in the first exchange: tell them there
    BRAID_RETURN_IF_ERROR(
        group::agree(group, "lane " + options.name + " endpoints", library.status(), "", deadline)
            .status());
  }
  BRAID_ASSIGN_OR_RETURN(auto lane, rdma::connect(*library.value(), group, options, deadline));
  return std::unique_ptr<Lane>(std::move(lane));
}

}  // namespace braid::transport
