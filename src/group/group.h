// Group: who we are. A group is `size` ranks that found each other, proved that they belong to one
// job, and hold a control connection for as long as they live. It carries small blobs and bad news,
// never tensor bytes.
//
// Rank 0 serves a store; every rank (rank 0 too) keeps one authenticated TCP connection to it, and
// a monitor thread of its own that listens on it. The kernel closes the connection of a killed
// process at once, so a death is known in milliseconds; a stopped process keeps its connection, and
// only deadlines find it.
//
// Threads: exchange() and barrier() by one thread at a time; broken(), fate(), report() and
// leave() by any.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/config.h"
#include "base/status.h"

namespace braid::group {

/// What a process must know to join. Filled from the environment, or by tests and `braid run`.
struct Identity {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  std::string store_address = "127.0.0.1";  // where rank 0 listens
  uint16_t store_port = 0;   // first candidate port; 0 with size 1 means no store at all
  std::string job_token;     // secret that all ranks of a job share; never sent
  std::string job_id;        // public name of the job's run; a store refuses ranks of another one
  bool is_one_host = false;  // the launcher says that all ranks are on this host
};

/// Asked about every 50 ms while a rank waits, on the thread that waits and without a lock held;
/// what is not ok ends the wait. Empty: nobody to ask.
using Interrupt = std::function<Status()>;
inline constexpr int64_t kInterruptNap = 50'000'000;

/// Reads RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT (torchrun), else what mpirun, Slurm,
/// PMIx, a LeaderWorkerSet or PET_ variables say (the table in docs/config.md, in this order), and
/// BRAID_JOB_TOKEN. With none of them set: one rank alone. A half-set or malformed environment, or
/// two launchers that disagree, is invalid_argument that names the variable, its text and what was
/// expected.
Result<Identity> identity_from_environment(const Config& config);

class Group {
 public:
  virtual ~Group() = default;

  /// Meets the other ranks at the store. unavailable (no store within the deadline; the message
  /// says what was tried), invalid_argument (rank or size disagree, token refused, rank taken
  /// twice, two jobs that nothing tells apart), timeout (names who is missing), exhausted (this
  /// process may open no connection more), or what `interrupt` answered, which goes on being asked
  /// in every exchange().
  static Result<std::unique_ptr<Group>> join(const Identity& identity, const Config& config,
                                             Deadline deadline, const Interrupt& interrupt = {});

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int local_rank() const = 0;

  /// All-gathers one blob per rank, in rank order. `topic` must be equal on all ranks and is
  /// checked. At most 1 MiB.
  virtual Result<std::vector<std::string>> exchange(std::string_view topic, std::string_view blob,
                                                    Deadline deadline) = 0;
  virtual Status barrier(std::string_view topic, Deadline deadline) = 0;
  /// Whom exchange() asks from now on. What ends an exchange ends the group, too. Between exchanges,
  /// by their thread.
  virtual void set_interrupt(Interrupt /*interrupt*/) {}

  /// True once any rank died, left early or reported a failure. One load: cheap enough for wait
  /// loops. An acquire, as has_left(): what the ranks that are gone had put into memory of this host
  /// can be seen by whoever was answered true.
  virtual bool broken() const noexcept = 0;
  /// ok while healthy; afterwards the first bad news, naming the rank it came from.
  virtual Status fate() const = 0;
  /// Tells every rank that this one failed for `why`; their fate() becomes that. Idempotent, never
  /// blocks long.
  virtual void report(const Status& why) = 0;
  /// True once `rank` said goodbye. That alone breaks nothing: what it sent before is still good.
  /// But nothing more will come from it, so a loop that waits for more from it must give up, once it
  /// has looked for what came before.
  virtual bool has_left(int /*rank*/) const noexcept { return false; }
  /// Orderly goodbye: after it, closing the connection is not a death. Called by the destructor
  /// too. Who comes to it second waits for the first.
  virtual void leave() = 0;
};

}  // namespace braid::group
