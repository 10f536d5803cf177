#include "comm/observe/journal.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace braid::comm {

Journal::Journal(CommFacts facts, size_t most_kept)
    : most_kept_(std::max<size_t>(most_kept, 1)), facts_(std::move(facts)) {
  tally_.links.resize(facts_.links.size());
}

CommFacts Journal::facts() const {
  const std::lock_guard lock(mutex_);
  return facts_;
}

void Journal::rename(const std::string& name) {
  const std::lock_guard lock(mutex_);
  facts_.name = name;
}

const CallNote* Journal::find(uint64_t number) const {
  if (number == 0 || number > num_calls_) return nullptr;
  const CallNote& note = at((number - 1) % most_kept_);
  return note.number == number ? &note : nullptr;
}

CallNote* Journal::find(uint64_t number) {
  return const_cast<CallNote*>(std::as_const(*this).find(number));
}

uint64_t Journal::begin(CallNote note) {
  const std::lock_guard lock(mutex_);
  const size_t place = num_calls_ % most_kept_;
  if (place / kNotesPerBlock == blocks_.size()) blocks_.push_back(std::make_unique<Block>());
  const uint64_t number = ++num_calls_;
  note.number = number;
  note.begin_ns = now_ns();
  tally_.add_call(note);
  at(place) = std::move(note);
  return number;
}

void Journal::end(uint64_t number, CallState state, Code code, const char* path,
                  const std::vector<LinkNote>& links) {
  const std::lock_guard lock(mutex_);
  if (!links.empty()) {  // links of this memory that carried nothing have no share any more
    const size_t num_host = facts_.num_host_links();
    const bool on_gpu = static_cast<size_t>(links.front().link) >= num_host;
    for (size_t i = 0; i < tally_.links.size(); ++i)
      if ((i >= num_host) == on_gpu) tally_.links[i].parts = 0;
    tally_.add_links(links);
  }
  if (state == CallState::kFailed && code != Code::kOk)
    ++tally_.failures[static_cast<size_t>(code)];
  CallNote* note = find(number);
  if (note == nullptr) return;
  note->end_ns = now_ns();
  note->state = state;
  note->code = code;
  note->path = path;
  note->links = links;
  if (state == CallState::kCompleted && !note->on_gpu) tally_.add_time(*note);
}

void Journal::time_on_gpu(uint64_t number, int64_t begin_ns, int64_t end_ns) {
  const std::lock_guard lock(mutex_);
  CallNote* note = find(number);
  if (note == nullptr) return;
  note->gpu_begin_ns = begin_ns;
  note->gpu_end_ns = end_ns;
  if (note->state == CallState::kFailed) return;
  note->state = end_ns != 0 ? CallState::kCompleted : CallState::kStarted;
  if (end_ns != 0) tally_.add_time(*note);
}

void Journal::note_failure(Code code) {
  const std::lock_guard lock(mutex_);
  ++tally_.failures[static_cast<size_t>(code)];
  CallNote* last = find(num_calls_);
  if (last != nullptr && last->state == CallState::kFailed) last->code = code;
}

void Journal::note_link(size_t link, bool is_up) {
  const std::lock_guard lock(mutex_);
  LinkTally& of = tally_.links[link];
  if (of.is_up && !is_up) ++of.losses;
  of.is_up = is_up;
}

uint64_t Journal::num_calls() const {
  const std::lock_guard lock(mutex_);
  return num_calls_;
}

uint64_t Journal::num_notes() const {
  const std::lock_guard lock(mutex_);
  return std::min<uint64_t>(num_calls_, most_kept_);
}

uint64_t Journal::memory_bytes() const {
  const std::lock_guard lock(mutex_);
  return blocks_.size() * sizeof(Block);
}

Tally Journal::tally() const {
  const std::lock_guard lock(mutex_);
  return tally_;
}

std::vector<CallNote> Journal::notes() const {
  constexpr uint64_t kAtOnce = 64;
  std::vector<CallNote> all;
  const uint64_t last = num_calls();
  uint64_t next = last > most_kept_ ? last - most_kept_ + 1 : 1;
  while (next <= last) {
    const std::lock_guard lock(mutex_);
    const uint64_t until = std::min(last, next + kAtOnce - 1);
    for (; next <= until; ++next)
      if (const CallNote* note = find(next)) all.push_back(*note);
  }
  return all;
}

}  // namespace braid::comm
