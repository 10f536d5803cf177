// Driving mirrors in tests: the ends of all ranks, with the ring's kernel on the CPU
// (support/fake_kernels.h), moved by one thread, so that a seed tells the whole story.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/units.h"
#include "support/fake_kernels.h"
#include "support/thread_group.h"
#include "sys/fabric/fake.h"
#include "transport/rdma/mirror.h"

namespace braid::transport::rdma {

inline MirrorOptions mirror_options(int rank, uint32_t num_slots = 3) {
  MirrorOptions options;
  options.provider = "fake";
  options.address = "rank" + std::to_string(rank);
  options.slot_bytes = 384;
  options.num_slots = num_slots;
  options.num_lanes = 2;
  return options;
}

/// Byte `at` of what `from` sends to `to` (or to everyone) in transfer `call`.
inline std::byte mirror_byte(int from, int to, uint64_t call, uint64_t at) {
  constexpr uint64_t kMix = 0x9e3779b97f4a7c15;
  const auto ends = static_cast<uint64_t>(from) << 56 ^ static_cast<uint64_t>(to) << 48;
  return static_cast<std::byte>((ends ^ call << 32 ^ at) * kMix >> 56);
}

/// One rank: its mirrors, and what its GPU would have.
class MirrorEnd {
 public:
  MirrorEnd(std::unique_ptr<Mirrors> mirrors, int rank, int size,
            int64_t timeout_ns = 20'000'000'000)
      : mirrors_(std::move(mirrors)), rank_(rank), size_(size) {
    team_.rank = rank;
    team_.size = size;
    team_.timeout_ns = timeout_ns;
    team_.fault = &fault_;
    team_.must_abort = &must_abort_;
    team_.has_failed = &has_failed_;
    ring_.progress = progress_.get();
    ring_.slot_bytes = mirrors_->options().slot_bytes;
    ring_.num_slots = mirrors_->options().num_slots;
    ring_.num_lanes = mirrors_->options().num_lanes;
    for (int r = 0; r < size; ++r) ring_.segment[r] = mirrors_->segment(r);
    fake_team_ = std::make_unique<test::FakeTeam>(team_);
  }
  MirrorEnd(const MirrorEnd&) = delete;
  MirrorEnd& operator=(const MirrorEnd&) = delete;

  Mirrors& mirrors() { return *mirrors_; }
  const device::Fault& fault() const { return fault_; }
  void close() { mirrors_.reset(); }

  /// Enqueues transfer `call`: `bytes` to everyone, or to each peer its own.
  void begin(uint64_t call, uint64_t bytes, bool everyone) {
    call_ = call;
    everyone_ = everyone;
    bytes_ = bytes;
    in_.assign(static_cast<size_t>(size_), std::vector<std::byte>(bytes, std::byte{0xEE}));
    out_.assign(static_cast<size_t>(size_), std::vector<std::byte>(bytes));
    flows_.clear();
    blocks_.clear();
    for (int r = 0; r < size_; ++r) {
      const auto i = static_cast<size_t>(r);
      for (uint64_t at = 0; at < bytes; ++at)
        out_[i][at] = mirror_byte(rank_, everyone ? size_ : r, call, at);
      if (r == rank_ && everyone) flows_.push_back({rank_, size_, out_[i].data(), nullptr, bytes});
      if (r == rank_) continue;
      if (!everyone) flows_.push_back({rank_, r, out_[i].data(), nullptr, bytes});
      flows_.push_back({r, everyone ? size_ : rank_, nullptr, in_[i].data(), bytes});
    }
    const int num_lanes = mirrors_->options().num_lanes;
    for (const pcie::Flow& flow : flows_)
      for (int lane = 0; lane < num_lanes; ++lane)
        blocks_.push_back(std::make_unique<test::FakeRingBlock>(
            *fake_team_, ring_, flow, lane, num_lanes, static_cast<int>(blocks_.size())));
  }
  /// One look of the GPU and one of the proxy.
  void step() {
    std::erase_if(blocks_, [](auto& block) { return !block->step(); });
    mirrors_->progress();
  }
  bool is_done() const { return blocks_.empty(); }
  /// What is wrong with what came, or "".
  std::string wrong() const {
    if (fault_.code != 0) return fmt::format("rank {}: fault", rank_);
    for (int r = 0; r < size_; ++r)
      for (uint64_t at = 0; r != rank_ && at < bytes_; ++at)
        if (in_[static_cast<size_t>(r)][at] != mirror_byte(r, everyone_ ? size_ : rank_, call_, at))
          return fmt::format("rank {}: byte {} of {} from rank {} in call {}", rank_, at, bytes_, r,
                             call_);
    return "";
  }

 private:
  std::unique_ptr<Mirrors> mirrors_;
  const int rank_, size_;
  nvlink::Team team_{};
  device::Fault fault_{};
  uint32_t must_abort_ = 0, has_failed_ = 0;
  std::unique_ptr<pcie::RingProgress> progress_ = std::make_unique<pcie::RingProgress>();
  pcie::HostRing ring_{};
  std::unique_ptr<test::FakeTeam> fake_team_;
  uint64_t call_ = 0, bytes_ = 0;
  bool everyone_ = false;
  std::vector<std::vector<std::byte>> in_, out_;
  std::vector<pcie::Flow> flows_;
  std::vector<std::unique_ptr<test::FakeRingBlock>> blocks_;
};

/// Connected mirrors in rank order.
inline std::vector<std::unique_ptr<Mirrors>> connect_all_mirrors(sys::FakeFabric& fabric, int size,
                                                                 uint32_t num_slots = 3) {
  std::vector<std::unique_ptr<Mirrors>> all(static_cast<size_t>(size));
  test::run_thread_ranks(size, [&](group::Group& group) {
    auto made = connect_mirrors(&fabric, group, mirror_options(group.rank(), num_slots),
                                Deadline::after_ns(10'000'000'000));
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    all[static_cast<size_t>(group.rank())] = std::move(made).value();
  });
  return all;
}

using MirrorEnds = std::vector<std::unique_ptr<MirrorEnd>>;

inline MirrorEnds make_ends(sys::FakeFabric& fabric, int size, uint32_t num_slots = 3,
                            int64_t timeout_ns = 20'000'000'000) {
  MirrorEnds ends;
  auto mirrors = connect_all_mirrors(fabric, size, num_slots);
  for (int r = 0; r < size; ++r)
    ends.push_back(std::make_unique<MirrorEnd>(std::move(mirrors[static_cast<size_t>(r)]), r, size,
                                               timeout_ns));
  return ends;
}

/// One transfer of all ranks; what went wrong, or "".
inline std::string transfer(MirrorEnds& ends, uint64_t call, uint64_t bytes, bool everyone) {
  for (auto& end : ends) end->begin(call, bytes, everyone);
  const Deadline deadline = Deadline::after_ns(20'000'000'000);
  const auto is_done = [](const auto& end) { return end->is_done(); };
  while (!std::all_of(ends.begin(), ends.end(), is_done)) {
    if (deadline.passed()) return "late";
    for (auto& end : ends) end->step();
  }
  std::string all;
  for (auto& end : ends) all += end->wrong();
  return all;
}

}  // namespace braid::transport::rdma
