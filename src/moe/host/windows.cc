#include "moe/host/windows.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "comm/link_spec.h"
#include "fabric/merge.h"

namespace braid::moe {

namespace {

std::atomic_ref<uint64_t> number_in(std::byte* window, uint64_t line) {
  return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(window + line + kNumberOffset));
}

// The first rdma link of the comm, opened once more for the buffer alone: its pieces and the
// collectives' do not meet.
Result<std::unique_ptr<transport::Lane>> open_lane(comm::Comm::State& state, Deadline deadline) {
  BRAID_ASSIGN_OR_RETURN(const comm::LinkSpecs specs,
                         comm::link_specs(state.config, comm::Hosts::kSeveral));
  for (const comm::LinkSpec& spec : specs.links) {
    if (spec.kind != fabric::LinkKind::kRdma) continue;
    transport::RdmaLaneOptions options;
    options.name = "moe " + spec.name;
    options.provider = spec.provider;
    options.address = spec.address;
    return transport::connect_rdma(*state.group, options, deadline);
  }
  return unavailable("moe: the ranks are on several hosts and the comm has no rdma link");
}

bool is_one_host(const transport::Segments& segments) {
  for (int r = 0; r < segments.size(); ++r)
    if (segments.of(r) == nullptr) return false;
  return true;
}

}  // namespace

void publish(std::byte* window, uint64_t line, std::span<const std::byte> words, uint64_t number) {
  if (!words.empty()) std::memcpy(window + line, words.data(), words.size());
  number_in(window, line).store(number, std::memory_order_release);  // pairs with acquire()
}

Result<std::unique_ptr<HostWindows>> HostWindows::connect(comm::Comm::State& state,
                                                          const WindowLayout& layout,
                                                          Deadline deadline) {
  const std::string& host_id = state.config.text("BRAID_HOST_ID");
  transport::SegmentRequest request;
  request.topic = "moe window";
  request.bytes = layout.bytes();
  request.shape = fmt::format("{}x{}", layout.num_ranks, layout.half_bytes);
  request.needs_one_host = false;
  request.host_id = host_id;
  BRAID_ASSIGN_OR_RETURN(transport::Segments segments,
                         transport::share_segments(*state.group, request, deadline));
  BRAID_ASSIGN_OR_RETURN(auto bell, transport::Doorbell::connect(*state.group, deadline, host_id));
  std::unique_ptr<HostWindows> windows(
      new HostWindows(std::move(segments), std::move(bell), state.rank()));
  // Whether a lane is needed must be answered alike by all: by hosts, not by what is mapped here.
  BRAID_ASSIGN_OR_RETURN(
      const auto answers,
      state.group->exchange("moe hosts", is_one_host(windows->segments_) ? "one" : "many",
                            deadline));
  if (std::find(answers.begin(), answers.end(), "many") == answers.end()) return windows;
  BRAID_ASSIGN_OR_RETURN(auto lane, open_lane(state, deadline));
  windows->proxy_ = std::make_unique<Proxy>(
      std::move(lane), layout, windows->own(), state.rank(),
      [bell = windows->bell_.get(), rank = state.rank()] { bell->ring(rank); });
  return windows;
}

std::byte* HostWindows::room(int peer, uint64_t offset, uint64_t bytes) {
  if (peer != rank_) sent_bytes_[static_cast<size_t>(peer)] += bytes;
  std::byte* const window = window_of(peer);
  return window != nullptr ? window + offset : proxy_->room(peer, offset, bytes);
}

void HostWindows::signal(int peer, uint64_t line, std::span<const std::byte> words,
                         uint64_t number) {
  if (peer != rank_) sent_bytes_[static_cast<size_t>(peer)] += kLineBytes;
  std::byte* const window = window_of(peer);
  if (window == nullptr) return proxy_->signal(peer, line, words, number);
  publish(window, line, words, number);
  if (peer != rank_) bell_->ring(peer);
}

uint64_t HostWindows::acquire(uint64_t line) const {
  return number_in(window_of(rank_), line).load(std::memory_order_acquire);
}

void HostWindows::cut(int peer) {
  if (proxy_) proxy_->cut(peer);
}

Status HostWindows::health(int peer) const {
  if (peer == rank_ || window_of(peer) != nullptr) return {};
  return proxy_->health(peer);
}

}  // namespace braid::moe
