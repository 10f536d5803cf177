#include "engine/board.h"

#include <algorithm>

namespace braid::engine {
namespace {

// The word before a list: how many of its entries are there. It fills one entry.
std::atomic_ref<uint64_t> ready_word(PageEntry* entries, uint64_t at) {
  static_assert(sizeof(PageEntry) == sizeof(uint64_t));
  return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(entries + at - 1));
}

// The entry before that: the word of the transfer, once it is done. A target may write there too
// late; that is then the word of a transfer that is over, for which nobody looks.
std::atomic_ref<uint64_t> answer_word(PageEntry* entries, uint64_t at) {
  return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(entries + at - 2));
}

constexpr uint64_t kHeadEntries = 2;

}  // namespace

// --- the source's ---

Board::Board(sys::Segment segment) : segment_(std::move(segment)) {
  free_[0] = segment_.bytes() / sizeof(PageEntry);
}

Result<std::shared_ptr<Board>> Board::create() {
  BRAID_ASSIGN_OR_RETURN(sys::Segment segment,
                         sys::real_shared_memory().create("braid engine pages", kBytes));
  return std::shared_ptr<Board>(new Board(std::move(segment)));
}

std::shared_ptr<Listing> Board::list(uint64_t count) {
  if (count == 0 || count > kMostPages) return nullptr;
  uint64_t at = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(free_.begin(), free_.end(), [&](const auto& room) {
      return room.second >= count + kHeadEntries;
    });
    if (found == free_.end()) return nullptr;
    at = found->first;
    const uint64_t left = found->second - (count + kHeadEntries);
    free_.erase(found);
    if (left != 0) free_[at + count + kHeadEntries] = left;
  }
  at += kHeadEntries;
  ready_word(entries(), at).store(0, std::memory_order_release);
  return std::make_shared<Listing>(shared_from_this(), at, count);
}

void Board::give_back(uint64_t at, uint64_t count) {
  const std::lock_guard lock(mutex_);
  auto room = free_.emplace(at, count).first;
  if (const auto next = std::next(room); next != free_.end() && at + count == next->first) {
    room->second += next->second;
    free_.erase(next);
  }
  if (room == free_.begin()) return;
  if (const auto before = std::prev(room); before->first + before->second == at) {
    before->second += room->second;
    free_.erase(room);
  }
}

Listing::~Listing() { board_->give_back(at_ - kHeadEntries, count_ + kHeadEntries); }

uint64_t Listing::num_written() const {
  return ready_word(board_->entries(), at_).load(std::memory_order_acquire);
}

bool Listing::is_answered(uint64_t word) const {
  return answer_word(board_->entries(), at_).load(std::memory_order_acquire) == word;
}

// In parts, so that the target begins with the first while the last are being written.
void Listing::write(std::span<const uint64_t> source_ids, std::span<const uint64_t> target_ids) {
  constexpr uint64_t kFirstPart = 4096;
  auto* const out = reinterpret_cast<uint64_t*>(board_->entries() + at_);
  for (uint64_t done = 0, part = kFirstPart; done < count_; part *= 2) {
    const uint64_t end = std::min(count_, done + part);
    for (uint64_t i = done; i < end; ++i) out[i] = source_ids[i] | (target_ids[i] << 32);
    done = end;
    ready_word(board_->entries(), at_).store(done, std::memory_order_release);
  }
}

// --- the target's ---

Result<BoardView> BoardView::open(int process, int fd, uint64_t bytes) {
  if (bytes == 0 || bytes > Board::kBytes)
    return invalid_argument("a board of {} bytes, {} are the limit", bytes, Board::kBytes);
  BoardView out;
  BRAID_ASSIGN_OR_RETURN(out.segment_, sys::real_shared_memory().open_peer(process, fd, bytes));
  return out;
}

bool BoardView::holds(uint64_t at, uint64_t count) const {
  const uint64_t all = segment_.bytes() / sizeof(PageEntry);
  return at >= kHeadEntries && at <= all && count <= all - at;
}

uint64_t BoardView::num_ready(uint64_t at, uint64_t count) const {
  auto* const entries = reinterpret_cast<PageEntry*>(segment_.data());
  return std::min(count, ready_word(entries, at).load(std::memory_order_acquire));
}

PageEntry BoardView::entry(uint64_t at) const {
  auto* const word = reinterpret_cast<uint64_t*>(segment_.data()) + at;
  const uint64_t both = std::atomic_ref<uint64_t>(*word).load(std::memory_order_relaxed);
  return {static_cast<uint32_t>(both), static_cast<uint32_t>(both >> 32)};
}

void BoardView::answer(uint64_t at, uint64_t word) const {
  answer_word(reinterpret_cast<PageEntry*>(segment_.data()), at)
      .store(word, std::memory_order_release);
}

// --- the table ---

void Boards::put(const Incarnation& target, std::shared_ptr<Board> board) {
  const std::lock_guard lock(mutex_);
  boards_[target] = std::move(board);
}

void Boards::drop(const Incarnation& target, const Board* board) {
  const std::lock_guard lock(mutex_);
  const auto found = boards_.find(target);
  if (found != boards_.end() && found->second.get() == board) boards_.erase(found);
}

std::shared_ptr<Board> Boards::find(const Incarnation& target) const {
  const std::lock_guard lock(mutex_);
  const auto found = boards_.find(target);
  return found == boards_.end() ? nullptr : found->second;
}

}  // namespace braid::engine
