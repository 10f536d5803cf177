#include "transport/nvlink/handover.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>

#include "sys/fds/api.h"
#include "transport/nvlink/handover_note.h"

namespace braid::nvlink {

namespace {

constexpr std::string_view kRefusal = "no ";
constexpr int kLookEveryMs = 2;  // at the boxes of peers that were full, and at the deadline

class Handover {
 public:
  Handover(group::Group& group, sys::Cuda& cuda, const HandoverRequest& request, sys::FdBox box,
           std::vector<std::string> addresses)
      : group_(group),
        cuda_(cuda),
        request_(request),
        box_(std::move(box)),
        addresses_(std::move(addresses)),
        num_sent_(addresses_.size()),
        num_taken_(addresses_.size()),
        mapped_(addresses_.size()) {}

  Result<std::vector<MappedParts>> run(Deadline deadline) {
    reserve_all();
    while (!is_over()) {
      bool has_moved = take_letters();
      for (int peer = 0; peer < group_.size(); ++peer) has_moved |= send_to(peer);
      if (has_moved) continue;
      if (group_.broken()) return group_.fate();
      if (deadline.passed() && !status_.ok()) return status_;  // which may be why
      if (deadline.passed())
        return timeout("{}: {} did not come in time", request_.topic, who_is_missing());
      box_.wait(kLookEveryMs);
    }
    if (!status_.ok()) return status_;
    return std::move(mapped_);
  }

 private:
  const std::vector<uint64_t>& parts_of(int rank) const {
    return request_.bytes_of_parts[static_cast<size_t>(rank)];
  }
  bool is_taken(int rank) const {
    return rank == group_.rank() || num_taken_[static_cast<size_t>(rank)] >= parts_of(rank).size();
  }
  bool is_sent(int rank) const {
    return rank == group_.rank() ||
           num_sent_[static_cast<size_t>(rank)] >= request_.own->parts().size();
  }
  bool is_over() const {
    for (int rank = 0; rank < group_.size(); ++rank)
      if (!is_taken(rank) || !is_sent(rank)) return false;
    return true;
  }
  std::string who_is_missing() const {
    for (int rank = 0; rank < group_.size(); ++rank)
      if (!is_taken(rank) || !is_sent(rank)) return fmt::format("rank {}", rank);
    return "nobody";
  }
  /// The first thing that went wrong here stays the Status.
  void note(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

  void reserve_all() {
    for (int rank = 0; rank < group_.size(); ++rank) {
      const std::vector<uint64_t>& parts = parts_of(rank);
      if (rank == group_.rank() || parts.empty()) continue;
      auto made =
          MappedParts::reserve(cuda_, std::accumulate(parts.begin(), parts.end(), uint64_t{0}));
      note(made.status());
      if (made.ok()) mapped_[static_cast<size_t>(rank)] = std::move(made).value();
    }
  }

  // ---- sending ----

  Result<std::vector<sys::Fd>> exported(uint64_t first, uint64_t count) {
    std::vector<sys::Fd> fds;
    for (uint64_t i = first; i < first + count; ++i) {
      BRAID_ASSIGN_OR_RETURN(sys::Fd fd,
                             cuda_.export_allocation(request_.own->parts()[i].allocation.get()));
      fds.push_back(std::move(fd));
    }
    return fds;
  }

  /// Whether a letter went.
  bool send_to(int peer) {
    if (is_sent(peer)) return false;
    uint64_t& sent = num_sent_[static_cast<size_t>(peer)];
    const uint64_t num_parts = request_.own->parts().size();
    HandoverNote what{
        group_.rank(), sent, std::min<uint64_t>(num_parts - sent, sys::kMostFdsOfLetter), {}};
    auto fds = exported(what.first, what.count);
    if (!fds.ok()) {
      note(fds.status());
      what.count = 0;
      what.why = fds.status().message();
    }
    const std::span<const sys::Fd> enclosed =
        fds.ok() ? std::span<const sys::Fd>(fds.value()) : std::span<const sys::Fd>();
    const auto went = box_.try_send(addresses_[static_cast<size_t>(peer)], encode(what), enclosed);
    note(went.status());
    if (went.ok() && !went.value()) return false;  // later, when there is room
    const bool is_last = !went.ok() || what.count == 0;
    sent = is_last ? num_parts : sent + what.count;
    return true;
  }

  // ---- taking in ----

  bool take_letters() {
    bool has_taken = false;
    for (;;) {
      auto received = box_.try_receive();
      note(received.status());
      if (!received.ok()) return has_taken;
      const std::optional<sys::Letter> letter = std::move(received).value();
      if (!letter) return has_taken;
      note(take(*letter));
      has_taken = true;
    }
  }

  Status take(const sys::Letter& letter) {
    BRAID_ASSIGN_OR_RETURN(const HandoverNote what,
                           decode_note(letter.text, group_.rank(), group_.size()));
    uint64_t& taken = num_taken_[static_cast<size_t>(what.rank)];
    const std::vector<uint64_t>& parts = parts_of(what.rank);
    if (what.first != taken || what.count > parts.size() - taken)
      return internal_error("handover of memory: rank {} sent parts {} to {} of {}, {} were here",
                            what.rank, what.first, what.first + what.count, parts.size(), taken);
    taken = what.count == 0 ? parts.size() : taken + what.count;
    if (what.count == 0)
      return driver_error("rank {} could not export its memory: {}", what.rank, what.why);
    if (!letter.is_whole || letter.fds.size() != what.count)
      return exhausted(
          "this process can open no more file descriptors: {} parts of memory of rank {}",
          what.count, what.rank);
    for (size_t i = 0; i < letter.fds.size() && status_.ok(); ++i)
      BRAID_RETURN_IF_ERROR(map_part(what.rank, letter.fds[i], parts[what.first + i]));
    return {};
  }

  Status map_part(int rank, const sys::Fd& fd, uint64_t bytes) {
    BRAID_ASSIGN_OR_RETURN(const auto allocation, sys::own<sys::OwnedAllocation>(
                                                      cuda_, cuda_.import_allocation(fd.get())));
    return mapped_[static_cast<size_t>(rank)].add(allocation.get(), bytes, request_.device);
  }

  group::Group& group_;
  sys::Cuda& cuda_;
  const HandoverRequest& request_;
  const sys::FdBox box_;
  const std::vector<std::string> addresses_;
  std::vector<uint64_t> num_sent_;   // [peer]: of our parts; all, when there is no use in sending
  std::vector<uint64_t> num_taken_;  // [peer]: of its parts; all, when none is to come
  std::vector<MappedParts> mapped_;  // [peer]
  Status status_;
};

}  // namespace

Result<std::vector<MappedParts>> hand_over(group::Group& group, sys::Cuda& cuda,
                                           const HandoverRequest& request, Deadline deadline) {
  auto box = sys::FdBox::open();
  BRAID_ASSIGN_OR_RETURN(const auto told,
                         group.exchange(request.topic + " boxes",
                                        box.ok() ? box.value().address()
                                                 : std::string(kRefusal) + box.status().message(),
                                        deadline));
  for (size_t rank = 0; rank < told.size(); ++rank)
    if (told[rank].starts_with(kRefusal))
      return unavailable("{}: rank {}: {}", request.topic, rank,
                         told[rank].substr(kRefusal.size()));
  return Handover(group, cuda, request, std::move(box).value(), told).run(deadline);
}

}  // namespace braid::nvlink
