#include "coll/host/inbox.h"

#include "base/check.h"

namespace braid::coll {

Inbox::Inbox(std::vector<comm::LinkState>& links, int num_ranks)
    : links_(links),
      num_ranks_(static_cast<size_t>(num_ranks)),
      windows_(links.size() * num_ranks_) {}

bool Inbox::peek(int link, int source, transport::Arrival* arrival) const {
  const Window& w = window(link, source);
  const transport::Lane& lane = *links_[link].lane;
  if (w.taken >= kMaxDepth || lane.available(source) <= w.taken) return false;
  *arrival = lane.at(source, w.taken);
  return true;
}

Taken Inbox::take(int link, int source) {
  Window& w = window(link, source);
  return Taken{link, source, w.released + w.taken++};
}

void Inbox::finish(const Taken& taken) {
  Window& w = window(taken.link, taken.source);
  const uint64_t at = taken.sequence - w.released;
  BRAID_CHECK(at < w.taken, "link {} source {}: piece {} is not taken, window {} + {}", taken.link,
              taken.source, taken.sequence, w.released, w.taken);
  w.done |= uint64_t{1} << at;
  const int ready = w.done == ~uint64_t{0} ? 64 : __builtin_ctzll(~w.done);
  if (ready == 0) return;
  links_[taken.link].lane->release(taken.source, static_cast<uint32_t>(ready));
  w.done = ready == 64 ? 0 : w.done >> ready;
  w.taken -= static_cast<uint32_t>(ready);
  w.released += static_cast<uint64_t>(ready);
}

}  // namespace braid::coll
