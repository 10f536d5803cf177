// A FakeCuda that captures graphs: between begin_capture() and end_capture() work on a stream, and
// on streams that wait for it, is written down with its arguments' bytes, as a driver does, and
// done by replay(), any number of times. What a call would have to work out anew each time and
// wrote into its arguments is stale there.
//
// As the driver, it refuses to let captured work wait for an event of work that is not, and the
// other way round.
//
// Threads: as FakeCuda; a capture belongs to the thread that began it, and so does its graph.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "coll/direct/direct.h"
#include "coll/packets/packets.h"
#include "coll/reduce/reduce_args.h"
#include "coll/relay/relay.h"
#include "support/fake_kernels.h"

namespace braid::test {

/// Work in the order of its enqueuing, which is one that its events allow.
struct Graph {
  std::vector<std::function<Status()>> work;
  std::vector<std::string> bytes;  // of each piece: its kind and arguments
};

class GraphCuda : public sys::FakeCuda {
 public:
  using FakeCuda::FakeCuda;

  void begin_capture(sys::Stream stream) {
    const std::lock_guard lock(mutex_);
    captured_[stream.handle] = &graphs_[stream.handle];
    graphs_[stream.handle] = {};
    ids_[&graphs_[stream.handle]] = ++last_id_;
  }
  /// How often `waiter` was made to wait for a point of `other`.
  int64_t num_waits(sys::Stream waiter, sys::Stream other) {
    const std::lock_guard lock(mutex_);
    return std::count(waits_.begin(), waits_.end(), std::pair(waiter.handle, other.handle));
  }
  Graph end_capture(sys::Stream stream) {
    const std::lock_guard lock(mutex_);
    Graph* const graph = &graphs_[stream.handle];
    std::erase_if(captured_, [&](const auto& each) { return each.second == graph; });
    std::erase_if(points_, [&](const auto& each) { return each.second == graph; });
    most_work_.erase(graph);
    return std::move(*graph);
  }
  static Status replay(const Graph& graph) {
    for (const auto& piece : graph.work) BRAID_RETURN_IF_ERROR(piece());
    return {};
  }

  /// What a library beside ours, such as NCCL, does on a stream; `what` tells one piece from another.
  Status library_work(sys::Stream stream, const std::string& what, std::function<Status()> piece) {
    return enqueue(stream, what, std::move(piece));
  }

  /// replay() on the thread's device, whose memory nobody frees meanwhile: the driver's frees wait for
  /// what a device does. Nothing of it where `is_over` says that what it uses may be gone by now.
  Status run(const Graph& graph, const std::function<bool()>& is_over = [] { return false; }) {
    const int device = current_device().value();
    {
      const std::lock_guard lock(replays_mutex_);
      if (is_over()) return unavailable("graph cuda: what the graph uses may be gone");
      ++num_replays_[device];
    }
    const Status done = replay(graph);
    const std::lock_guard lock(replays_mutex_);
    --num_replays_[device];
    replays_changed_.notify_all();
    return done;
  }
  /// Nothing on a device is done while one of its graphs is replayed.
  Result<bool> is_done(sys::Stream stream) override {
    return is_replaying() ? Result<bool>(false) : FakeCuda::is_done(stream);
  }
  Result<bool> is_done(sys::Event event) override {
    return is_replaying() ? Result<bool>(false) : FakeCuda::is_done(event);
  }
  Status synchronize_device() override {
    await_replays();
    return FakeCuda::synchronize_device();
  }
  Status free(sys::DevicePtr memory) override {
    await_replays();
    return FakeCuda::free(memory);
  }
  Status unmap(sys::DevicePtr at, uint64_t bytes) override {
    await_replays();
    return FakeCuda::unmap(at, bytes);
  }

