#include "comm/device/call_watch.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "base/log.h"

namespace braid::comm {

void CallWatch::start(const Ground& ground, std::function<bool()> is_trouble) {
  observer_ = ground.observer;
  cuda_ = &ground.cuda;
  ordinal_ = ground.ordinal;
  is_trouble_ = std::move(is_trouble);
  if (observer_ == nullptr) return;
  const CommFacts facts = observer_->journal().facts();
  first_link_ = facts.num_host_links();
  num_links_ = std::min(facts.links.size() - first_link_, kMostWatched);
  if (!observer_->wants_gpu_times()) return;
  auto clock = CallClock::create(ground.cuda, ground.idle);
  if (clock.ok())
    clock_ = std::move(clock).value();
  else
    log::warn("comm", "GPU calls are noted without times: {}", clock.status().message());
}

void CallWatch::drop_clock(const Status& why) {
  log::warn("comm", "GPU calls are noted without times from now on: {}", why.message());
  clock_.reset();
}

void CallWatch::note_begin(const CallShape& shape, sys::Stream stream, bool is_captured) {
  settle();
  CallNote note;
  note.shape = shape;
  note.on_gpu = true;
  note.is_captured = is_captured_ = is_captured;
  note.stream = reinterpret_cast<uint64_t>(stream.handle);
  note.state = CallState::kScheduled;
  path_ = "copy engines";
  sent_bytes_ = {};
  number_ = observer_->begin(note);
  if (!clock_ || is_captured) return;
  if (Status begun = clock_->begin(number_, stream); !begun.ok()) drop_clock(begun);
}

std::vector<LinkNote> CallWatch::link_notes() const {
  std::vector<LinkNote> notes;
  const uint64_t all = std::accumulate(sent_bytes_.begin(), sent_bytes_.end(), uint64_t{0});
  for (size_t link = 0; link < num_links_; ++link) {
    if (sent_bytes_[link] == 0) continue;
    LinkNote note;
    note.link = static_cast<int>(first_link_ + link);
    note.sent_bytes = sent_bytes_[link];
    note.parts = static_cast<uint32_t>(static_cast<double>(note.sent_bytes) /
                                       static_cast<double>(all) * plan::kWhole);
    notes.push_back(note);
  }
  return notes;
}

void CallWatch::note_end(sys::Stream stream, bool is_ok) {
  const CallState state = is_ok ? CallState::kScheduled : CallState::kFailed;
  observer_->end(number_, state, Code::kOk, path_, link_notes());
  if (!clock_ || is_captured_ || !is_ok) return;
  if (Status ended = clock_->end(stream); !ended.ok()) drop_clock(ended);
}

void CallWatch::look() {
  if (!clock_ || !clock_->is_pending()) return;
  const auto scope = sys::CurrentDevice::use(*cuda_, ordinal_);
  if (scope.ok()) settle();
}

// A fault is looked for after the events: a kernel that gives up says so before its work is over.
void CallWatch::settle() {
  if (!clock_ || !clock_->is_pending()) return;
  std::vector<std::tuple<uint64_t, int64_t, int64_t>> told;
  const Status settled = clock_->settle([&](uint64_t number, int64_t begin_ns, int64_t end_ns) {
    told.emplace_back(number, begin_ns, end_ns);
  });
  if (told.empty() && settled.ok()) return;
  if (is_trouble_()) return clock_.reset();  // from now on no time means anything
  for (const auto& [number, begin_ns, end_ns] : told)
    observer_->journal().time_on_gpu(number, begin_ns, end_ns);
  if (!settled.ok()) drop_clock(settled);
}

}  // namespace braid::comm
