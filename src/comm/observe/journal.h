// Journal: the notes of a comm's last calls, and what all of them add up to.
//
// A ring of a fixed number of notes: memory is bounded, and what falls out is counted. It has the
// memory of the notes that it holds, to 64 of them, so that a comm with few calls costs little, also
// when it is closed and its notes are kept. One mutex, which a call takes when it begins and when it
// ends, for some tens of nanoseconds; readers take it for a few notes at a time, so that a long
// trace never holds up a call.
//
// Threads: any.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/device/links/names.h"
#include "comm/observe/note.h"
#include "comm/observe/tally.h"

namespace braid::comm {

/// Who a journal's comm is.
struct CommFacts {
  std::string name;                // the same on all ranks, unlike that of any other comm
  int rank = 0, size = 1;          // in the comm
  int job_rank = 0;                // of the process in its job
  std::vector<int> ranks;          // the members', in the job
  std::vector<std::string> links;  // of the host, then those of GPUs
  size_t num_gpu_links = kGpuLinkNames.size();

  size_t num_host_links() const { return links.size() - num_gpu_links; }
  /// Of `links`: that of kGpuLinkNames[index].
  int gpu_link(size_t index) const { return static_cast<int>(num_host_links() + index); }
};

class Journal {
 public:
  /// Keeps the last `most_kept` calls, one at least.
  Journal(CommFacts facts, size_t most_kept);

  CommFacts facts() const;
  void rename(const std::string& name);
  /// Gives the call its number and its begin.
  uint64_t begin(CallNote note);
  /// The caller's thread leaves. kScheduled: enqueued on a GPU. kFailed with kOk: note_failure()
  /// will say why.
  void end(uint64_t number, CallState state, Code code, const char* path,
           const std::vector<LinkNote>& links);
  /// The stream came to it, and (not 0) was done with it.
  void time_on_gpu(uint64_t number, int64_t begin_ns, int64_t end_ns);
  /// A call failed for this; the last one, if it has failed without saying why.
  void note_failure(Code code);
  void note_link(size_t link, bool is_up);

  /// Oldest first. Calls that begin meanwhile may be missing.
  std::vector<CallNote> notes() const;
  /// Calls that were begun, whether their notes are kept or not.
  uint64_t num_calls() const;
  uint64_t num_notes() const;
  /// Of all notes it has room for now, but for what their links take.
  uint64_t memory_bytes() const;
  Tally tally() const;

 private:
  // A call that begins waits for one of them to be made, once in 64 calls, and for no copying.
  static constexpr size_t kNotesPerBlock = 64;
  using Block = std::array<CallNote, kNotesPerBlock>;

  CallNote& at(size_t place) const {
    return (*blocks_[place / kNotesPerBlock])[place % kNotesPerBlock];
  }
  const CallNote* find(uint64_t number) const;
  CallNote* find(uint64_t number);

  const size_t most_kept_;
  mutable std::mutex mutex_;  // guards what follows
  CommFacts facts_;
  // Notes of the ring: number n at (n - 1) % most_kept_.
  std::vector<std::unique_ptr<Block>> blocks_;
  uint64_t num_calls_ = 0;
  Tally tally_;
};

}  // namespace braid::comm
