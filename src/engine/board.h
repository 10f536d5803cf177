// Lists of pages in memory that a source and a target of one host share (docs/engine_protocol.md, "Lists of
// pages"): eight bytes a page, where a frame takes twenty-four and has to be sealed.
//
// The source owns the board and may write onto it at any time. So whoever reads an entry reads it
// once, and believes nothing of it.
//
// Threads: any; one mutex for the room on a board, one for the table of boards.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "engine/copy_pages.h"
#include "engine/descriptor.h"
#include "sys/shm/api.h"

namespace braid::engine {

class Board;

/// A list on a board, from being written to the end of its transfer. Whoever writes it and the
/// transfer hold it, so its room is not given to another list under the writer's hands.
class Listing {
 public:
  Listing(std::shared_ptr<Board> board, uint64_t at, uint64_t count)
      : board_(std::move(board)), at_(at), count_(count) {}
  ~Listing();
  Listing(const Listing&) = delete;
  Listing& operator=(const Listing&) = delete;

  const Board* board() const { return board_.get(); }
  /// The entry of the board where the list begins. How much of it is there stands before that, and
  /// before that the target's answer.
  uint64_t at() const { return at_; }
  uint64_t count() const { return count_; }
  uint64_t num_written() const;
  /// Whether the target has said that the transfer of this word is done. DONE says it, too, later.
  bool is_answered(uint64_t word) const;
  /// Numbers of pages, equally many, all below 2^32. Readers may begin before it returns.
  void write(std::span<const uint64_t> source_ids, std::span<const uint64_t> target_ids);

 private:
  const std::shared_ptr<Board> board_;
  const uint64_t at_, count_;
};

/// A source's, for one target.
class Board : public std::enable_shared_from_this<Board> {
 public:
  static constexpr uint64_t kBytes = 4 << 20;
  /// Pages of one list: a long list leaves room for another.
  static constexpr uint64_t kMostPages = (kBytes / sizeof(PageEntry)) / 2;

  static Result<std::shared_ptr<Board>> create();

  int fd() const { return segment_.fd(); }
  uint64_t bytes() const { return segment_.bytes(); }
  PageEntry* entries() const { return reinterpret_cast<PageEntry*>(segment_.data()); }
  /// Room for a list; null when there is none now, or never for so many.
  std::shared_ptr<Listing> list(uint64_t count);

 private:
  friend class Listing;
  explicit Board(sys::Segment segment);
  void give_back(uint64_t at, uint64_t count);

  const sys::Segment segment_;
  std::mutex mutex_;
  std::map<uint64_t, uint64_t> free_;  // entries: where, how many
};

/// What is on a source's board, as the target has it. Of the worker.
class BoardView {
 public:
  BoardView() = default;
  static Result<BoardView> open(int process, int fd, uint64_t bytes);

  bool is_open() const { return segment_.is_mapped(); }
  std::byte* data() const { return segment_.data(); }
  uint64_t bytes() const { return segment_.bytes(); }
  /// Whether a list of so many entries lies on the board.
  bool holds(uint64_t at, uint64_t count) const;
  /// How many entries of the list are there; of a source that lies, still no more than `count`.
  uint64_t num_ready(uint64_t at, uint64_t count) const;
  PageEntry entry(uint64_t at) const;
  /// Tells the source what it looks for. Nothing that is read by anybody else.
  void answer(uint64_t at, uint64_t word) const;

 private:
  sys::Segment segment_;
};

/// The boards of all connections that have one, for threads that begin transfers.
class Boards {
 public:
  void put(const Incarnation& target, std::shared_ptr<Board> board);
  /// Only if it is that board: another connection to the same target has its own.
  void drop(const Incarnation& target, const Board* board);
  std::shared_ptr<Board> find(const Incarnation& target) const;

 private:
  mutable std::mutex mutex_;
  std::map<Incarnation, std::shared_ptr<Board>> boards_;
};

}  // namespace braid::engine
