#include "transport/nvlink/window.h"

#include <unistd.h>

#include <cstring>

namespace braid::nvlink {
namespace {

/// What one rank tells the others. Ranks of a node run one build, so the bytes are as they lie.
struct Offer {
  int32_t code = 0;  // Code of the refusal
  int32_t pid = 0;
  int32_t device = 0;
  uint64_t address = 0;
  uint64_t offset_bytes = 0;  // of the span in its allocation
  uint64_t bytes = 0;
  sys::IpcHandle handle;
};

std::string encode(const Offer& offer, const std::string& message) {
  std::string blob(sizeof(Offer), '\0');
  std::memcpy(blob.data(), &offer, sizeof(Offer));
  return blob + message;
}

Result<Offer> decode(const std::string& blob, int rank, const std::string& topic) {
  Offer offer;
  if (blob.size() < sizeof(Offer))
    return internal_error("{}: rank {} sent {} bytes, at least {} are an offer", topic, rank,
                          blob.size(), sizeof(Offer));
  std::memcpy(&offer, blob.data(), sizeof(Offer));
  if (offer.code != 0)
    return Status(static_cast<Code>(offer.code),
                  fmt::format("{}: rank {}: {}", topic, rank, blob.substr(sizeof(Offer))));
  return offer;
}

Result<Offer> make_offer(sys::Cuda& cuda, const WindowRequest& request) {
  BRAID_RETURN_IF_ERROR(request.refusal);
  Offer offer;
  offer.pid = getpid();
  offer.device = request.device;
  offer.address = request.memory;
  offer.bytes = request.bytes;
  BRAID_ASSIGN_OR_RETURN(const sys::PointerFacts facts, cuda.pointer_facts(request.memory));
  if (facts.kind != sys::MemoryKind::kDevice || !facts.is_legacy_ipc_capable)
    return unsupported("memory at {:#x} cannot be shared by CUDA IPC", request.memory);
  BRAID_ASSIGN_OR_RETURN(const sys::AddressRange range, cuda.address_range(request.memory));
  if (request.memory + request.bytes > range.base + range.bytes)
    return invalid_argument("{} bytes at {:#x} reach over the end of their allocation ({} bytes)",
                            request.bytes, request.memory, range.bytes);
  offer.offset_bytes = request.memory - range.base;
  BRAID_ASSIGN_OR_RETURN(offer.handle, cuda.export_ipc(request.memory));
  return offer;
}

/// Everybody's Status becomes everybody's: the lowest rank's refusal, or ok.
Status agree(group::Group& group, const std::string& topic, const Status& own, Deadline deadline) {
  Offer verdict;
  verdict.code = static_cast<int32_t>(own.code());
  BRAID_ASSIGN_OR_RETURN(const auto blobs,
                         group.exchange(topic, encode(verdict, own.message()), deadline));
  for (size_t r = 0; r < blobs.size(); ++r)
    BRAID_RETURN_IF_ERROR(decode(blobs[r], static_cast<int>(r), topic).status());
  return {};
}

}  // namespace

Window::Window(Window&& other) noexcept
    : cuda_(std::exchange(other.cuda_, nullptr)),
      bytes_(other.bytes_),
      by_rank_(std::move(other.by_rank_)),
      opened_(std::move(other.opened_)) {}

Window& Window::operator=(Window&& other) noexcept {
  if (this == &other) return *this;
  close();
  cuda_ = std::exchange(other.cuda_, nullptr);
  bytes_ = other.bytes_;
  by_rank_ = std::move(other.by_rank_);
  opened_ = std::move(other.opened_);
  return *this;
}

Window::~Window() { close(); }

void Window::close() {
  if (cuda_ == nullptr) return;
  for (const sys::DevicePtr base : opened_) (void)cuda_->close_ipc(base);
  opened_.clear();
  by_rank_.clear();
}

Result<Window> share_window(group::Group& group, sys::Cuda& cuda, const WindowRequest& request,
                            Deadline deadline) {
  Result<Offer> own = make_offer(cuda, request);
  Offer sent = own.ok() ? own.value() : Offer{};
  sent.code = static_cast<int32_t>(own.status().code());
  BRAID_ASSIGN_OR_RETURN(
      const auto blobs,
      group.exchange(request.topic, encode(sent, own.status().message()), deadline));

  std::vector<sys::DevicePtr> by_rank, opened;
  const auto open = [&](int rank) -> Status {
    BRAID_ASSIGN_OR_RETURN(const Offer offer,
                           decode(blobs[static_cast<size_t>(rank)], rank, request.topic));
    if (offer.bytes != request.bytes)
      return invalid_argument("{}: rank {} has {} bytes, rank {} has {}", request.topic,
                              group.rank(), request.bytes, rank, offer.bytes);
    if (offer.pid == getpid()) {  // this rank, or ranks that are threads of one process
      if (offer.device != request.device)
        BRAID_RETURN_IF_ERROR(cuda.enable_peer_access(offer.device));
      by_rank.push_back(offer.address);
      return {};
    }
    BRAID_ASSIGN_OR_RETURN(const sys::DevicePtr base, cuda.open_ipc(offer.handle));
    opened.push_back(base);
    by_rank.push_back(base + offer.offset_bytes);
    return {};
  };
  Status status;
  for (int r = 0; r < group.size() && status.ok(); ++r) status = open(r);
  Window window(cuda, request.bytes, std::move(by_rank), std::move(opened));
  BRAID_RETURN_IF_ERROR(agree(group, request.topic + " opened", status, deadline));
  return window;
}

}  // namespace braid::nvlink
