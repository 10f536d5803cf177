#include "engine/transfer.h"

#include <algorithm>

namespace braid::engine {

Transfer::Transfer(Kind kind_in, TicketPtr ticket_in, std::vector<TransferPlane> planes_in,
                   std::vector<Stretch> stretches_in)
    : kind(kind_in),
      ticket(std::move(ticket_in)),
      planes(std::move(planes_in)),
      stretches(std::move(stretches_in)),
      word(sys::random_key()) {
  for (const Stretch& s : stretches) bytes += s.bytes;
  bytes_to_post_ = bytes;
}

Transfer::~Transfer() {
  word.store(0, std::memory_order_seq_cst);
  for (const TransferPlane& plane : planes) --plane.local->num_uses;
}

bool Transfer::names(uint64_t remote_region) const {
  return std::any_of(planes.begin(), planes.end(),
                     [&](const TransferPlane& plane) { return plane.remote->id == remote_region; });
}

uint32_t Transfer::plane_of(size_t stretch) const {
  const auto found =
      std::upper_bound(planes.begin(), planes.end(), stretch,
                       [](size_t at, const TransferPlane& p) { return at < p.stretches_end; });
  return static_cast<uint32_t>(found - planes.begin());
}

Piece Transfer::take_piece(uint64_t most_bytes) {
  Piece piece;
  if (!again_.empty()) {
    piece = again_.back();
    again_.pop_back();
    if (piece.bytes > most_bytes) {
      again_.push_back({{piece.source_address + most_bytes, piece.target_offset + most_bytes,
                         piece.bytes - most_bytes},
                        piece.plane});
      piece.bytes = most_bytes;
    }
  } else {
    const Stretch& whole = stretches[next_];
    piece = {{whole.source_address + done_of_next_, whole.target_offset + done_of_next_,
              std::min(most_bytes, whole.bytes - done_of_next_)},
             plane_of(next_)};
    done_of_next_ += piece.bytes;
    if (done_of_next_ == whole.bytes) {
      ++next_;
      done_of_next_ = 0;
    }
  }
  bytes_to_post_ -= piece.bytes;
  return piece;
}

void Transfer::give_back(const Piece& piece) {
  again_.push_back(piece);
  bytes_to_post_ += piece.bytes;
}

void Transfer::drop_pieces() {
  next_ = stretches.size();
  again_.clear();
  bytes_to_post_ = 0;
}

}  // namespace braid::engine
