// A transfer, as the source's worker sees it: stretches of memory, cut into pieces as rails take
// them.
//
// Threads: the worker's alone, once it is submitted.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "engine/board.h"
#include "engine/descriptor.h"
#include "engine/frames.h"
#include "engine/regions.h"
#include "engine/ticket.h"

namespace braid::engine {

/// A pair of regions of a transfer, and where in them page 0 of a list lies.
struct TransferPlane {
  std::shared_ptr<Region> local;
  std::shared_ptr<const RegionDescriptor> remote;
  uint64_t our_offset = 0, their_offset = 0;
  size_t stretches_end = 0;  // of the transfer's, those of this plane end here
  uint64_t our_address() const { return reinterpret_cast<uint64_t>(local->base) + our_offset; }
};

/// Some bytes of a plane.
struct Piece : Stretch {
  uint32_t plane = 0;
};

class Transfer {
 public:
  enum class Kind : uint8_t { kWrite, kRead };
  enum class State : uint8_t {
    kPosting,  // pieces are posted, or on their way
    kStated,   // the target was told all; it answers
    kEnding,   // is being taken back
  };

  /// Regions of ours in `planes` are in use by it already (Regions::begin_use); `stretches` are those of
  /// the first plane, of the second, and so on.
  Transfer(Kind kind, TicketPtr ticket, std::vector<TransferPlane> planes,
           std::vector<Stretch> stretches);
  ~Transfer();
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  const Kind kind;
  const TicketPtr ticket;
  // None: no bytes move. All are between memory of the same kinds, and with the same peer.
  const std::vector<TransferPlane> planes;
  const std::vector<Stretch> stretches;
  uint64_t bytes = 0;
  // Pages on the board of the connection, in place of stretches; null: none.
  std::shared_ptr<Listing> listing;
  PageRun pages;
  uint64_t staged = 0;       // pages of all planes, in their order, that were gathered into slots
  bool is_all_told = false;  // the target of this host has all frames of it
  Delivery delivery;
  int64_t deadline_ns = 0;

  State state = State::kPosting;
  uint32_t num_flying = 0;  // pieces on rails
  Status ending;            // kEnding: how it will end
  int64_t fence_at_ns = 0;  // kEnding: when rails that still hold pieces are fenced
  uint32_t num_again = 0;   // how often pieces of it had to be written again
  Status last_trouble;      // why

  // Read by a target of this host (Copier::is_wanted): holds a number of its own until the ticket
  // ends.
  std::atomic<uint64_t> word;

  uint64_t id() const { return ticket->id(); }
  /// Whether it moves bytes to or from this region of the peer.
  bool names(uint64_t remote_region) const;
  bool has_pieces() const { return !again_.empty() || next_ < stretches.size(); }
  /// The plane of the next piece. Only when has_pieces().
  uint32_t next_plane() const { return again_.empty() ? plane_of(next_) : again_.back().plane; }
  uint32_t plane_of(size_t stretch) const;
  uint64_t bytes_to_post() const { return bytes_to_post_; }
  /// The next piece, of at most `most_bytes`. Only when has_pieces().
  Piece take_piece(uint64_t most_bytes);
  /// A piece that was taken and did not land for certain.
  void give_back(const Piece& piece);
  /// No more pieces will be taken.
  void drop_pieces();

 private:
  size_t next_ = 0;
  uint64_t done_of_next_ = 0;
  uint64_t bytes_to_post_ = 0;
  std::vector<Piece> again_;
};

}  // namespace braid::engine