  /// As an unsafe call of some other thread does: after so much more work the capture that is under
  /// way takes none.
  void invalidate_capture(sys::Stream stream, size_t after = 0) {
    const std::lock_guard lock(mutex_);
    Graph* const graph = captured_.at(stream.handle);
    most_work_[graph] = graph->work.size() + after;
  }
  Result<sys::CaptureState> capture_state(sys::Stream stream) override {
    const Graph* const graph = graph_of(stream);
    if (graph == nullptr) return sys::CaptureState::kNone;
    return is_invalid(graph) ? sys::CaptureState::kInvalidated : sys::CaptureState::kActive;
  }
  Result<uint64_t> capture_id(sys::Stream stream) override {
    const Graph* const graph = graph_of(stream);
    const std::lock_guard lock(mutex_);
    return graph != nullptr ? ids_.at(graph) : 0;
  }
  Status record(sys::Event event, sys::Stream stream) override {
    Graph* const graph = graph_of(stream);
    const std::lock_guard lock(mutex_);
    recorded_on_[event.handle] = stream.handle;
    points_[event.handle] = graph;
    return graph != nullptr ? Status() : FakeCuda::record(event, stream);
  }
  Status wait_event(sys::Stream stream, sys::Event event) override {
    Graph* const graph = graph_of(stream);
    const std::lock_guard lock(mutex_);
    Graph* const recorded = points_[event.handle];
    waits_.emplace_back(stream.handle, recorded_on_[event.handle]);
    if (graph == recorded) return graph != nullptr ? Status() : FakeCuda::wait_event(stream, event);
    if (graph != nullptr) return driver_error("graph cuda: captured work waits for other work");
    captured_[stream.handle] = recorded;  // the stream joins the capture
    return {};
  }

  Status copy(sys::DevicePtr to, sys::DevicePtr from, uint64_t bytes, sys::Stream stream) override {
    return enqueue(stream, bytes_of("copy", to, from, bytes),
                   [=, this] { return FakeCuda::copy(to, from, bytes, stream); });
  }
  Status copy_on_device(sys::DevicePtr to, sys::DevicePtr from, uint64_t bytes,
                        sys::Stream stream) override {
    return enqueue(stream, bytes_of("copy", to, from, bytes),
                   [=, this] { return FakeCuda::copy_on_device(to, from, bytes, stream); });
  }
  Status copy_batch(std::span<const sys::DeviceCopy> copies, sys::Stream stream) override {
    for (const sys::DeviceCopy& each : copies)
      BRAID_RETURN_IF_ERROR(copy_on_device(each.to, each.from, each.bytes, stream));
    return {};
  }
  Status fill(sys::DevicePtr to, uint8_t value, uint64_t bytes, sys::Stream stream) override {
    return enqueue(stream, bytes_of("fill", to, value, bytes),
                   [=, this] { return FakeCuda::fill(to, value, bytes, stream); });
  }
  Result<sys::Kernel> kernel(sys::Module module, const char* name) override {
    Result<sys::Kernel> found = FakeCuda::kernel(module, name);
    const std::lock_guard lock(mutex_);
    if (found.ok()) names_[found.value().handle] = name;
    return found;
  }
  Status launch_kernel(sys::Kernel kernel, const sys::LaunchShape& shape, sys::Stream stream,
                       std::span<void*> arguments) override {
    std::vector<std::string> values = copies_of(kernel, arguments);
    std::string bytes = bytes_of("launch", kernel.handle, shape.num_blocks, shape.num_threads);
    for (const std::string& value : values) bytes += value;
    return enqueue(stream, bytes, [=, this]() mutable {
      std::vector<void*> pointers;
      for (std::string& value : values) pointers.push_back(value.data());
      return FakeCuda::launch_kernel(kernel, shape, stream, pointers);
    });
  }

