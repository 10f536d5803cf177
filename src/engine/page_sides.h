// A list of pages on its way from a call to a transfer: checked, and cut into stretches, or put on
// the board of a connection as it is.
//
// A call names pages of a source and of a target. A connection knows the requester's side and the
// peer's: a write's source is ours, a read's is theirs. Each side has its own page numbers and its
// own distance from page to page; each plane (a layer of a KV cache, say) its own region and offset
// on each side.
//
// Threads: any, each with its own.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/checks.h"
#include "engine/engine.h"

namespace braid::engine {

/// One side of a list of pages, in one plane.
struct PageSide {
  uint64_t offset = 0, stride = 0, page_bytes = 0;
  RegionName region;

  /// Whether pages of these numbers lie inside, up to the number `most`.
  bool holds(uint64_t most) const;
  /// Whether page `id`, which stands at `index` of the list, lies inside.
  Status check_page(const std::string& what, size_t index, uint64_t id) const;
};

/// A list of pages, with both sides of all planes.
struct PageSides {
  std::span<const uint64_t> our_ids, their_ids;
  uint64_t page_bytes = 0;
  uint64_t our_stride = 0, their_stride = 0;
  std::vector<TransferPlane> planes;

  /// Both sides of a call named `what`. invalid_argument: planes that are not of one kind of memory
  /// and one peer, or a list that is none. Where pages lie is looked at by check().
  static Result<PageSides> of(const char* what, Transfer::Kind kind,
                              std::span<const PagePlane> planes, const PageList& list);
  /// That every page of every plane lies inside its region. The bits of all page numbers together.
  Result<uint64_t> check(const char* what) const;
  /// Pages of all planes together.
  size_t num_pages() const { return our_ids.size() * planes.size(); }
  PageSide ours(size_t plane) const;
  PageSide theirs(size_t plane) const;
  /// The stretches of all planes, which then know where theirs end.
  std::vector<Stretch> cut();
  /// The pages as they stand on a board.
  PageRun run(const Listing& listing) const;
};

/// Appends a stretch, or lengthens the last one where it goes on on both sides. Those before number
/// `begin` are left alone: they are another plane's.
void append_stretch(std::vector<Stretch>& out, size_t begin, const Stretch& next);

}  // namespace braid::engine
