#include "transport/nvlink/window.h"

#include <unistd.h>

#include <cstring>
#include <string_view>

#include "group/agree.h"
#include "transport/nvlink/handover.h"

namespace braid::nvlink {
namespace {

/// What one rank tells the others. Ranks of a node run one build, so the bytes are as they lie.
struct Offer {
  int32_t code = 0;  // Code of the refusal
  int32_t pid = 0;
  int32_t device = 0;
  uint64_t address = 0;
  uint64_t offset_bytes = 0;  // of the span in its allocation, or in its parts together
  uint64_t bytes = 0;
  uint64_t num_parts = 0;  // of memory of cuMemCreate, whose sizes follow; 0: `handle` tells all
  sys::IpcHandle handle;
};

/// An offer and what follows it: words when it refuses, the parts' sizes else.
struct Told {
  Offer offer;
  std::vector<uint64_t> bytes_of_parts;
};

constexpr size_t kMostBlobBytes = 1 << 20;  // of an exchange

std::string encode(const Offer& offer, std::string_view tail) {
  std::string blob(sizeof(Offer), '\0');
  std::memcpy(blob.data(), &offer, sizeof(Offer));
  return blob.append(tail);
}

std::string encode(const Offer& offer, const Backing& backing) {
  std::vector<uint64_t> sizes;
  for (const Backing::Part& part : backing.parts()) sizes.push_back(part.range.bytes);
  return encode(offer, std::string_view(reinterpret_cast<const char*>(sizes.data()),
                                        sizes.size() * sizeof(uint64_t)));
}

Result<Told> decode(const std::string& blob, int rank, const std::string& topic) {
  Told told;
  if (blob.size() < sizeof(Offer))
    return internal_error("{}: rank {} sent {} bytes, at least {} are an offer", topic, rank,
                          blob.size(), sizeof(Offer));
  std::memcpy(&told.offer, blob.data(), sizeof(Offer));
  const std::string tail = blob.substr(sizeof(Offer));
  if (told.offer.code != 0)
    return Status(static_cast<Code>(told.offer.code),
                  fmt::format("{}: rank {}: {}", topic, rank, tail));
  if (tail.size() != told.offer.num_parts * sizeof(uint64_t))
    return internal_error("{}: rank {} offers {} parts in {} bytes", topic, rank,
                          told.offer.num_parts, tail.size());
  told.bytes_of_parts.resize(told.offer.num_parts);
  if (!tail.empty()) std::memcpy(told.bytes_of_parts.data(), tail.data(), tail.size());
  return told;
}

/// Our own offer, and what it is made from.
struct Own {
  Offer offer;
  Backing backing;
};

Status offer_allocation(sys::Cuda& cuda, const WindowRequest& request, Own& own) {
  BRAID_ASSIGN_OR_RETURN(const sys::AddressRange range, cuda.address_range(request.memory));
  if (request.memory + request.bytes > range.base + range.bytes)
    return invalid_argument("{} bytes at {:#x} reach over the end of their allocation ({} bytes)",
                            request.bytes, request.memory, range.bytes);
  own.offer.offset_bytes = request.memory - range.base;
  BRAID_ASSIGN_OR_RETURN(own.offer.handle, cuda.export_ipc(request.memory));
  return {};
}

Status offer_parts(sys::Cuda& cuda, const WindowRequest& request, Own& own) {
  BRAID_ASSIGN_OR_RETURN(own.backing, Backing::find(cuda, request.memory, request.bytes));
  own.offer.num_parts = own.backing.parts().size();
  if (own.offer.num_parts == 0)
    return invalid_argument("no bytes at {:#x} to share", request.memory);
  if (own.offer.num_parts > (kMostBlobBytes - sizeof(Offer)) / sizeof(uint64_t))
    return unsupported("memory at {:#x} lies over {} allocations", request.memory,
                       own.offer.num_parts);
  own.offer.offset_bytes = request.memory - own.backing.parts().front().range.base;
  return {};
}

Result<Own> make_offer(sys::Cuda& cuda, const WindowRequest& request) {
  BRAID_RETURN_IF_ERROR(request.refusal);
  Own own;
  own.offer.pid = getpid();
  own.offer.device = request.device;
  own.offer.address = request.memory;
  own.offer.bytes = request.bytes;
  BRAID_ASSIGN_OR_RETURN(const sys::PointerFacts facts, cuda.pointer_facts(request.memory));
  if (facts.kind != sys::MemoryKind::kDevice ||
      (!facts.is_legacy_ipc_capable && !facts.can_export_fd))
    return unsupported("memory at {:#x} can be shared neither by CUDA IPC nor by a file descriptor",
                       request.memory);
  BRAID_RETURN_IF_ERROR(facts.is_legacy_ipc_capable ? offer_allocation(cuda, request, own)
                                                    : offer_parts(cuda, request, own));
  return own;
}

/// All offers, when all are good: every rank reads the same and comes to the same verdict.
Result<std::vector<Told>> judge(const std::vector<std::string>& blobs, const std::string& topic) {
  std::vector<Told> all;
  for (size_t r = 0; r < blobs.size(); ++r) {
    BRAID_ASSIGN_OR_RETURN(Told told, decode(blobs[r], static_cast<int>(r), topic));
    all.push_back(std::move(told));
    if (all[r].offer.bytes != all[0].offer.bytes)
      return invalid_argument("{}: rank 0 has {} bytes, rank {} has {}", topic, all[0].offer.bytes,
                              r, all[r].offer.bytes);
  }
  return all;
}

/// Opens what the peers offered.
class Opening {
 public:
  Opening(group::Group& group, sys::Cuda& cuda, const WindowRequest& request,
          const std::vector<Told>& all, Backing own)
      : group_(group), cuda_(cuda), request_(request), all_(all) {
    parts_.own = std::move(own);
  }

