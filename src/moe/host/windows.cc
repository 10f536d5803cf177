#include "moe/host/windows.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <charconv>
#include <cstring>

#include "comm/link_spec.h"
#include "fabric/merge.h"
#include "sys/host/api.h"

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

// The ranks whose windows are mapped here, as bits.
uint64_t mapped(const transport::Segments& segments) {
  uint64_t bits = 0;
  for (int r = 0; r < segments.size(); ++r)
    if (segments.of(r) != nullptr) bits |= uint64_t{1} << r;
  return bits;
}

// Nodes by who has mapped whom, numbered in order of their first rank; all ranks come to the same.
// Empty where somebody's answer is not that of its node mates: ranks then reach each other directly.
std::vector<int> nodes_of(std::span<const uint64_t> mapped_by) {
  std::vector<int> nodes(mapped_by.size(), -1);
  int num_nodes = 0;
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    if ((mapped_by[rank] >> rank & 1) == 0) return {};
    const auto first = static_cast<size_t>(std::countr_zero(mapped_by[rank]));
    if (first > rank || mapped_by[first] != mapped_by[rank]) return {};
    nodes[rank] = first == rank ? num_nodes++ : nodes[first];
  }
  return nodes;
}

Result<std::vector<uint64_t>> exchange_mapped(group::Group& group, uint64_t own,
                                              Deadline deadline) {
  BRAID_ASSIGN_OR_RETURN(const auto answers,
                         group.exchange("moe hosts", fmt::format("{:x}", own), deadline));
  std::vector<uint64_t> mapped_by(answers.size());
  for (size_t rank = 0; rank < answers.size(); ++rank) {
    const char* const end = answers[rank].data() + answers[rank].size();
    if (std::from_chars(answers[rank].data(), end, mapped_by[rank], 16).ptr != end)
      return internal_error("moe: rank {} says that it has mapped '{}'", rank, answers[rank]);
  }
  return mapped_by;
}

}  // namespace

void publish(std::byte* window, uint64_t line, std::span<const std::byte> words, uint64_t number) {
  if (!words.empty()) std::memcpy(window + line, words.data(), words.size());
  number_in(window, line).store(number, std::memory_order_release);  // pairs with acquire()
}

Result<std::unique_ptr<HostWindows>> HostWindows::connect(comm::Comm::State& state,
                                                          const WindowLayout& layout,
                                                          bool uses_rails, Deadline deadline) {
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
  const uint64_t own = mapped(windows->segments_);
  BRAID_ASSIGN_OR_RETURN(const auto mapped_by, exchange_mapped(*state.group, own, deadline));
  const uint64_t everyone = ~uint64_t{0} >> (transport::kMaxRanks - state.size());
  if (std::ranges::all_of(mapped_by, [&](uint64_t each) { return each == everyone; }))
    return windows;
  if (uses_rails) {
    const fabric::NodeMap map = fabric::node_map_of(nodes_of(mapped_by));
    if (map.has_stages()) windows->nodes_ = map;
  }
  BRAID_ASSIGN_OR_RETURN(auto lane, open_lane(state, deadline));
  windows->start_proxy(std::move(lane), layout, state);
  return windows;
}

void HostWindows::start_proxy(std::unique_ptr<transport::Lane> lane, const WindowLayout& layout,
                              comm::Comm::State& state) {
  Proxy::Neighbours neighbours;
  neighbours.nodes = nodes_;
  // Only along rails does this rank land what is for others.
  for (int r = 0; r < segments_.size(); ++r)
    neighbours.windows.push_back(r == rank_ || nodes_.has_stages() ? window_of(r) : nullptr);
  neighbours.landed = [bell = bell_.get()](int target) { bell->ring(target); };
  neighbours.are_over = [&state] {
    return state.is_closed || state.group == nullptr || state.group->broken();
  };
  // Each rank has this thread besides its own.
  neighbours.is_oversubscribed = 2 * std::popcount(mapped(segments_)) > sys::usable_cores();
  proxy_ = std::make_unique<Proxy>(std::move(lane), layout, std::move(neighbours), rank_);
}

std::byte* HostWindows::room(int peer, uint64_t offset, uint64_t bytes) {
  std::byte* const window = window_of(peer);
  if (window == nullptr) return proxy_->room(peer, offset, bytes);
  if (peer != rank_) sent_bytes_[static_cast<size_t>(peer)] += bytes;
  return window + offset;
}

void HostWindows::put(std::span<const Place> places, std::span<const std::byte> bytes) {
  far_.clear();
  for (const Place& place : places) {
    if (window_of(place.peer) == nullptr)
      far_.push_back(place);
    else
      std::memcpy(room(place.peer, place.offset, bytes.size()), bytes.data(), bytes.size());
  }
  // All that goes the same way in one record; ways are few.
  while (!far_.empty()) {
    const int way = proxy_->way_to(far_.front().peer);
    const auto rest = std::stable_partition(
        far_.begin(), far_.end(), [&](const Place& p) { return proxy_->way_to(p.peer) == way; });
    proxy_->put({far_.begin(), rest}, bytes);
    far_.erase(far_.begin(), rest);
  }
}

void HostWindows::signal(int peer, uint64_t line, std::span<const std::byte> words,
                         uint64_t number) {
  std::byte* const window = window_of(peer);
  if (window == nullptr) return proxy_->signal(peer, line, words, number);
  if (peer != rank_) sent_bytes_[static_cast<size_t>(peer)] += kLineBytes;
  publish(window, line, words, number);
  if (peer != rank_) bell_->ring(peer);
}

uint64_t HostWindows::sent_bytes(int peer) const {
  return sent_bytes_[static_cast<size_t>(peer)] + (proxy_ ? proxy_->carried_bytes(peer) : 0);
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
