#include "group/member.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/units.h"
#include "group/wire.h"
#include "sys/host/api.h"
#include "sys/host/thread.h"
#include "sys/net/api.h"
#include "sys/net/wake.h"

namespace braid::group {

namespace {

constexpr int64_t kLeaveTime = 1_s;         // for the goodbye to be sent and answered
constexpr int64_t kStoreCloseTime = 2_s;    // for rank 0 to hand out what is queued
constexpr uint64_t kMaxRoundsAhead = 1024;  // parts for later exchanges than this are dropped

struct Part {
  std::string topic;
  std::string bytes;
};
using Round = std::vector<std::optional<Part>>;  // by rank

std::string name_ranks(const std::vector<int>& ranks) {
  if (ranks.empty()) return "the store";  // all are here, but our own part is not out yet
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

class MonitoredMember final : public Member {
 public:
  MonitoredMember(const Identity& identity, Channel channel, std::unique_ptr<Store> store,
                  sys::Wake wake)
      : identity_(identity),
        channel_(std::move(channel)),
        store_(std::move(store)),
        wake_(std::move(wake)),
        has_joined_(static_cast<size_t>(identity.size), false),
        has_left_(static_cast<size_t>(identity.size)) {}
  Status start() {
    BRAID_ASSIGN_OR_RETURN(std::thread thread,
                           sys::start_thread("control connection", [this] { monitor(); }));
    thread_ = std::make_unique<std::thread>(std::move(thread));
    return {};
  }
  ~MonitoredMember() override { leave(); }

  int rank() const override { return identity_.rank; }
  int size() const override { return identity_.size; }
  int local_rank() const override { return identity_.local_rank; }

  Status wait_ready(Deadline deadline) override;
  Result<std::vector<std::string>> exchange(std::string_view topic, std::string_view blob,
                                            Deadline deadline) override;
  Status barrier(std::string_view topic, Deadline deadline) override {
    return exchange(topic, "", deadline).status();
  }
  bool broken() const noexcept override { return is_broken_.load(std::memory_order_acquire); }
  Status fate() const override;
  void report(const Status& why) override;
  bool has_left(int rank) const noexcept override {
    return has_left_[static_cast<size_t>(rank)].load(std::memory_order_acquire);
  }
  void leave() override;
  void set_interrupt(Interrupt interrupt) override { interrupt_ = std::move(interrupt); }

 private:
  // The caller's side. All of these hold mutex_.
  void send_locked(std::string_view frame);
  void set_fate_locked(Status why);
  void report_locked(const Status& why);
  std::optional<Status> judge_locked(const Round& round, std::string_view topic) const;
  std::vector<int> missing_locked(const Round& round) const;
  template <typename Done>
  Status wait_locked(std::unique_lock<std::mutex>& lock, Deadline deadline, Done done);

  // The monitor thread's side.
  void monitor();
  bool take_orders();
  bool pump();
  void note_sent();
  bool hear_all();
  bool note_forgery();
  void hear(const Frame& frame);
  void hear_blob(const Frame& frame);
  void hear_news(const Frame& frame);
  void hear_end();
  int rank_in(const Frame& frame) const;

  const Identity identity_;
  Channel channel_;  // the monitor thread's alone
  std::unique_ptr<Store> store_;
  sys::Wake wake_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string outbox_;
  bool has_unsent_ = false;  // something in outbox_ or in the channel has not gone to the kernel
  std::vector<bool> has_joined_;
  bool is_ready_ = false;
  bool is_closed_ = false;  // the connection ended, for whatever reason
  bool is_leaving_ = false;
  const char* how_closed_ = "the store's connection closed";
  Status fate_;
  uint64_t next_sequence_ = 0;
  std::map<uint64_t, Round> rounds_;  // parts of exchanges not finished here

  std::vector<std::atomic<bool>> has_left_;
  std::atomic<bool> is_broken_{false};
  int64_t leave_by_ns_ = INT64_MAX;  // the monitor thread's
  bool is_shut_ = false;             // the monitor thread's
  Interrupt interrupt_;              // the caller's
  const int owner_ = sys::process_id();
  std::mutex ending_;  // who leaves: guards thread_ and store_
  std::unique_ptr<std::thread> thread_;
};

// ok when it is done, or the deadline has passed; else what the interrupt said, which is asked
// without the lock: it may run handlers that call report().
template <typename Done>
Status MonitoredMember::wait_locked(std::unique_lock<std::mutex>& lock, Deadline deadline,
                                    Done done) {
  while (!done() && !deadline.passed()) {
    // Far deadlines would overflow the clock.
    const int64_t nap_ns = std::min<int64_t>(deadline.left_ns(), interrupt_ ? kInterruptNap : 1_s);
    changed_.wait_for(lock, std::chrono::nanoseconds(nap_ns));
    if (!interrupt_) continue;
    lock.unlock();
    Status interrupted = interrupt_();
    lock.lock();
    if (!interrupted.ok()) return interrupted;
  }
  return {};
}

void MonitoredMember::send_locked(std::string_view frame) {
  if (is_closed_) return;
  outbox_.append(frame);
  has_unsent_ = true;
  wake_.signal();
}

void MonitoredMember::set_fate_locked(Status why) {
  if (!fate_.ok() || is_leaving_) return;
  fate_ = std::move(why);
  is_broken_.store(true, std::memory_order_release);
  changed_.notify_all();
}

Status MonitoredMember::wait_ready(Deadline deadline) {
  std::unique_lock lock(mutex_);
  const auto is_over = [this] { return is_ready_ || is_closed_ || !fate_.ok(); };
  BRAID_RETURN_IF_ERROR(wait_locked(lock, deadline, is_over));
  if (is_ready_) return {};
  if (!fate_.ok()) return fate_;
  if (is_closed_) return peer_lost("{} before all ranks had joined", how_closed_);
  std::vector<int> missing;
  for (int rank = 0; rank < size(); ++rank)
    if (!has_joined_[static_cast<size_t>(rank)]) missing.push_back(rank);
  return timeout("group of {} ranks: {} did not join", size(), name_ranks(missing));
}

std::vector<int> MonitoredMember::missing_locked(const Round& round) const {
  std::vector<int> missing;
  for (int rank = 0; rank < size(); ++rank)
    if (!round[static_cast<size_t>(rank)]) missing.push_back(rank);
  return missing;
}

// Nothing while the exchange may still come to something; else how it ended. What all ranks have
// sent counts even if one of them died since; so this one must have sent its own part before it
// says that all is well.
std::optional<Status> MonitoredMember::judge_locked(const Round& round,
                                                    std::string_view topic) const {
  for (int rank = 0; rank < size(); ++rank) {
    const auto& part = round[static_cast<size_t>(rank)];
    if (part && part->topic != topic)
      return invalid_argument("exchange: rank {} is at '{}', rank {} is at '{}'", this->rank(),
                              topic, rank, part->topic);
  }
  const std::vector<int> missing = missing_locked(round);
  if (missing.empty()) return has_unsent_ && !is_closed_ ? std::nullopt : std::optional(Status());
  if (!fate_.ok()) return fate_;
  for (const int rank : missing)
    if (has_left(rank)) return peer_lost("exchange '{}': rank {} left", topic, rank);
  if (is_closed_) return peer_lost("exchange '{}': the control connection is closed", topic);
  return std::nullopt;
}

Result<std::vector<std::string>> MonitoredMember::exchange(std::string_view topic,
                                                           std::string_view blob,
                                                           Deadline deadline) {
  BRAID_RETURN_IF_ERROR(check_exchange(topic, blob));
  std::unique_lock lock(mutex_);
  if (is_leaving_) return invalid_argument("exchange '{}': this rank has left the group", topic);
  if (!fate_.ok()) return fate_;
  const uint64_t sequence = next_sequence_++;
  Round& round = rounds_.try_emplace(sequence, static_cast<size_t>(size())).first->second;
  round[static_cast<size_t>(rank())] = Part{std::string(topic), std::string(blob)};
  send_locked(
      encode(Blob{sequence, static_cast<uint32_t>(rank()), std::string(topic), std::string(blob)}));
  std::optional<Status> verdict;
  const auto is_decided = [&] { return (verdict = judge_locked(round, topic)).has_value(); };
  const Status interrupted = wait_locked(lock, deadline, is_decided);
  if (!interrupted.ok()) report_locked(interrupted);
  Status end = interrupted;
  if (interrupted.ok())
    end = verdict.value_or(
        timeout("exchange '{}': {} did not come", topic, name_ranks(missing_locked(round))));
  std::vector<std::string> parts;
  for (auto& part : round)
    if (part) parts.push_back(std::move(part->bytes));
  rounds_.erase(sequence);
  if (!end.ok()) return end;
  return parts;
}

Status MonitoredMember::fate() const {
  const std::lock_guard lock(mutex_);
  return fate_;
}

void MonitoredMember::report(const Status& why) {
  if (why.ok()) return;
  const std::lock_guard lock(mutex_);
  report_locked(why);
}

void MonitoredMember::report_locked(const Status& why) {
  if (!fate_.ok() || is_leaving_) return;
  send_locked(encode(News{why.code(), static_cast<uint32_t>(rank()), why.message()}));
  set_fate_locked(why);
}

void MonitoredMember::leave() {
  // A forked child has a copy of this object, but neither the thread nor the connection, and
  // perhaps a lock that nobody will ever open: it forgets the thread and says nothing.
  if (sys::process_id() != owner_) return (void)thread_.release();
  {
    const std::lock_guard lock(mutex_);
    if (!is_leaving_) send_locked(encode(FrameType::kLeft, {static_cast<uint32_t>(rank())}));
    is_leaving_ = true;
    wake_.signal();
  }
  const std::lock_guard one_at_a_time(ending_);
  if (thread_) thread_->join();
  thread_.reset();
  if (store_) store_->close(Deadline::after_ns(kStoreCloseTime));
  store_.reset();
}

void MonitoredMember::monitor() {
  log::set_rank(rank());
  // The first notes may have come in one read with the welcome: they lie in the channel, and no
  // poll tells of them.
  if (hear_all())
    while (take_orders() && pump()) {
    }
  channel_.close();
  hear_end();
}

// False when there is no more time to say goodbye.
bool MonitoredMember::take_orders() {
  const std::lock_guard lock(mutex_);
  channel_.queue(outbox_);
  outbox_.clear();
  if (is_leaving_ && leave_by_ns_ == INT64_MAX) leave_by_ns_ = now_ns() + kLeaveTime;
  return now_ns() < leave_by_ns_;
}

void MonitoredMember::note_sent() {
  if (channel_.has_output()) return;
  const std::lock_guard lock(mutex_);
  if (!has_unsent_ || !outbox_.empty()) return;
  has_unsent_ = false;
  changed_.notify_all();
}

// False at the end of the stream.
bool MonitoredMember::pump() {
  if (!channel_.flush().ok()) return false;
  note_sent();
  if (leave_by_ns_ != INT64_MAX && !channel_.has_output() && !is_shut_) {
    ::shutdown(channel_.fd(), SHUT_WR);  // the store answers with its own end of stream
    is_shut_ = true;
  }
  const int output = channel_.has_output() ? POLLOUT : 0;
  pollfd entries[] = {{channel_.fd(), static_cast<short>(POLLIN | output), 0},
                      {wake_.fd(), POLLIN, 0}};
  ::poll(entries, 2,
         leave_by_ns_ == INT64_MAX ? -1 : sys::poll_timeout_ms(Deadline::at_ns(leave_by_ns_)));
  if (entries[1].revents != 0) wake_.drain();
  if (entries[0].revents == 0) return true;
  const Status got = channel_.fill();
  return hear_all() && got.ok();
}

bool MonitoredMember::note_forgery() {
  const std::lock_guard lock(mutex_);
  how_closed_ = "a frame had been altered: somebody is on the control connection, which was closed";
  return false;
}

// False when what came cannot be from our store.
bool MonitoredMember::hear_all() {
  while (true) {
    const Frame frame = channel_.next();
    if (frame.state == Frame::State::kForged) return note_forgery();
    if (frame.state == Frame::State::kGarbage) return false;
    if (frame.state == Frame::State::kIncomplete) return true;
    hear(frame);
  }
}

int MonitoredMember::rank_in(const Frame& frame) const {
  auto note = decode_rank_note(frame.body);
  return note.ok() && note->rank < static_cast<uint32_t>(size()) ? static_cast<int>(note->rank)
                                                                 : -1;
}

void MonitoredMember::hear(const Frame& frame) {
  const std::lock_guard lock(mutex_);
  switch (frame.type) {
    case FrameType::kJoined:
    case FrameType::kGone:
      if (const int rank = rank_in(frame); rank >= 0)
        has_joined_[static_cast<size_t>(rank)] = frame.type == FrameType::kJoined;
      break;
    case FrameType::kReady: is_ready_ = true; break;
    case FrameType::kLeft:
      if (const int rank = rank_in(frame); rank >= 0)
        has_left_[static_cast<size_t>(rank)].store(true, std::memory_order_release);
      break;
    case FrameType::kBlob: hear_blob(frame); break;
    case FrameType::kNews: hear_news(frame); break;
    default: break;  // a greeting after the greeting: nothing to us
  }
  changed_.notify_all();
}

void MonitoredMember::hear_blob(const Frame& frame) {
  auto blob = decode_blob(frame.body);
  if (!blob.ok() || blob->rank >= static_cast<uint32_t>(size())) return;
  const bool is_late = blob->sequence < next_sequence_ && !rounds_.contains(blob->sequence);
  if (is_late || blob->sequence >= next_sequence_ + kMaxRoundsAhead) return;
  Round& round = rounds_.try_emplace(blob->sequence, static_cast<size_t>(size())).first->second;
  round[blob->rank] = Part{std::move(blob->topic), std::move(blob->bytes)};
}

void MonitoredMember::hear_news(const Frame& frame) {
  if (auto news = decode_news(frame.body); news.ok())
    set_fate_locked(Status(news->code, std::move(news->text)));
}

void MonitoredMember::hear_end() {
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  if (is_ready_ && !has_left(0)) set_fate_locked(peer_lost("rank 0 died: {}", how_closed_));
  changed_.notify_all();
}

}  // namespace

Status check_exchange(std::string_view topic, std::string_view blob) {
  if (topic.size() > kMaxTopicBytes)
    return invalid_argument("exchange: a topic of {} bytes, at most {} are allowed", topic.size(),
                            kMaxTopicBytes);
  if (blob.size() > kMaxBlobBytes)
    return invalid_argument("exchange '{}': a blob of {} bytes, at most {} are allowed", topic,
                            blob.size(), kMaxBlobBytes);
  return {};
}

Result<std::unique_ptr<Member>> Member::start(const Identity& identity, Channel channel,
                                              std::unique_ptr<Store> store) {
  BRAID_ASSIGN_OR_RETURN(sys::Wake wake, sys::Wake::create());
  auto member = std::make_unique<MonitoredMember>(identity, std::move(channel), std::move(store),
                                                  std::move(wake));
  BRAID_RETURN_IF_ERROR(member->start());
  return std::unique_ptr<Member>(std::move(member));
}

}  // namespace braid::group
