// connect_mirrors: as connect_rdma (connect.cc): open, tell names and keys, greet, and after each
// step all ranks compare notes.
#include <algorithm>
#include <cstring>

#include "group/agree.h"
#include "transport/rdma/mirror.h"

namespace braid::transport::rdma {

namespace {

constexpr const char* kMirrorTopic = "gpu rdma";

struct MirrorCard {  // what precedes the endpoints and the endpoint's name in a rank's blob
  uint32_t slot_bytes = 0;
  uint32_t num_slots = 0;
  int32_t num_lanes = 0;
  friend bool operator==(const MirrorCard&, const MirrorCard&) = default;
};

MirrorCard card_of(const MirrorOptions& options) {
  return {options.slot_bytes, options.num_slots, options.num_lanes};
}

std::string mirror_card(const Mirrors& mirrors, int self, int size) {
  const MirrorCard card = card_of(mirrors.options());
  std::string out(reinterpret_cast<const char*>(&card), sizeof card);
  for (int r = 0; r < size; ++r) {
    const Mirrors::RemoteEndpoint remote =
        r == self ? Mirrors::RemoteEndpoint{} : mirrors.remote_endpoint_for(r);
    out.append(reinterpret_cast<const char*>(&remote), sizeof remote);
  }
  return out + mirrors.endpoint_name();
}

Status meet_mirror(Mirrors& mirrors, int self, int size, int peer, const std::string& blob) {
  const size_t name_at =
      sizeof(MirrorCard) + sizeof(Mirrors::RemoteEndpoint) * static_cast<size_t>(size);
  if (blob.size() <= name_at)
    return internal_error("rank {} sent {} bytes, more than {} expected", peer, blob.size(),
                          name_at);
  MirrorCard card;
  std::memcpy(&card, blob.data(), sizeof card);
  if (card != card_of(mirrors.options()))
    return invalid_argument("rank {} uses {} slots of {} bytes on {} lanes, rank {} {} of {} on {}",
                            peer, card.num_slots, card.slot_bytes, card.num_lanes, self,
                            mirrors.options().num_slots, mirrors.options().slot_bytes,
                            mirrors.options().num_lanes);
  Mirrors::RemoteEndpoint remote;
  std::memcpy(&remote,
              blob.data() + sizeof(MirrorCard) +
                  sizeof(Mirrors::RemoteEndpoint) * static_cast<size_t>(self),
              sizeof remote);
  return mirrors.meet(peer, blob.substr(name_at), remote);
}

Status meet_mirrors(Mirrors& mirrors, int self, const std::vector<std::string>& blobs) {
  const auto size = static_cast<int>(blobs.size());
  for (int r = 0; r < size; ++r)
    if (r != self)
      BRAID_RETURN_IF_ERROR(meet_mirror(mirrors, self, size, r, blobs[static_cast<size_t>(r)]));
  return {};
}

}  // namespace

Result<std::unique_ptr<Mirrors>> connect_mirrors(const Result<sys::FabricLibrary*>& library,
                                                 group::Group& group, const MirrorOptions& options,
                                                 Deadline deadline) {
  const std::string topic = kMirrorTopic;
  const int self = group.rank(), size = group.size();
  Result<std::unique_ptr<Mirrors>> opened =
      library.ok() ? Mirrors::open(*library.value(), options, self, size)
                   : Result<std::unique_ptr<Mirrors>>(library.status());
  const std::string card = opened.ok() ? mirror_card(*opened.value(), self, size) : "";
  BRAID_ASSIGN_OR_RETURN(
      const auto blobs, group::agree(group, topic + " endpoints", opened.status(), card, deadline));
  std::unique_ptr<Mirrors> mirrors = std::move(opened).value();
  const Status met = meet_mirrors(*mirrors, self, blobs);
  BRAID_RETURN_IF_ERROR(group::agree(group, topic + " met", met, "", deadline).status());
  // Half of what is left, so that there is time to tell the others that it failed.
  const Status greeted =
      mirrors->greet(Deadline::after_ns(std::min(deadline.left_ns() / 2, options.greeting_ns)));
  BRAID_RETURN_IF_ERROR(group::agree(group, topic + " greeted", greeted, "", deadline).status());
  return mirrors;
}

}  // namespace braid::transport::rdma