 private:
  bool is_replaying() {
    const auto device = current_device();
    const std::lock_guard lock(replays_mutex_);
    return device.ok() && num_replays_[device.value()] > 0;
  }
  void await_replays() {
    const auto device = current_device();
    if (!device.ok()) return;
    std::unique_lock lock(replays_mutex_);
    replays_changed_.wait(lock, [&] { return num_replays_[device.value()] == 0; });
  }
  Graph* graph_of(sys::Stream stream) {
    const std::lock_guard lock(mutex_);
    const auto found = captured_.find(stream.handle);
    return found == captured_.end() ? nullptr : found->second;
  }
  bool is_invalid(const Graph* graph) {
    const std::lock_guard lock(mutex_);
    const auto found = most_work_.find(graph);
    return found != most_work_.end() && graph->work.size() >= found->second;
  }
  Status enqueue(sys::Stream stream, std::string bytes, std::function<Status()> piece) {
    Graph* const graph = graph_of(stream);
    if (graph == nullptr) return piece();
    if (is_invalid(graph)) return driver_error("graph cuda: the capture is invalid");
    graph->work.push_back(std::move(piece));
    graph->bytes.push_back(std::move(bytes));
    return {};
  }
  template <typename... Values>
  static std::string bytes_of(const char* kind, const Values&... values) {
    std::string bytes = kind;
    (bytes.append(reinterpret_cast<const char*>(&values), sizeof values), ...);
    return bytes;
  }
  /// The driver knows how large a kernel's parameters are; here the name tells.
  std::vector<std::string> copies_of(sys::Kernel kernel, std::span<void*> arguments) {
    std::string name;
    {
      const std::lock_guard lock(mutex_);
      name = names_[kernel.handle];
    }
    std::vector<size_t> sizes;
    if (name == "braid_barrier")
      sizes = {sizeof(nvlink::Team), sizeof(nvlink::SignalPad), sizeof(int32_t),
               sizeof(nvlink::BarrierMask)};
    else if (name == "braid_barrier_of_pairs")
      sizes = {sizeof(nvlink::Team), sizeof(nvlink::SignalPad), sizeof(int32_t),
               sizeof(nvlink::PairSignatures)};
    else if (name == "braid_short_blocks")
      sizes = {sizeof(nvlink::Team), sizeof(nvlink::SignalPad), sizeof(int32_t),
               sizeof(nvlink::ShortBlocks)};
    else if (name == "braid_meet_pairs")
      sizes = {sizeof(nvlink::Team), sizeof(nvlink::SignalPad), sizeof(uint32_t)};
    else if (name.starts_with("braid_host_ring"))
      sizes = {sizeof(nvlink::Team), sizeof(pcie::HostRing), sizeof(pcie::Flows)};
    else if (name == "braid_local_copy")
      sizes = {sizeof(std::byte*), sizeof(const std::byte*), sizeof(uint64_t)};
    else if (name.starts_with("braid_packets_") || name.starts_with("braid_lines_"))
      sizes = {sizeof(coll::PacketArgs)};
    else if (name.starts_with("braid_direct_"))
      sizes = {sizeof(coll::DirectArgs)};
    else if (name == "braid_relay")
      sizes = {sizeof(coll::RelayArgs)};
    else if (name.starts_with("braid_reduce_") || name.starts_with("braid_widen_") ||
             name.starts_with("braid_narrow_"))
      sizes = {sizeof(coll::ReduceArgs)};
    EXPECT_EQ(sizes.size(), arguments.size()) << name;
    std::vector<std::string> values;
    for (size_t i = 0; i < std::min(sizes.size(), arguments.size()); ++i)
      values.emplace_back(static_cast<const char*>(arguments[i]), sizes[i]);
    return values;
  }

  std::mutex replays_mutex_;  // of the next two
  std::condition_variable replays_changed_;
  std::map<int, int> num_replays_;  // under way, by device

  std::mutex mutex_;
  std::map<void*, Graph> graphs_;     // under capture, by the stream where it began
  std::map<void*, Graph*> captured_;  // streams
  std::map<void*, Graph*> points_;    // events: the capture that recorded them; null: none
  std::map<void*, std::string> names_;
  std::map<const Graph*, uint64_t> ids_;
  std::map<const Graph*, size_t> most_work_;  // of captures that become invalid
  uint64_t last_id_ = 0;
  std::map<void*, void*> recorded_on_;          // events: the stream of their last point
  std::vector<std::pair<void*, void*>> waits_;  // streams: who waited for whom
};

}  // namespace braid::test
