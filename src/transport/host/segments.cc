// The collective opening of shared memory; steps and reasons are told in segments.h.
#include "transport/host/segments.h"

#include <array>
#include <cstring>
#include <iterator>
#include <span>
#include <sstream>

#include "sys/host/api.h"

namespace braid::transport {
namespace {

constexpr size_t kPageBytes = 4096;  // the smallest page of any machine braid runs on

/// What one rank tells the others in step 1.
struct Offer {
  Status refusal;
  std::string host;
  int pid = 0;
  int fd = -1;
  uint64_t bytes = 0;
  std::string shape;
  uint64_t nonce = 0;
};

std::string refusal_text(const Status& status) {
  return fmt::format("no {} {}", static_cast<int>(status.code()), status.message());
}

std::string offer_text(const Offer& offer) {
  if (!offer.refusal.ok()) return refusal_text(offer.refusal);
  // The host last: it may have spaces (BRAID_HOST_ID).
  return fmt::format("ok {} {} {} {} {} {}", offer.pid, offer.fd, offer.bytes, offer.shape,
                     offer.nonce, offer.host);
}

// A code outside the enum comes from a peer of another build; its message still helps.
Status refusal_of(std::istringstream& words) {
  int code = 0;
  words >> code;
  std::string message;
  std::getline(words >> std::ws, message);
  const bool is_known =
      code > static_cast<int>(Code::kOk) && code <= static_cast<int>(Code::kInternal);
  return {is_known ? static_cast<Code>(code) : Code::kInternal, message};
}

Offer parse_offer(const std::string& text) {
  std::istringstream words(text);
  std::string verdict;
  words >> verdict;
  Offer offer;
  if (verdict != "ok") {
    offer.refusal = refusal_of(words);
  } else if (!(words >> offer.pid >> offer.fd >> offer.bytes >> offer.shape >> offer.nonce) ||
             words.get() != ' ') {
    offer.refusal = internal_error("offer of shared memory is not readable: {}", text);
  } else {
    offer.host.assign(std::istreambuf_iterator<char>(words), {});
  }
  return offer;
}

// Reading is enough: the pages exist since create(), what is missing is this process' entry for
// each.
void touch_pages(const sys::Segment& segment) {
  const volatile std::byte* bytes = segment.data();
  for (uint64_t at = 0; at < segment.bytes(); at += kPageBytes) (void)bytes[at];
}

uint64_t nonce_of(const sys::Segment& segment, size_t payload_bytes) {
  uint64_t nonce = 0;
  std::memcpy(&nonce, segment.data() + payload_bytes, sizeof nonce);
  return nonce;
}

}  // namespace

/// One run of the steps in segments.h.
class SegmentExchange {
 public:
  SegmentExchange(group::Group& group, const SegmentRequest& request, Deadline deadline)
      : group_(group),
        request_(request),
        deadline_(deadline),
        memory_(request.memory != nullptr ? *request.memory : sys::real_shared_memory()),
        by_rank_(static_cast<size_t>(group.size())) {}

  Result<Segments> run() {
    const Offer mine = create_own();
    auto texts = group_.exchange(request_.topic + " segments", offer_text(mine), deadline_);
    if (!texts.ok()) return texts.status().with_context(request_.topic);
    for (const std::string& text : *texts) offers_.push_back(parse_offer(text));
    BRAID_RETURN_IF_ERROR(agree(offers_));

    const Status opened = open_peers();
    texts = group_.exchange(request_.topic + " opened", opened.ok() ? "ok" : refusal_text(opened),
                            deadline_);
    if (!texts.ok()) return texts.status().with_context(request_.topic);
    BRAID_RETURN_IF_ERROR(agree_opened(*texts));
    return Segments(std::move(by_rank_));
  }

 private:
  Offer create_own() {
    Offer offer;
    offer.refusal = request_.refusal;
    if (!offer.refusal.ok()) return offer;
    offer.refusal = sys::random_bytes(std::as_writable_bytes(std::span(&offer.nonce, 1)));
    if (!offer.refusal.ok()) return offer;
    auto created = memory_.create("braid " + request_.topic, request_.bytes + sizeof offer.nonce);
    offer.refusal = created.status();
    if (!created.ok()) return offer;
    sys::Segment& own = by_rank_[static_cast<size_t>(group_.rank())] = std::move(*created);
    touch_pages(own);
    std::memcpy(own.data() + request_.bytes, &offer.nonce, sizeof offer.nonce);
    auto host = sys::host_id(request_.host_id);
    offer.refusal = host.status();
    if (!host.ok()) return offer;
    offer.host = std::move(host).value();
    offer.pid = sys::process_id();
    offer.fd = own.fd();
    offer.bytes = own.bytes();
    offer.shape = request_.shape;
    return offer;
  }

  // Every rank judges the same texts in the same order, so every rank comes to the same Status.
  Status agree(const std::vector<Offer>& offers) const {
    for (size_t rank = 0; rank < offers.size(); ++rank)
      if (!offers[rank].refusal.ok())
        return offers[rank].refusal.with_context(fmt::format("{}: rank {}", request_.topic, rank));
    for (size_t rank = 1; rank < offers.size(); ++rank)
      BRAID_RETURN_IF_ERROR(agree_pair(offers[0], offers[rank], rank));
    return {};
  }

  Status agree_pair(const Offer& first, const Offer& other, size_t rank) const {
    if (request_.needs_one_host && other.host != first.host)
      return unavailable("{}: ranks must share a host, rank 0 is on {} and rank {} on {}",
                         request_.topic, first.host, rank, other.host);
    if (other.shape != first.shape || other.bytes != first.bytes)
      return invalid_argument(
          "{}: options differ, rank 0 has {} ({} bytes), rank {} has {} ({} bytes)", request_.topic,
          first.shape, first.bytes, rank, other.shape, other.bytes);
    return {};
  }

  Status open_peers() {
    const Offer& mine = offers_[static_cast<size_t>(group_.rank())];
    for (size_t rank = 0; rank < offers_.size(); ++rank) {
      if (static_cast<int>(rank) == group_.rank() || offers_[rank].host != mine.host) continue;
      BRAID_RETURN_IF_ERROR(open_peer(offers_[rank], by_rank_[rank])
                                .with_context(fmt::format("segment of rank {}", rank)));
    }
    return {};
  }

  Status open_peer(const Offer& offer, sys::Segment& segment) {
    BRAID_ASSIGN_OR_RETURN(segment, memory_.open_peer(offer.pid, offer.fd, offer.bytes));
    if (nonce_of(segment, request_.bytes) != offer.nonce)
      return unavailable("descriptor {} of process {} is not the one that was offered", offer.fd,
                         offer.pid);
    touch_pages(segment);
    return {};
  }

  Status agree_opened(const std::vector<std::string>& texts) const {
    for (size_t rank = 0; rank < texts.size(); ++rank) {
      if (texts[rank] == "ok") continue;
      return parse_offer(texts[rank])
          .refusal.with_context(fmt::format("{}: rank {}", request_.topic, rank));
    }
    return {};
  }

  group::Group& group_;
  const SegmentRequest& request_;
  const Deadline deadline_;
  sys::SharedMemory& memory_;
  std::vector<Offer> offers_;
  std::vector<sys::Segment> by_rank_;
};

Result<Segments> share_segments(group::Group& group, const SegmentRequest& request,
                                Deadline deadline) {
  return SegmentExchange(group, request, deadline).run();
}

}  // namespace braid::transport
