// Source: transfers to a target of this host, which copies.
#include <algorithm>
#include <limits>

#include "base/log.h"
#include "engine/source.h"
#include "engine/spin.h"

namespace braid::engine {
namespace {
constexpr size_t kBoardStretches = 64;        // from so many on, lists of pages have a board
constexpr uint64_t kLeastStaged = 256 << 10;  // less is through the target's slot sooner
constexpr size_t kMostGathered = 4096;        // stretches of a slot

/// The plane where its memory lies, not in the stage.
Plane plane_of(const TransferPlane& plane) {
  const bool is_of_gpu = plane.local->device >= 0;
  return {plane.remote->id, is_of_gpu ? plane.local->id : 0, plane.our_address(),
          plane.their_offset};
}
}  // namespace

Pull Source::pull_of(const Transfer& t) {
  Pull pull;
  pull.transfer = t.id();
  pull.word_address = reinterpret_cast<uint64_t>(&t.word);
  pull.word = t.word;
  return pull;
}

// Once for each region: the target opens its allocation and keeps it.
void Source::lend(const Region& region) {
  if (!lent_.insert(region.id).second) return;
  session_.send(FrameType::kLend,
                encode(Loan{region.id, reinterpret_cast<uint64_t>(region.base), region.bytes,
                            region.ipc_offset,
                            std::string(region.ipc.bytes.data(), region.ipc.bytes.size())}));
}

void Source::hand_over(Transfer& t) {
  hot_until_ns_ = now_ns() + long_spin_ns();
  t.state = Transfer::State::kStated;
  if (t.stretches.size() >= kBoardStretches && !is_board_asked_) offer_board();
  if (wants_stage(t)) {
    staging_.push_back(t.id());
    return;
  }
  for (const TransferPlane& plane : t.planes)
    if (plane.local->device >= 0) lend(*plane.local);
  const FrameType type = t.kind == Transfer::Kind::kRead ? FrameType::kFetch : FrameType::kPull;
  if (t.listing != nullptr) {
    Pull pull = pull_of(t);
    for (const TransferPlane& plane : t.planes) pull.planes.push_back(plane_of(plane));
    pull.pages = t.pages;
    pull.is_last = true;
    pull.delivery = t.delivery;
    session_.send(type, encode(pull));
    t.is_all_told = true;
    listed_.push_back(t.id());
  } else {
    hand_over_stretches(t, type);
  }
  (void)session_.flush();
}

// Frames of bounded size, of one plane each; the last one carries what is told when all of them are done.
void Source::hand_over_stretches(Transfer& t, FrameType type) {
  size_t at = 0;
  do {
    Pull pull = pull_of(t);
    size_t end = at;
    if (at < t.stretches.size()) {
      const TransferPlane& plane = t.planes[t.plane_of(at)];
      pull.planes = {plane_of(plane)};
      end = plane.stretches_end;
    }
    const size_t count = std::min(kMostStretches, end - at);
    pull.stretches.assign(t.stretches.begin() + static_cast<std::ptrdiff_t>(at),
                          t.stretches.begin() + static_cast<std::ptrdiff_t>(at + count));
    at += count;
    pull.is_last = at == t.stretches.size();
    if (pull.is_last) pull.delivery = t.delivery;
    session_.send(type, encode(pull));
  } while (at < t.stretches.size());
  t.drop_pieces();
  t.is_all_told = true;
}

// --- the board ---

void Source::offer_board() {
  is_board_asked_ = true;
  auto made = Board::create();
  if (!made.ok()) {
    log::info("engine", "'{}': no lists of pages for '{}': {}", ground_.self.name, target_.name,
              made.status().message());
    return;
  }
  board_ = std::move(made).value();
  if (ground_.gpu != nullptr)
    board_address_ =
        ground_.gpu->map_host(reinterpret_cast<std::byte*>(board_->entries()), board_->bytes());
  session_.send(FrameType::kBoard, encode(BoardOffer{board_->fd(), board_->bytes()}));
}

// Only now may threads that begin transfers write onto it.
void Source::on_board_ready(const BoardAnswer& answer) {
  if (board_ == nullptr) return;
  if (is_leaving()) return;
  if (answer.trouble.empty()) return ground_.boards.put(target_.incarnation, board_);
  log::info("engine", "'{}': no lists of pages for '{}': {}", ground_.self.name, target_.name,
            answer.trouble);
  close_board();
}

void Source::close_board() {
  if (board_ == nullptr) return;
  ground_.boards.drop(target_.incarnation, board_.get());
  if (board_address_ != 0) {
    ground_.gpu->settle();  // a kernel of ours may be reading it
    ground_.gpu->unmap_host(reinterpret_cast<std::byte*>(board_->entries()));
  }
  board_address_ = 0;
  board_.reset();
}

// --- the stage ---

// Memory of the host goes to a peer's GPU by way of our own GPU, where that reaches it.
bool Source::wants_stage(const Transfer& t) {
  const auto is_reached = [](const TransferPlane& plane) {
    return plane.local->device < 0 && plane.local->address != 0 && plane.remote->device >= 0;
  };
  const bool is_fit = t.kind == Transfer::Kind::kWrite && t.bytes >= kLeastStaged &&
                      std::all_of(t.planes.begin(), t.planes.end(), is_reached);
  if (!is_fit || (t.listing != nullptr && board_address_ == 0)) return false;
  if (t.listing != nullptr && t.pages.page_bytes > Stage::kSlotBytes) return false;
  if (ground_.stage != nullptr) return true;
  if (ground_.has_no_stage) return false;
  auto made = Stage::create(*ground_.gpu, ground_.regions);
  ground_.has_no_stage = !made.ok();
  if (made.ok())
    ground_.stage = std::move(made).value();
  else
    log::info("engine", "'{}': no stage on GPU {}: {}", ground_.self.name, ground_.gpu->device(),
              made.status().message());
  return made.ok();
}

bool Source::stage(int64_t now) {
  bool moved = send_gathered();
  while (!staging_.empty()) {
    Transfer& t = *transfers_.at(staging_.front());
    Result<bool> begun = gather(t);
    if (begun.ok() && !*begun) break;
    moved = true;
    if (!begun.ok()) take_back(t, begun.status().with_context(where(t)), now);
  }
  return moved;
}

/// Begins to fill a slot. False: there is none, or nothing to fill it with yet.
Result<bool> Source::gather(Transfer& t) {
  Stage& stage = *ground_.stage;
  const uint32_t slot = stage.take(t.id());
  if (slot == 0) return false;
  lend(stage.region());
  Gathered out;
  out.transfer = t.id();
  out.pull = pull_of(t);
  out.pull.slot = slot;
  Result<bool> begun =
      t.listing != nullptr ? gather_pages(t, slot, out) : gather_stretches(t, slot, out);
  if (!begun.ok() || !*begun) {
    stage.give_back(t.id(), slot);
    return begun;
  }
  if (out.pull.is_last) {
    out.pull.delivery = t.delivery;
    staging_.pop_front();
  }
  gathered_.push_back(std::move(out));
  return true;
}

// All planes that fit into a slot whole, or as many pages as fit of one that does not.
Result<bool> Source::gather_pages(Transfer& t, uint32_t slot, Gathered& out) {
  const PageRun& run = t.pages;
  const uint64_t room = Stage::kSlotBytes / run.page_bytes;
  const uint64_t first_plane = t.staged / run.count, first = t.staged % run.count;
  const uint64_t count = std::min(run.count - first, room);
  const uint64_t num_planes =
      count == run.count ? std::min(t.planes.size() - first_plane, room / count) : 1;
  if (t.listing->num_written() < first + count) return false;
  const sys::DevicePtr base = ground_.stage->slot(slot).address;
  PageJob job;
  job.list = board_address_ + (run.list_at + first) * sizeof(PageEntry);
  job.page_bytes = run.page_bytes;
  job.from_stride = run.source_stride;
  job.to_stride = run.page_bytes;
  job.from_most = job.to_most = std::numeric_limits<uint32_t>::max();  // we have written them
  job.from_key = PageKey::kSource;
  job.count = static_cast<uint32_t>(count);
  job.num_planes = static_cast<uint32_t>(num_planes);
  for (uint64_t i = 0; i < num_planes; ++i) {
    const TransferPlane& plane = t.planes[first_plane + i];
    job.planes[i] = {plane.local->address + plane.our_offset, base + i * count * run.page_bytes};
    out.pull.planes.push_back(
        {plane.remote->id, ground_.stage->region().id, job.planes[i].to, plane.their_offset});
  }
  // The target's kernels run meanwhile: of two processes' kernels a GPU runs one's at a time.
  if (run.page_bytes >= Gpu::kLongBytes) {
    std::vector<sys::DeviceCopy> copies;
    const PageEntry* const entries = board_->entries() + run.list_at + first;
    for (uint64_t p = 0; p < num_planes; ++p)
      for (uint64_t i = 0; i < count; ++i)
        copies.push_back({job.planes[p].to + i * run.page_bytes,
                          job.planes[p].from + entries[i].source * run.source_stride,
                          run.page_bytes});
    BRAID_ASSIGN_OR_RETURN(out.mark, ground_.gpu->begin(ground_.stage->queue(), copies));
  } else {
    BRAID_ASSIGN_OR_RETURN(out.mark, ground_.gpu->begin(ground_.stage->queue(), job, false));
    out.is_by_kernel = true;
  }
  if (out.mark == 0) return false;
  out.pull.pages = run;
  out.pull.pages.count = count;
  out.pull.pages.list_at = run.list_at + first;
  out.pull.pages.source_stride = run.page_bytes;
  out.pull.pages.is_by_place = 1;
  t.staged += count * num_planes;
  out.pull.is_last = t.staged == run.count * t.planes.size();
  ground_.stats.bytes_staged += count * num_planes * run.page_bytes;
  return true;
}

// Stretches of one plane alone, since a pull of stretches names one plane.
Result<bool> Source::gather_stretches(Transfer& t, uint32_t slot, Gathered& out) {
  const uint32_t number = t.next_plane();
  const TransferPlane& plane = t.planes[number];
  const Region& local = *plane.local;
  const auto first = reinterpret_cast<uint64_t>(local.base);
  out.pull.planes = {{plane.remote->id, ground_.stage->region().id, 0, 0}};
  const sys::DevicePtr base = ground_.stage->slot(slot).address;
  std::vector<PageCopy> copies;
  uint64_t used = 0;
  while (used < Stage::kSlotBytes && t.has_pieces() && t.next_plane() == number &&
         copies.size() < kMostGathered) {
    const Piece piece = t.take_piece(Stage::kSlotBytes - used);
    copies.push_back({base + used, local.address + (piece.source_address - first), piece.bytes});
    out.pull.stretches.push_back({base + used, piece.target_offset, piece.bytes});
    used += piece.bytes;
  }
  size_t begun = 0;
  if (used / copies.size() >= Gpu::kLongBytes) {
    std::vector<sys::DeviceCopy> longs;
    for (const PageCopy& copy : copies) longs.push_back({copy.to, copy.from, copy.bytes});
    BRAID_ASSIGN_OR_RETURN(out.mark, ground_.gpu->begin(ground_.stage->queue(), longs));
    begun = out.mark == 0 ? 0 : copies.size();
  } else {
    BRAID_ASSIGN_OR_RETURN(out.mark, ground_.gpu->begin(ground_.stage->queue(), copies, begun));
    out.is_by_kernel = true;
  }
  // The rest of them another time; a piece that is given back is taken first.
  for (size_t i = copies.size(); i > begun; --i) {
    const Stretch& s = out.pull.stretches[i - 1];
    t.give_back({{first + (copies[i - 1].from - local.address), s.target_offset, s.bytes}, number});
  }
  out.pull.stretches.resize(begun);
  for (const Stretch& s : out.pull.stretches) ground_.stats.bytes_staged += s.bytes;
  out.pull.is_last = !t.has_pieces();
  return begun != 0;
}

// A word on the board is here sooner than a frame.
bool Source::look_for_answers() {
  bool moved = false;
  for (size_t i = 0; i < listed_.size();) {
    const auto found = transfers_.find(listed_[i]);
    const bool is_over = found == transfers_.end();
    const bool is_answered = !is_over && found->second->listing->is_answered(found->second->word);
    if (!is_over && !is_answered) {
      ++i;
      continue;
    }
    if (is_answered) on_done(listed_[i]);
    listed_[i] = listed_.back();
    listed_.pop_back();
    moved = true;
  }
  return moved;
}

// In order, each when the GPU is through with it. What kernels gather all at once: while one of ours
// runs, the target's is let in every 2 ms, and to change from one process to the other and back costs
// what 15 MiB take over PCIe.
bool Source::send_gathered() {
  bool moved = false;
  while (!gathered_.empty()) {
    Result<uint64_t> done = ground_.gpu->done();
    const Gathered& awaited = gathered_.front().is_by_kernel ? gathered_.back() : gathered_.front();
    if (done.ok() && *done < awaited.mark) break;
    const Gathered next = std::move(gathered_.front());
    gathered_.pop_front();
    moved = true;
    const auto found = transfers_.find(next.transfer);
    if (found == transfers_.end() || found->second->state != Transfer::State::kStated) continue;
    if (!done.ok()) {
      take_back(*found->second, done.status(), now_ns());
      continue;
    }
    session_.send(FrameType::kPull, encode(next.pull));
    found->second->is_all_told = next.pull.is_last;
    (void)session_.flush();
  }
  return moved;
}

}  // namespace braid::engine
