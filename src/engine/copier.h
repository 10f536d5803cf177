// The copies of one connection on one host: between regions here and memory of the source, of the
// host or of a GPU.
//
//   here   there   pulled                                 fetched: the other way round
//   host   host    the kernel copies between processes    the same
//   GPU    GPU     one kernel, the source's memory mapped; the same
//                  long stretches by copy engines
//   host   GPU     the same, where our memory is pinned   the same
//   GPU    host    into a pinned slot, then to the GPU    to a pinned slot, then out of it
//
// What is to be copied comes as stretches, or as a list of pages on the source's board (board.h),
// of which each entry is looked at when it is read, by whoever reads it.
//
// The source lends a region of a GPU before it first names it (frames.h): an allocation's handle,
// which is opened once. What the source has closed stays mapped here until the connection ends, so
// no copy can meet somebody else's memory.
//
// Threads: the worker's alone.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/frames.h"
#include "engine/ground.h"
#include "sys/peer_memory/api.h"

namespace braid::engine {

/// A pull or a fetch under way.
struct CopyOrder {
  bool is_fetch = false;
  Pull pull;
  // Stretches, or pages: of the first plane, then of the next; where kernels copy, of all planes alike.
  size_t begun = 0;
  uint64_t begun_bytes = 0;          // and of the next one
  uint64_t mark = 0;                 // of the GPU, behind the last copy; 0: it has none
  std::vector<uint64_t> list_marks;  // of kernels that read the board
  size_t size() const {
    return pull.pages.count != 0 ? pull.pages.count * pull.planes.size() : pull.stretches.size();
  }
  bool has_rest() const { return begun != size(); }
  /// What a fetch has put into a slot, to be written to the source when the GPU is through.
  struct FilledSlot {
    Gpu::Slot* slot = nullptr;
    uint64_t mark = 0;
    std::vector<sys::PeerCopy> copies;
  };
  std::deque<FilledSlot> filled_slots;
};

class Copier {
 public:
  explicit Copier(Ground& ground) : ground_(ground) {}
  ~Copier();

  void set_source(int process) { process_ = process; }
  Status lend(const Loan& loan);
  /// The board of the source, once.
  Status open_board(const BoardOffer& offer);
  /// Does what can be done now of `order`. True: anything was begun or done.
  Result<bool> advance(CopyOrder& order);
  /// Whether all of it is done.
  Result<bool> is_done(const CopyOrder& order) const;
  /// Whether the source still waits for it. Once it does not, its memory may hold anything: what
  /// was copied counts only if the source waited for it afterwards.
  bool is_wanted(const Pull& pull) const;
  /// The order was delivered: says so where its source looks first.
  void answer(const Pull& pull) const;
  /// The order is dropped, and its slots are free again.
  static void drop(CopyOrder& order);

 private:
  /// A source's region of a GPU, as ours sees it.
  struct Lent {
    uint64_t base = 0, bytes = 0;  // as the source names it
    sys::DevicePtr address = 0;
  };
  /// An allocation of the source, opened.
  struct Opened {
    sys::IpcHandle handle;
    sys::DevicePtr base = 0;
  };

  /// A stretch, or the beginning of one, in a slot.
  struct InSlot {
    uint64_t offset = 0, bytes = 0;
    Stretch stretch;
    const Region* region = nullptr;
  };
  /// A plane of an order, as it is found here.
  struct Pair {
    std::shared_ptr<Region> region;
    const Lent* lent = nullptr;  // null: memory of the source's host
  };
  using Pairs = std::vector<Pair>;

  Result<Pairs> find(const Pull& pull) const;
  /// Begins as much of the order as there is room for. Whether anything was begun.
  Result<bool> begin(CopyOrder& order, const Pairs& pairs);
  Result<Stretch> stretch(const CopyOrder& order, size_t number, const Pairs& pairs) const;
  /// Stretches or pages, from the first on, that can be read by now.
  size_t num_ready(const CopyOrder& order) const;
  uint64_t num_listed(const PageRun& run) const;
  Result<std::vector<InSlot>> fill_slot(const CopyOrder& order, const Pairs& pairs) const;
  static void take(CopyOrder& order, std::span<const InSlot> begun);
  Result<bool> copy_on_host(CopyOrder& order, const Pairs& pairs);
  Result<bool> copy_by_gpu(CopyOrder& order, const Pairs& pairs);
  Result<bool> copy_stretches(CopyOrder& order, const Region& region, const Lent& lent);
  Result<bool> copy_long(CopyOrder& order, std::span<const PageCopy> copies);
  Result<bool> copy_pages(CopyOrder& order, const Pairs& pairs);
  Result<PageJob> job_of(const CopyOrder& order, const Pairs& pairs) const;
  Result<bool> pull_through_slot(CopyOrder& order, const Pairs& pairs);
  Result<bool> fetch_through_slot(CopyOrder& order, const Pairs& pairs);
  Result<bool> land(CopyOrder& order) const;
  Status check(const Stretch& stretch, const Region& region) const;

  Ground& ground_;
  int process_ = 0;
  std::map<uint64_t, Lent> lent_;
  std::vector<Opened> opened_;
  BoardView board_;
  sys::DevicePtr board_address_ = 0;  // as our GPU sees it; 0: we have none
  std::optional<size_t> queue_;       // of the GPU; none: it has had nothing to do
};

/// The highest number of a page that lies in `whole` bytes; none when not even page 0 does.
std::optional<uint32_t> highest_page(uint64_t whole, uint64_t offset, uint64_t page_bytes,
                                     uint64_t stride);

}  // namespace braid::engine
