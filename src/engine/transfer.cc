#include "engine/transfer.h"

#include <algorithm>

namespace braid::engine {

Transfer::Transfer(Kind kind_in, TicketPtr ticket_in, std::shared_ptr<Region> local_in,
                   std::shared_ptr<const RegionDescriptor> remote_in,
                   std::vector<Stretch> stretches_in)
    : kind(kind_in),
      ticket(std::move(ticket_in)),
      local(std::move(local_in)),
      remote(std::move(remote_in)),
      stretches(std::move(stretches_in)),
      word(sys::random_key()) {
  for (const Stretch& s : stretches) bytes += s.bytes;
  bytes_to_post_ = bytes;
}

Transfer::~Transfer() {
  word.store(0, std::memory_order_seq_cst);
  if (local != nullptr) --local->num_uses;
}

Stretch Transfer::take_piece(uint64_t most_bytes) {
  Stretch piece;
  if (!again_.empty()) {
    piece = again_.back();
    again_.pop_back();
    if (piece.bytes > most_bytes) {
      again_.push_back({piece.source_address + most_bytes, piece.target_offset + most_bytes,
                        piece.bytes - most_bytes});
      piece.bytes = most_bytes;
    }
  } else {
    const Stretch& whole = stretches[next_];
    piece = {whole.source_address + done_of_next_, whole.target_offset + done_of_next_,
             std::min(most_bytes, whole.bytes - done_of_next_)};
    done_of_next_ += piece.bytes;
    if (done_of_next_ == whole.bytes) {
      ++next_;
      done_of_next_ = 0;
    }
  }
  bytes_to_post_ -= piece.bytes;
  return piece;
}

void Transfer::give_back(const Stretch& piece) {
  again_.push_back(piece);
  bytes_to_post_ += piece.bytes;
}

void Transfer::drop_pieces() {
  next_ = stretches.size();
  again_.clear();
  bytes_to_post_ = 0;
}

}  // namespace braid::engine
