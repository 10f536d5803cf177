// A FakeCuda that does no work and writes down what calls enqueue, by meaning: kernels with what
// they are told, copies, fills, points recorded on streams and waits for them, in the order of their
// enqueuing. Addresses are told as places in memory that the test has named ("scratch[2]+4096"),
// streams and points by the order in which a call first uses them. So two records are equal when
// two versions of the library have the same GPU do the same.
//
// What is left out: teams and signal pads, which are the same in every call; signatures, which tell calls
// apart and whose values mean nothing.
//
// Threads: as FakeCuda. A record belongs to the thread that enqueues, which is one rank's.
#pragma once

#include <fmt/format.h>

#include <map>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "coll/device/all_kernels.h"
#include "coll/direct/direct.h"
#include "coll/packets/packets.h"
#include "coll/reduce/reduce_args.h"
#include "coll/relay/relay.h"
#include "support/fake_kernels.h"

namespace braid::test {

class RecordingCuda : public sys::FakeCuda {
 public:
  explicit RecordingCuda(int num_devices) : FakeCuda(num_devices) {
    define_all_kernels(*this);
    for (const char* name :
         {"braid_barrier", "braid_barrier_of_pairs", "braid_meet_pairs", "braid_short_blocks",
          "braid_hold", "braid_local_copy", "braid_host_ring", "braid_host_ring_bulk"})
      define_kernel(name, [](const sys::LaunchShape&, std::span<void*>) { return Status(); });
  }

  /// From now on this thread's records tell addresses in there by that name. The last name counts.
  void name(sys::DevicePtr begin, uint64_t bytes, const std::string& name) {
    const std::lock_guard lock(mutex_);
    mine().places.insert_or_assign(begin, Place{begin + bytes, name});
  }
  /// A record of this thread's next call begins; `user` is its stream.
  void begin_call(sys::Stream user, bool is_captured) {
    const std::lock_guard lock(mutex_);
    Record& record = mine();
    record.lines.clear();
    record.points.clear();
    record.streams = {{user.handle, "user"}};
    record.is_captured = is_captured;
  }
  /// What this thread has enqueued since.
  std::vector<std::string> lines() {
    const std::lock_guard lock(mutex_);
    return mine().lines;
  }

  Result<sys::CaptureState> capture_state(sys::Stream /*stream*/) override {
    const std::lock_guard lock(mutex_);
    return mine().is_captured ? sys::CaptureState::kActive : sys::CaptureState::kNone;
  }
  Result<uint64_t> capture_id(sys::Stream /*stream*/) override {
    const std::lock_guard lock(mutex_);
    return mine().is_captured ? 1 : 0;
  }
  Status record(sys::Event event, sys::Stream stream) override {
    const std::lock_guard lock(mutex_);
    Record& record = mine();
    const size_t number = record.points.size();
    record.points[event.handle] = fmt::format("p{}", number);
    add(stream, "record " + record.points[event.handle]);
    return {};
  }
  Status wait_event(sys::Stream stream, sys::Event event) override {
    const std::lock_guard lock(mutex_);
    const auto found = mine().points.find(event.handle);
    add(stream, "wait " + (found == mine().points.end() ? "earlier" : found->second));
    return {};
  }
  Status copy(sys::DevicePtr to, sys::DevicePtr from, uint64_t bytes, sys::Stream stream) override {
    return note_copy(stream, "copy", to, from, bytes);
  }
  Status copy_on_device(sys::DevicePtr to, sys::DevicePtr from, uint64_t bytes,
                        sys::Stream stream) override {
    return note_copy(stream, "copy", to, from, bytes);
  }
  Status copy_batch(std::span<const sys::DeviceCopy> copies, sys::Stream stream) override {
    for (const sys::DeviceCopy& each : copies)
      (void)note_copy(stream, "copy of a batch", each.to, each.from, each.bytes);
    return {};
  }
  Status fill(sys::DevicePtr to, uint8_t value, uint64_t bytes, sys::Stream stream) override {
    const std::lock_guard lock(mutex_);
    add(stream, fmt::format("fill {} with {} {}", place(to), value, bytes));
    return {};
  }
  Result<sys::Kernel> kernel(sys::Module module, const char* name) override {
    Result<sys::Kernel> found = FakeCuda::kernel(module, name);
    const std::lock_guard lock(mutex_);
    if (found.ok()) names_[found.value().handle] = name;
    return found;
  }
  Status launch_kernel(sys::Kernel kernel, const sys::LaunchShape& shape, sys::Stream stream,
                       std::span<void*> arguments) override {
    const std::lock_guard lock(mutex_);
    const std::string& name = names_[kernel.handle];
    add(stream, fmt::format("{} {}x{} shared {}{}", name, shape.num_blocks, shape.num_threads,
                            shape.shared_bytes, told(name, arguments)));
    return {};
  }

 private:
  struct Place {
    sys::DevicePtr end;
    std::string name;
  };
  struct Record {
    std::map<sys::DevicePtr, Place> places;
    std::map<void*, std::string> streams, points;
    std::vector<std::string> lines;
    bool is_captured = false;
  };

