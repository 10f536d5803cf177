// Communicators: their rolls are signed before NCCL makes them, and sealed when it has.
#include <sys/random.h>

#include <algorithm>

#include "base/log.h"
#include "bindings/nccl/comm_config.h"
#include "bindings/nccl/inside.h"
#include "bindings/nccl/shim.h"
#include "bindings/nccl/threads.h"

namespace braid::nccl {

namespace {

/// For a communicator that no ncclUniqueId names. Empty when the system has no random bytes.
std::string fresh_key() {
  std::string key(32, '\0');
  const ssize_t got = getrandom(key.data(), key.size(), 0);
  return got == static_cast<ssize_t>(key.size()) ? key : "";
}

/// Children have their parent's configuration where they bring none.
uint64_t config_of_child(const Entry& parent, const void* config) {
  return config != nullptr ? speed_of_config(config) : parent.config();
}

}  // namespace

/// Of more than one rank.
const char* Shim::why_never(int num_ranks) const {
  if (!settings_.is_on) return "BRAID_NCCL is off";
  if (!signs_) return "the program has turned it off";
  return num_ranks > most_ranks(settings_) ? "it has more ranks than are ever taken over"
                                           : "the system has no random bytes";
}

// A communicator whose size is not known yet (0) signs: it is looked at again when it is.
std::shared_ptr<Entry> Shim::sign(const std::string& key, int num_ranks, uint64_t config) {
  const bool is_possible = settings_.is_on && signs_ && num_ranks != 1 &&
                           num_ranks <= most_ranks(settings_) && !key.empty();
  const braid_nccl_core* core = is_possible ? open_core_() : nullptr;
  if (core == nullptr) {
    if (num_ranks != 1)
      reasons_.note_left(is_possible ? "the core cannot be opened" : why_never(num_ranks));
    return std::make_shared<Entry>(nullptr, key, nullptr, config);
  }
  ErrorText why;
  braid_nccl_seat* seat = core->sign(key.data(), key.size(), fingerprint_, why);
  if (seat == nullptr) {
    reasons_.note_left(why.text());
    log::info("nccl", "a communicator is left to NCCL: {}", why.text());
  }
  return std::make_shared<Entry>(core, key, seat, config);
}

void Shim::adopt(NcclComm* comm, std::shared_ptr<Entry> entry, NcclResult made) {
  if (!is_good(made) || *comm == nullptr) return;
  if (made == NcclResult::kSuccess && entry->seat() != nullptr) entry->core().seal(entry->seat());
  comms_.put(*comm, std::move(entry));
}

NcclResult Shim::make_signed(std::vector<std::shared_ptr<Entry>> entries, NcclComm* comms,
                             const std::function<NcclResult()>& make) {
  NcclResult made;
  {
    const ReentryGuard guard;
    made = make();
  }
  Group& group = this_group();
  for (size_t i = 0; i < entries.size(); ++i) {
    if (group.depth > 0 && is_good(made))
      group.made.push_back({comms + i, std::move(entries[i])});
    else
      adopt(comms + i, std::move(entries[i]), made);
  }
  return made;
}

NcclResult Shim::create(const std::string& key, int num_ranks, NcclComm* comm,
                        const std::function<NcclResult()>& make, uint64_t config) {
  if (passes() || comm == nullptr) return make();
  return make_signed({sign(key, num_ranks, config)}, comm, make);
}

NcclResult Shim::create_all(int num_ranks, NcclComm* comms,
                            const std::function<NcclResult()>& make) {
  if (passes() || comms == nullptr || num_ranks < 1) return make();
  const std::string key = fresh_key();
  std::vector<std::shared_ptr<Entry>> entries;
  for (int rank = 0; rank < num_ranks; ++rank) entries.push_back(sign(key, num_ranks, 0));
  return make_signed(std::move(entries), comms, make);
}

NcclResult Shim::split(NcclComm parent, int color, int key, NcclComm* child, void* config) {
  const auto make = [&] { return real_.split(parent, color, key, child, config); };
  const std::shared_ptr<Entry> entry = passes() ? nullptr : comms_.find(parent);
  if (entry == nullptr) return make();
  const std::string name = entry->next_child("split", std::to_string(color));
  return create(name, color == kNoColor ? 1 : 0, child, make, config_of_child(*entry, config));
}

NcclResult Shim::shrink(NcclComm parent, int* excluded, int num_excluded, NcclComm* child,
                        void* config, int flags) {
  const auto make = [&] {
    return real_.shrink(parent, excluded, num_excluded, child, config, flags);
  };
  const std::shared_ptr<Entry> entry = passes() ? nullptr : comms_.find(parent);
  if (entry == nullptr || (excluded == nullptr && num_excluded > 0)) return make();
  // What the parent has under way may wait for a rank that is gone; NCCL ends its part.
  const bool breaks_off = (flags & kShrinkAbort) != 0 && entry->seat() != nullptr;
  if (breaks_off) interrupt(*entry);
  std::vector<int> gone(excluded, excluded + std::max(num_excluded, 0));
  std::sort(gone.begin(), gone.end());
  std::string without;
  for (const int rank : gone) without += std::to_string(rank) + ",";
  const NcclResult made = create(entry->next_child("shrink:" + without, ""), 0, child, make,
                                 config_of_child(*entry, config));
  if (breaks_off) entry->core().close(entry->seat(), 0);
  return made;
}

// Before the real communicator is broken off: its kernels may lie behind ours on a stream. And only
// then are we closed, which waits for the streams: ours may lie behind its.
void Shim::interrupt(Entry& entry) {
  entry.give_up();
  if (entry.seat() != nullptr) entry.core().interrupt(entry.seat());
}

// In peace the ranks wait for each other, so those of this process do it side by side.
void Shim::part(const std::shared_ptr<Entry>& entry, bool is_in_peace) {
  const auto close = [](Entry& one, bool in_peace) {
    if (one.seat() != nullptr) one.core().close(one.seat(), in_peace ? 1 : 0);
  };
  if (!is_in_peace) close(*entry, false);
  const std::vector<std::shared_ptr<Entry>> all = comms_.part(entry);
  side_by_side(all.size(), [&](size_t i) {
    if (is_in_peace || all[i] != entry) close(*all[i], is_in_peace);
  });
}

NcclResult Shim::finalize(NcclComm comm) {
  if (const auto entry = passes() ? nullptr : comms_.find(comm)) {
    entry->decide(Entry::State::kHandedOn);  // calls after this are errors, and NCCL's to tell
    part(entry, true);
  }
  const ReentryGuard guard;
  return real_.finalize(comm);
}

NcclResult Shim::destroy(NcclComm comm) {
  if (const auto entry = passes() ? nullptr : comms_.take(comm)) part(entry, true);
  const ReentryGuard guard;
  return real_.destroy(comm);
}

NcclResult Shim::abort(NcclComm comm) {
  const auto entry = passes() ? nullptr : comms_.take(comm);
  if (entry != nullptr) interrupt(*entry);
  NcclResult aborted;
  {
    const ReentryGuard guard;
    aborted = real_.abort(comm);
  }
  if (entry == nullptr) return aborted;
  if (Group& group = this_group(); group.depth > 0)
    group.aborted.push_back(entry);
  else
    part(entry, false);
  return aborted;
}

NcclResult Shim::revoke(NcclComm comm, int flags) {
  const auto entry = passes() ? nullptr : comms_.find(comm);
  if (entry != nullptr) interrupt(*entry);
  NcclResult revoked;
  {
    const ReentryGuard guard;
    revoked = real_.revoke(comm, flags);
  }
  if (entry != nullptr && entry->seat() != nullptr) entry->core().close(entry->seat(), 0);
  return revoked;
}

NcclResult Shim::get_async_error(NcclComm comm, NcclResult* error) {
  const NcclResult result = real_.get_async_error(comm, error);
  if (passes() || result != NcclResult::kSuccess || !is_good(*error)) return result;
  const auto entry = comms_.find(comm);
  if (entry != nullptr && *error == NcclResult::kSuccess) entry->windows().learn();
  if (entry == nullptr || entry->state() != Entry::State::kTaken) return result;
  ErrorText why;
  const int code = entry->core().status(entry->seat(), why);
  if (code == 0) return result;
  entry->fail(why.text());
  *error = result_of(code);
  return result;
}

const char* Shim::get_last_error(NcclComm comm) {
  const auto entry = passes() ? nullptr : comms_.find(comm);
  const char* const text = entry ? entry->error() : nullptr;
  return text != nullptr ? text : real_.get_last_error(comm);
}

}  // namespace braid::nccl