  Status run(Deadline deadline) {
    BRAID_RETURN_IF_ERROR(map_parts(deadline));
    for (int rank = 0; rank < group_.size(); ++rank) {
      BRAID_ASSIGN_OR_RETURN(const sys::DevicePtr at, open(rank));
      parts_.by_rank.push_back(at);
    }
    return {};
  }
  Window::Parts take() { return std::move(parts_); }

 private:
  Status map_parts(Deadline deadline) {
    HandoverRequest handover{request_.topic, request_.device, &parts_.own, {}};
    bool is_needed = false;
    for (const Told& told : all_) {
      handover.bytes_of_parts.push_back(told.bytes_of_parts);
      is_needed = is_needed || told.offer.num_parts > 0;
    }
    if (!is_needed) return {};
    BRAID_ASSIGN_OR_RETURN(parts_.mapped, hand_over(group_, cuda_, handover, deadline));
    return {};
  }

  /// Where the rank's span is for us.
  Result<sys::DevicePtr> open(int rank) {
    const Offer& offer = all_[static_cast<size_t>(rank)].offer;
    if (rank == group_.rank()) return offer.address;
    if (offer.num_parts > 0)
      return parts_.mapped[static_cast<size_t>(rank)].base() + offer.offset_bytes;
    if (offer.pid == getpid()) {  // ranks that are threads of one process
      if (offer.device != request_.device)
        BRAID_RETURN_IF_ERROR(cuda_.enable_peer_access(offer.device));
      if (Hold held = borrow(offer.address)) parts_.borrowed.push_back(std::move(held));
      return offer.address;
    }
    BRAID_ASSIGN_OR_RETURN(const sys::DevicePtr base, cuda_.open_ipc(offer.handle));
    parts_.opened.push_back(base);
    return base + offer.offset_bytes;
  }

  group::Group& group_;
  sys::Cuda& cuda_;
  const WindowRequest& request_;
  const std::vector<Told>& all_;
  Window::Parts parts_;
};

}  // namespace

Window::Window(Window&& other) noexcept
    : cuda_(std::exchange(other.cuda_, nullptr)),
      bytes_(other.bytes_),
      parts_(std::move(other.parts_)) {}

Window& Window::operator=(Window&& other) noexcept {
  if (this == &other) return *this;
  close();
  cuda_ = std::exchange(other.cuda_, nullptr);
  bytes_ = other.bytes_;
  parts_ = std::move(other.parts_);
  return *this;
}

Window::~Window() { close(); }

void Window::close() {
  if (cuda_ == nullptr) return;
  for (const sys::DevicePtr base : parts_.opened) (void)cuda_->close_ipc(base);
  parts_ = {};
}

Result<Window> share_window(group::Group& group, sys::Cuda& cuda, const WindowRequest& request,
                            Deadline deadline) {
  Result<Own> own = make_offer(cuda, request);
  Offer refused;
  refused.code = static_cast<int32_t>(own.status().code());
  const std::string told = own.ok() ? encode(own.value().offer, own.value().backing)
                                    : encode(refused, own.status().message());
  BRAID_ASSIGN_OR_RETURN(const auto blobs, group.exchange(request.topic, told, deadline));
  BRAID_ASSIGN_OR_RETURN(const std::vector<Told> all, judge(blobs, request.topic));

  Opening opening(group, cuda, request, all, std::move(own).value().backing);
  const Status status = opening.run(deadline);
  Window window(cuda, request.bytes, opening.take());
  const std::string topic = request.topic + " opened";
  BRAID_RETURN_IF_ERROR(
      group::agree(group, topic, status, "", deadline).status().with_context(topic));
  return window;
}

}  // namespace braid::nvlink