  Record& mine() { return records_[std::this_thread::get_id()]; }
  void add(sys::Stream stream, const std::string& what) {
    Record& record = mine();
    const std::string next = fmt::format("s{}", record.streams.size());
    record.lines.push_back(record.streams.try_emplace(stream.handle, next).first->second + " " +
                           what);
  }
  std::string place(sys::DevicePtr address) {
    if (address == 0) return "none";
    const std::map<sys::DevicePtr, Place>& places = mine().places;
    auto found = places.upper_bound(address);
    if (found == places.begin() || address >= (--found)->second.end) return "unnamed";
    return fmt::format("{}+{}", found->second.name, address - found->first);
  }
  std::string place(const void* address) { return place(reinterpret_cast<uintptr_t>(address)); }
  Status note_copy(sys::Stream stream, const char* what, sys::DevicePtr to, sys::DevicePtr from,
                   uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    add(stream, fmt::format("{} {} from {} {}", what, place(to), place(from), bytes));
    return {};
  }

  /// What a kernel is told, each by its own structure.
  std::string told(const std::string& name, std::span<void*> arguments) {
    if (name == "braid_barrier") return barrier(arguments);
    if (name == "braid_barrier_of_pairs")
      return fmt::format(" channel {}", argument<int32_t>(arguments, 2));
    if (name == "braid_meet_pairs")
      return fmt::format(" with {:#x}", argument<uint32_t>(arguments, 2));
    if (name == "braid_short_blocks") return short_blocks(arguments);
    if (name.starts_with("braid_host_ring")) return ring(arguments);
    if (name == "braid_local_copy")
      return fmt::format(" {} from {} {}", place(argument<sys::DevicePtr>(arguments, 0)),
                         place(argument<sys::DevicePtr>(arguments, 1)),
                         argument<uint64_t>(arguments, 2));
    if (name.starts_with("braid_packets_") || name.starts_with("braid_lines_"))
      return packets(argument<coll::PacketArgs>(arguments, 0));
    if (name.starts_with("braid_direct_")) return direct(argument<coll::DirectArgs>(arguments, 0));
    if (name == "braid_relay") return relay(argument<coll::RelayArgs>(arguments, 0));
    if (name.starts_with("braid_reduce_")) return sum(argument<coll::ReduceArgs>(arguments, 0));
    ADD_FAILURE() << name << " is not known here: nobody would notice what it is told";
    return "";
  }
  static std::string barrier(std::span<void*> arguments) {
    const auto mask = argument<nvlink::BarrierMask>(arguments, 3);
    return fmt::format(" channel {} tells {:#x} hears {:#x}", argument<int32_t>(arguments, 2),
                       mask.tells, mask.hears);
  }
  std::string short_blocks(std::span<void*> arguments) {
    const auto blocks = argument<nvlink::ShortBlocks>(arguments, 3);
    std::string text =
        fmt::format(" channel {} parts {}", argument<int32_t>(arguments, 2), blocks.num_parts);
    for (const nvlink::ShortBlock& b : std::span(blocks.block).first(size_of(blocks.num_blocks)))
      text += fmt::format("; {}: out {} {} to {}, in {} {} by {}", b.peer, place(b.out),
                          b.out_bytes, place(b.theirs), place(b.in), b.in_bytes, place(b.ours));
    return text;
  }
  std::string ring(std::span<void*> arguments) {
    const auto host = argument<pcie::HostRing>(arguments, 1);
    const auto flows = argument<pcie::Flows>(arguments, 2);
    std::string text = fmt::format(" slots {} of {} lanes {} open {}", host.num_slots,
                                   host.slot_bytes, flows.num_lanes, flows.open_tiles);
    for (const pcie::Flow& f : std::span(flows.flow).first(size_of(flows.num_flows)))
      text += fmt::format("; {} key {} {} to {} {}", f.sender, f.key, place(f.source),
                          place(f.destination), f.bytes);
    return text;
  }
  std::string packets(const coll::PacketArgs& args) {
    return fmt::format(" {} to {} {} path {} root {}", place(args.send), place(args.recv),
                       args.bytes, static_cast<int>(args.path), args.root);
  }
  std::string direct(const coll::DirectArgs& args) {
    const coll::DirectShape& shape = args.shape;
    return fmt::format(
        " {} to {} {} stride {} root {} bulk {} in place {} path {} blocks {} {} {} copies in bulk "
        "{}"
        " slot {} chunks {} of {}",
        place(args.send), place(args.recv), args.bytes, args.stride_bytes, args.root,
        args.uses_bulk, args.is_in_place, static_cast<int>(shape.path), shape.push_blocks,
        shape.turn_blocks, shape.copy_blocks, shape.copies_in_bulk, shape.slot_bytes,
        shape.num_chunks, shape.chunk_bytes);
  }
  std::string relay(const coll::RelayArgs& args) {
    std::string text =
        fmt::format(" {} {} by {} root {} bulk {} to", place(args.source), args.shape.bytes,
                    args.shape.unit_bytes, args.root, args.uses_bulk);
    for (int rank = 0; rank < args.team.size; ++rank)
      if (rank != args.root) text += " " + place(args.place[rank]);
    return text;
  }
  std::string sum(const coll::ReduceArgs& args) {
    std::string text = fmt::format(" {} of", args.count_elements);
    for (const void* src : std::span(args.srcs).first(size_of(args.num_srcs)))
      text += " " + place(src);
    text += " to";
    for (const void* dst : std::span(args.dsts).first(size_of(args.num_dsts)))
      text += " " + place(dst);
    return text;
  }
  static size_t size_of(int32_t count) { return static_cast<size_t>(count); }

  std::mutex mutex_;
  std::map<std::thread::id, Record> records_;
  std::map<void*, std::string> names_;  // of kernels
};

}  // namespace braid::test
