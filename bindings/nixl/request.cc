#include "request.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <thread>

namespace braid::nixl {
namespace {

constexpr size_t kFewestPages = 16;     // fewer travel as ranges anyway
constexpr size_t kMostPagesARange = 4;  // on the average; with more, ranges are the shorter list
constexpr uint64_t kLongestPage = 8 << 20;  // what is longer is a range, which the engine cuts

uint64_t distance(uint64_t a, uint64_t b) { return a < b ? b - a : a - b; }

/// Offsets of one side, whose ranges are `unit` bytes long or some times that.
struct Steps {
  uint64_t least = ~uint64_t{0};
  uint64_t stride = 0;  // all are `least` and some strides; 0: all are the same
  void add(uint64_t offset, uint64_t first) {
    least = std::min(least, offset);
    stride = std::gcd(stride, distance(offset, first));
  }
};

// NIXL looked places up among what is registered, but whoever wrote the peer's metadata may have
// lied: an offset below the region wraps, and the engine refuses it.
engine::Range range_of(const Place& ours, const engine::Region& our, const Place& theirs,
                       const engine::RegionDescriptor& their) {
  return {ours.address - reinterpret_cast<uint64_t>(our.base), theirs.address - their.base,
          ours.bytes};
}

}  // namespace

void Part::find_pages() {
  uint64_t unit = 0, total = 0, longest = 0;
  Steps here, there;
  for (const engine::Range& range : ranges) {
    unit = std::gcd(unit, range.bytes);
    total += range.bytes;
    longest = std::max(longest, range.bytes);
    here.add(range.our_offset, ranges[0].our_offset);
    there.add(range.their_offset, ranges[0].their_offset);
  }
  if (unit == 0 || unit > kLongestPage || total / unit > kMostPagesARange * ranges.size()) return;
  if (ranges.size() == 1) here.stride = there.stride = unit;
  // A range of several pages has them side by side.
  for (Steps* side : {&here, &there})
    if (longest != unit) side->stride = std::gcd(side->stride, unit);
  if (here.stride < unit || there.stride < unit) return;
  page_bytes = unit;
  our_stride = here.stride, our_offset = here.least;
  their_stride = there.stride, their_offset = there.least;
  for (const engine::Range& range : ranges)
    for (uint64_t at = 0; at < range.bytes; at += unit) {
      our_ids.push_back((range.our_offset + at - our_offset) / our_stride);
      their_ids.push_back((range.their_offset + at - their_offset) / their_stride);
    }
  ranges.clear();
}

bool Part::take(const Part& other) {
  const bool is_same_way = engine == other.engine && ours->device == other.ours->device &&
                           theirs->device == other.theirs->device &&
                           theirs->owner.incarnation == other.theirs->owner.incarnation;
  const bool has_same_pages = page_bytes != 0 && page_bytes == other.page_bytes &&
                              our_stride == other.our_stride &&
                              their_stride == other.their_stride && our_ids == other.our_ids &&
                              their_ids == other.their_ids;
  if (!is_same_way || !has_same_pages || more.size() + 1 >= engine::kMostPlanes) return false;
  more.push_back({other.ours, other.theirs, other.our_offset, other.their_offset});
  return true;
}

Result<engine::TicketPtr> Part::begin(Operation operation, engine::TransferOptions options) const {
  const bool is_read = operation == Operation::kRead;
  if (page_bytes == 0)
    return engine->move_ranges(
        is_read ? engine::Transfer::Kind::kRead : engine::Transfer::Kind::kWrite, ours, theirs,
        ranges, std::move(options));
  engine::PageList list;
  list.page_bytes = page_bytes;
  list.source_ids = is_read ? their_ids : our_ids;
  list.source_stride = is_read ? their_stride : our_stride;
  list.target_ids = is_read ? our_ids : their_ids;
  list.target_stride = is_read ? our_stride : their_stride;
  std::vector<engine::PagePlane> planes = {{ours, theirs, our_offset, their_offset}};
  planes.insert(planes.end(), more.begin(), more.end());
  return is_read ? engine->read_pages(planes, list, std::move(options))
                 : engine->write_pages(planes, list, std::move(options));
}

Result<std::unique_ptr<Request>> Request::prepare(Operation operation, const TransferPlaces& local,
                                                  const TransferPlaces& remote) {
  if (local.all.size() != remote.all.size())
    return invalid_argument("a transfer of {} places here and {} there", local.all.size(),
                            remote.all.size());
  std::unique_ptr<Request> out(new Request(operation));
  std::map<std::pair<const Memory*, const Memory*>, size_t> known;
  for (size_t i = 0; i < local.all.size(); ++i) {
    const PlaceWithMemory &here = local.all[i], &there = remote.all[i];
    if (here.memory == nullptr || !here.memory->is_own() || there.memory == nullptr ||
        there.memory->is_own() || here.bytes != there.bytes)
      return invalid_argument("place {} of a transfer: {} bytes here, {} there, registered {}", i,
                              here.bytes, there.bytes,
                              here.memory != nullptr && there.memory != nullptr);
    const auto& own = static_cast<const OwnMemory&>(*here.memory);
    const auto& peer = static_cast<const PeerMemory&>(*there.memory);
    const auto [found, is_new] = known.try_emplace({&own, &peer}, out->parts_.size());
    if (is_new) {
      Part& part = out->parts_.emplace_back();
      part.engine = own.engine;
      part.ours = own.region;
      part.theirs = peer.region;
    }
    out->parts_[found->second].ranges.push_back(range_of(here, *own.region, there, *peer.region));
  }
  if (local.all.size() >= kFewestPages) out->join_parts();
  return out;
}

// In their order: layers that are registered one by one come one by one, and whatever differs from the
// part before it begins anew.
void Request::join_parts() {
  std::vector<Part> joined;
  for (Part& part : parts_) {
    part.find_pages();
    if (joined.empty() || !joined.back().take(part)) joined.push_back(std::move(part));
  }
  parts_ = std::move(joined);
}

Status Request::post(const std::vector<std::string>& notice, const Tell& tell) {
  run_ = std::make_shared<Run>();
  run_->num_left = parts_.size();
  run_->untold = exhausted("there was no memory for its notification");
  run_->tickets.reserve(parts_.size() +
                        notice.size());  // what was begun is not lost for want of memory
  if (parts_.empty()) {
    run_->is_notice_due = !notice.empty();
    const std::lock_guard lock(run_->mutex);
    if (run_->is_notice_due) send(*run_, notice, tell);
    return run_->trouble;
  }
  const Status begun = begin_parts(notice, tell);
  if (begun.ok()) return {};
  const std::lock_guard lock(run_->mutex);
  run_->trouble = begun;
  run_->has_failed = true;
  run_->is_notice_due = false;
  return {};  // of what was begun the end is to be awaited; outcome() tells
}

Status Request::begin_parts(const std::vector<std::string>& notice, const Tell& tell) {
  const bool is_carried = parts_.size() == 1 && notice.size() == 1;
  run_->is_notice_due = !notice.empty() && !is_carried;
  for (const Part& part : parts_) {
    engine::TransferOptions options;
    if (is_carried) options.notification = notice.front();
    if (run_->is_notice_due)
      options.callback = [run = run_, notice, tell](const Status& status) {
        part_ended(*run, status, notice, tell);
      };
    BRAID_ASSIGN_OR_RETURN(engine::TicketPtr ticket, part.begin(operation_, std::move(options)));
    const std::lock_guard lock(run_->mutex);
    run_->tickets.emplace_back(part.engine, std::move(ticket));
  }
  return {};
}

void Request::part_ended(Run& run, const Status& status, const std::vector<std::string>& notice,
                         const Tell& tell) {
  const std::lock_guard lock(run.mutex);
  run.has_failed = run.has_failed || !status.ok();
  if (--run.num_left != 0) return;
  if (!run.has_failed && !run.is_taken_back) return send(run, notice, tell);
  run.is_notice_due = false;
}

// Under the run's lock: nobody may find all tickets done before these are among them.
void Request::send(Run& run, const std::vector<std::string>& notice, const Tell& tell) {
  run.is_notice_due = false;
  // As it is when memory runs out in here.
  run.trouble = std::move(run.untold);
  run.has_failed = true;
  auto told = tell(notice);
  if (!told.ok()) {
    run.trouble = told.status();
    return;
  }
  for (engine::TicketPtr& ticket : *told) run.tickets.emplace_back(nullptr, std::move(ticket));
  run.trouble = {};
  run.has_failed = false;
}

bool Request::is_done() const {
  if (run_ == nullptr) return true;
  const std::lock_guard lock(run_->mutex);
  bool has_failed = run_->has_failed;
  bool is_busy = false;
  for (const auto& [engine, ticket] : run_->tickets) {
    if (!ticket->is_done())
      is_busy = true;
    else
      has_failed = has_failed || !ticket->status().ok();
  }
  if (has_failed && is_busy && !run_->is_taken_back) {  // the rest of it is of no use
    run_->is_taken_back = true;
    for (const auto& [engine, ticket] : run_->tickets)
      if (engine != nullptr && !ticket->is_done()) engine->cancel(ticket);
  }
  return !is_busy && (has_failed || !run_->is_notice_due);
}

Status Request::outcome() const {
  if (run_ == nullptr) return {};
  const std::lock_guard lock(run_->mutex);
  if (!run_->trouble.ok()) return run_->trouble;
  // What was cancelled because of another part's failure does not tell why.
  Status out;
  for (const auto& [engine, ticket] : run_->tickets) {
    const Status status = ticket->status();
    if (status.ok()) continue;
    if (out.ok() || out.code() == Code::kCancelled) out = status;
  }
  return out;
}

void Request::cancel() {
  if (run_ == nullptr) return;
  const std::lock_guard lock(run_->mutex);
  run_->is_taken_back = true;
  run_->is_notice_due = false;
  for (const auto& [engine, ticket] : run_->tickets)
    if (engine != nullptr && !ticket->is_done()) engine->cancel(ticket);
}

bool Request::wait(Deadline deadline) const {
  while (!is_done()) {
    if (deadline.passed()) return false;
    engine::TicketPtr pending;
    {
      const std::lock_guard lock(run_->mutex);
      for (const auto& [engine, ticket] : run_->tickets)
        if (!ticket->is_done()) pending = ticket;
    }
    // Nothing pending: a callback is about to run that sends the notice.
    if (pending != nullptr)
      (void)pending->wait(deadline);
    else
      std::this_thread::yield();
  }
  return true;
}

}  // namespace braid::nixl
