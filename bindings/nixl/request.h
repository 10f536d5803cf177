// One transfer of NIXL: many places here, as many there, in memory of any number of registrations.
//
//   prepared --post--> under way --all parts have ended--> done or failed --post--> ...
//
// Places between the same two registrations are one part, and one transfer of the engine; pages of
// one size become a list of pages, and parts that move the same pages (layers that are registered one by
// one) become planes of one. One part carries the notification itself. Of several the engine
// promises no order, so the notification is sent when the last one has ended well, by the engine's
// thread of callbacks: nobody has to look for it to leave.
//
// A request that fails has ended only when all its parts have: then nothing of it can land.
//
// Threads: one at a time per request, as NIXL has it.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "abi.h"
#include "engine/engine.h"

namespace braid::nixl {

struct OwnMemory final : Memory {
  OwnMemory(engine::Engine* engine_in, std::shared_ptr<engine::Region> region_in)
      : Memory(true), engine(engine_in), region(std::move(region_in)) {}
  engine::Engine* engine;
  std::shared_ptr<engine::Region> region;
};

struct PeerMemory final : Memory {
  explicit PeerMemory(engine::RemoteRegion region_in)
      : Memory(false), region(std::move(region_in)) {}
  engine::RemoteRegion region;
};

/// Ranges between two registrations, or pages between several pairs of them.
struct Part {
  engine::Engine* engine = nullptr;
  std::shared_ptr<engine::Region> ours;
  engine::RemoteRegion theirs;
  std::vector<engine::Range> ranges;
  // Or, where page_bytes is not 0, pages by number.
  uint64_t page_bytes = 0, our_stride = 0, their_stride = 0, our_offset = 0, their_offset = 0;
  std::vector<uint64_t> our_ids, their_ids;
  std::vector<engine::PagePlane> more;  // where the same pages move, too

  /// Turns ranges of one size at places a whole number of strides apart into pages.
  void find_pages();
  /// Takes `other` over, if it moves the same pages between memory of the same kinds.
  bool take(const Part& other);
  Result<engine::TicketPtr> begin(Operation operation, engine::TransferOptions options) const;
};

/// Sends a notification's parts on their way, in order.
using Tell = std::function<Result<std::vector<engine::TicketPtr>>(const std::vector<std::string>&)>;

class Request final : public Work {
 public:
  /// invalid_argument: lists of different lengths, or memory that is none of this backend's.
  static Result<std::unique_ptr<Request>> prepare(Operation operation, const TransferPlaces& local,
                                                  const TransferPlaces& remote);
  ~Request() override = default;

  /// Of the engine, that one post() begins.
  size_t num_transfers() const { return parts_.size(); }
  /// `notice`: its parts (notices.h), none for no notification.
  Status post(const std::vector<std::string>& notice, const Tell& tell);
  bool is_done() const;
  /// How it ended, once it is done.
  Status outcome() const;
  /// Takes back what is under way.
  void cancel();
  bool wait(Deadline deadline) const;

 private:
  /// What is under way of one post(). Callbacks of parts hold it, too.
  struct Run {
    mutable std::mutex mutex;
    std::vector<std::pair<engine::Engine*, engine::TicketPtr>> tickets;
    size_t num_left = 0;  // parts that have not ended; the notice waits for them
    bool is_notice_due = false;
    bool has_failed = false;
    bool is_taken_back = false;
    Status trouble;  // of what could not be begun
    Status untold;   // the trouble where there is no memory for the notice; nor was there for this
  };
  explicit Request(Operation operation) : operation_(operation) {}
  void join_parts();
  Status begin_parts(const std::vector<std::string>& notice, const Tell& tell);
  static void part_ended(Run& run, const Status& status, const std::vector<std::string>& notice,
                         const Tell& tell);
  static void send(Run& run, const std::vector<std::string>& notice, const Tell& tell);

  const Operation operation_;
  std::vector<Part> parts_;
  std::shared_ptr<Run> run_;
};

}  // namespace braid::nixl
