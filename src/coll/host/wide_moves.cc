#include "coll/host/wide_moves.h"

#include "coll/reduce/casts.h"

namespace braid::coll {

namespace {

/// One of the places is the reduced block's own, where a call has both.
const Block* place_of_reduced(const Moves& moves) {
  for (const Block& place : moves.places)
    if (place.bytes > 0 && place.data == moves.reduced.data) return &place;
  return nullptr;
}

}  // namespace

WideMoves::WideMoves(const Moves& moves) : small_(moves), wide_(moves) {
  uint64_t bytes = place_of_reduced(moves) != nullptr ? 0 : moves.reduced.bytes;
  for (const ConstBlock& part : moves.parts) bytes += part.bytes;
  for (const Block& place : moves.places) bytes += place.bytes;
  memory_.resize(elements(bytes));
  wide_.is_wide = true;
  wide_.bytes = elements(moves.bytes) * sizeof(float);
  for (ConstBlock& part : wide_.parts) {
    const Block wide = take(elements(part.bytes));
    widen(part.data, reinterpret_cast<float*>(wide.data), elements(part.bytes),
          moves.signature.dtype);
    part = {wide.data, wide.bytes};
  }
  for (Block& place : wide_.places) place = take(elements(place.bytes));
  const Block* const place = place_of_reduced(moves);
  wide_.reduced = place != nullptr ? wide_.places[static_cast<size_t>(place - moves.places.data())]
                                   : take(elements(moves.reduced.bytes));
}

Block WideMoves::take(uint64_t num_elements) {
  if (num_elements == 0) return {};
  float* const begin = memory_.data() + num_taken_;
  num_taken_ += num_elements;
  return {reinterpret_cast<std::byte*>(begin), num_elements * sizeof(float)};
}

void WideMoves::narrow_block(const Block& wide, const Block& small) const {
  narrow(reinterpret_cast<const float*>(wide.data), small.data, elements(small.bytes),
         small_.signature.dtype);
}

void WideMoves::narrow_results() const {
  for (size_t r = 0; r < small_.places.size(); ++r) narrow_block(wide_.places[r], small_.places[r]);
  if (place_of_reduced(small_) == nullptr) narrow_block(wide_.reduced, small_.reduced);
}

}  // namespace braid::coll
