#include "bindings/nccl/core/roll.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "base/units.h"
#include "group/proof.h"
#include "sys/error_text.h"
#include "sys/fd.h"
#include "sys/host/api.h"
#include "sys/shm/futex.h"

namespace braid::nccl {

namespace {

using Word = std::atomic<uint32_t>;
static_assert(Word::is_always_lock_free, "shared between processes");

constexpr uint32_t kNothing = 1U << 31;  // of arrivals and votes: it has come to nothing
constexpr int64_t kLookEvery = 5_ms;     // for an abort
constexpr int64_t kCountEvery = 200_ms;  // for the living: a call of the kernel for every rank

void wake_all(const Word& word) { (void)sys::futex_wake(word, INT32_MAX); }

/// Counts this rank, unless the word is decided.
void count_in(Word& word) {
  uint32_t seen = word.load();
  while ((seen & kNothing) == 0 && !word.compare_exchange_weak(seen, seen + 1)) {
  }
  wake_all(word);
}

/// Decides that it comes to nothing, unless all are in.
void give_up(Word& word, uint32_t all) {
  uint32_t seen = word.load();
  while ((seen & kNothing) == 0 && seen < all &&
         !word.compare_exchange_weak(seen, seen | kNothing)) {
  }
  wake_all(word);
}

// A keyed hash of a public text: whoever does not have the key cannot find the page.
Result<std::string> name_from(const std::string& key, const std::string& host_id) {
  group::Session session;
  BRAID_ASSIGN_OR_RETURN(const std::string host, sys::host_id(host_id));
  // The number is the page's form: ranks of another form meet elsewhere, and so not at all.
  session.job_id = "braid roll 2 of an nccl communicator on host " + host;
  std::string name = fmt::format("/braid-nccl-{}-", geteuid());
  const group::Proof proof = group::prove_rank(key, session);
  for (size_t i = 0; i < 16; ++i) name += fmt::format("{:02x}", static_cast<unsigned>(proof[i]));
  return name;
}

// It may have been put there by somebody else, to read our token.
Status check_owner(int fd, const std::string& name) {
  struct stat facts{};
  if (fstat(fd, &facts) != 0) return driver_error("{}: fstat: {}", name, sys::error_text(errno));
  if (facts.st_uid != geteuid() || (facts.st_mode & 0777) != 0600)
    return unavailable("{}: owned by user {} with mode {:o}", name, facts.st_uid,
                       facts.st_mode & 0777);
  return {};
}

}  // namespace

struct Roll::Page {
  struct Seat {
    std::atomic<uint64_t> process, settings;
  };
  Word num_begun, num_signed;  // seats that were taken, and those of them that are written
  Word arrivals, votes;
  Word meetings[kNumMeetings];
  Word port;
  char token[64];
  Seat seats[BRAID_NCCL_MOST_RANKS];
};

Roll::Roll(std::string name, sys::Segment segment, LivenessLock liveness)
    : name_(std::move(name)), segment_(std::move(segment)), liveness_(std::move(liveness)) {}

Roll::Page& Roll::page() const { return *std::launder(reinterpret_cast<Page*>(segment_.data())); }

Result<Roll> Roll::open(const std::string& key, const std::string& host_id) {
  BRAID_ASSIGN_OR_RETURN(const std::string name, name_from(key, host_id));
  sys::Fd fd(shm_open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (fd.get() < 0) return unavailable("{}: shm_open: {}", name, sys::error_text(errno));
  BRAID_RETURN_IF_ERROR(check_owner(fd.get(), name));
  constexpr uint64_t kBytes = 4096;
  static_assert(sizeof(Page) <= kBytes);
  // posix_fallocate, so that a full /dev/shm is an error here and no SIGBUS later.
  if (const int error = posix_fallocate(fd.get(), 0, kBytes); error != 0)
    return exhausted("{}: {} bytes: {}", name, kBytes, sys::error_text(error));
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return exhausted("{}: mmap: {}", name, sys::error_text(errno));
  sys::Segment segment(sys::Fd(), static_cast<std::byte*>(memory), kBytes);
  BRAID_ASSIGN_OR_RETURN(LivenessLock liveness, LivenessLock::on(std::move(fd)));
  return Roll(name, std::move(segment), std::move(liveness));
}

// Written after the claim: who is counted is seen to live. A rank that cannot claim is counted as
// begun only, and so the roll is complete for nobody.
Status Roll::sign(const Signature& signature) {
  const uint32_t seat = page().num_begun.fetch_add(1);
  if (seat >= BRAID_NCCL_MOST_RANKS)
    return unsupported("more than {} ranks sign", BRAID_NCCL_MOST_RANKS);
  BRAID_RETURN_IF_ERROR(liveness_.claim(seat));
  process_ = signature.process;
  page().seats[seat].process = signature.process;
  page().seats[seat].settings = signature.settings;
  page().num_signed.fetch_add(1);
  return {};
}

// Keys are never used twice (Entry::next_child), so nobody can take the name between the two steps.
void Roll::seal() {
  if (liveness_.is_named(("/dev/shm" + name_).c_str())) (void)shm_unlink(name_.c_str());
}

Status Roll::check(int num_ranks, bool may_share) const {
  const uint32_t begun = page().num_begun, num_signed = page().num_signed;
  if (begun != static_cast<uint32_t>(num_ranks) || num_signed != begun)
    return unsupported("{} of {} ranks are on this host and under braid", begun, num_ranks);
  const auto& seats = page().seats;
  for (uint32_t i = 0; i < begun; ++i) {
    if (seats[i].settings != seats[0].settings)
      return unsupported("ranks have different BRAID_ settings");
    for (uint32_t j = 0; j < i; ++j)
      if (!may_share && seats[i].process == seats[j].process)
        return unsupported("one process has several of its GPUs, and BRAID_NCCL_SHARED is off");
  }
  return {};
}

bool Roll::has_lost_one() const {
  const uint32_t num_signed = std::min<uint32_t>(page().num_signed, BRAID_NCCL_MOST_RANKS);
  for (uint32_t seat = 0; seat < num_signed; ++seat)
    if (page().seats[seat].process != process_ && !liveness_.is_claimed_by_another(seat))
      return true;
  return false;
}

/// Waits until all are in (true) or it has come to nothing, and gives up itself when it may not
/// wait or waits for the dead.
bool Roll::all_in(Word& word, uint32_t all, Deadline deadline,
                  const std::function<bool()>& is_aborted) const {
  Deadline next_count = Deadline::after_ns(kCountEvery);
  while (true) {
    const uint32_t seen = word.load();
    if ((seen & kNothing) != 0) return false;
    if (seen >= all) return true;
    bool is_over = deadline.passed() || is_aborted();
    if (!is_over && next_count.passed()) {
      is_over = has_lost_one();
      next_count = Deadline::after_ns(kCountEvery);
    }
    if (is_over)
      give_up(word, all);
    else
      (void)sys::futex_wait(word, seen, Deadline::after_ns(kLookEvery));
  }
}

// Without this rank the count cannot become full.
void Roll::decline() {
  page().arrivals.fetch_or(kNothing);
  wake_all(page().arrivals);
}

Status Roll::arrive(int num_ranks, Deadline deadline, const std::function<bool()>& is_aborted) {
  count_in(page().arrivals);
  if (all_in(page().arrivals, static_cast<uint32_t>(num_ranks), deadline, is_aborted)) return {};
  return unavailable("{} of {} ranks came to the first call{}", page().arrivals & ~kNothing,
                     num_ranks, has_lost_one() ? ", and one has ended" : "");
}

bool Roll::meet(size_t slot, int num_ranks, Deadline deadline,
                const std::function<bool()>& is_aborted) {
  count_in(page().meetings[slot]);
  return all_in(page().meetings[slot], static_cast<uint32_t>(num_ranks), deadline, is_aborted);
}

void Roll::publish(const Rendezvous& rendezvous) {
  std::memcpy(page().token, rendezvous.token.data(),
              std::min(rendezvous.token.size(), sizeof page().token));
  page().port.store(rendezvous.port);
  wake_all(page().port);
}

Result<Rendezvous> Roll::find_rendezvous(Deadline deadline,
                                         const std::function<bool()>& is_aborted) {
  Deadline next_count = Deadline::after_ns(kCountEvery);
  while (page().port.load() == 0) {
    if ((page().votes.load() & kNothing) != 0) return unavailable("another rank has failed");
    if (deadline.passed() || is_aborted()) return unavailable("rank 0 has not served a store");
    if (next_count.passed()) {
      if (has_lost_one()) return unavailable("another rank has ended");
      next_count = Deadline::after_ns(kCountEvery);
    }
    (void)sys::futex_wait(page().port, 0, Deadline::after_ns(kLookEvery));
  }
  return Rendezvous{static_cast<uint16_t>(page().port.load()),
                    std::string(page().token, sizeof page().token)};
}

Status Roll::vote(bool yes, int num_ranks, Deadline deadline,
                  const std::function<bool()>& is_aborted) {
  const auto all = static_cast<uint32_t>(num_ranks);
  if (yes)
    count_in(page().votes);
  else
    give_up(page().votes, all);
  if (all_in(page().votes, all, deadline, is_aborted)) return {};
  return unavailable("a rank could not be set up");
}

}  // namespace braid::nccl
