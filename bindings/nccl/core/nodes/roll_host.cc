#include "bindings/nccl/core/nodes/roll_host.h"

#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "base/units.h"
#include "bindings/nccl/core/nodes/comm_roll.h"
#include "bindings/nccl/core/nodes/roll_wire.h"
#include "group/door.h"
#include "group/proof.h"
#include "group/wire.h"
#include "sys/host/api.h"
#include "sys/host/thread.h"
#include "sys/net/private_fd.h"
#include "sys/net/wake.h"

namespace braid::nccl {

namespace {

using group::Frame;
using group::FrameType;
using group::Peer;

constexpr int64_t kGreetingTime = 5_s;
constexpr int64_t kTick = 100_ms;  // while a meeting is open
constexpr size_t kMostQueuedBytes = 16 << 20;
constexpr size_t kFewestGreetings = 8;

/// Ranks that are let in: the program needs descriptors, too. Who is turned away has not signed.
size_t most_by_descriptors() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 256;
  return static_cast<size_t>(std::min<rlim_t>(limit.rlim_cur, 1 << 16)) / 4;
}

class ThreadedRollHost final : public RollHost {
 public:
  ThreadedRollHost(sys::Fd listener, sys::Endpoint at, sys::Wake wake, size_t most_ranks)
      : listener_(std::move(listener)),
        at_(at),
        most_ranks_(most_ranks),
        wake_(std::move(wake)),
        door_("roll " + at_.text(), false, kGreetingTime) {}
  Status start() {
    BRAID_ASSIGN_OR_RETURN(std::thread thread, sys::start_thread("roll", [this] { run(); }));
    thread_ = std::make_unique<std::thread>(std::move(thread));
    return {};
  }
  ~ThreadedRollHost() override {
    if (!thread_) return;
    if (sys::process_id() != owner_) {  // a fork has no such thread
      (void)thread_.release();
      return;
    }
    is_closing_ = true;
    wake_.signal();
    thread_->join();
  }

  Result<Mark> add_id(const std::string& job_token) override {
    Mark mark{at_, {}};
    BRAID_RETURN_IF_ERROR(sys::random_bytes(mark.secret));
    const std::lock_guard lock(mutex_);
    tokens_[roll_of_id(mark)] = roll_token(mark, job_token);
    return mark;
  }

 private:
  void run();
  void poll_all();
  void accept_all();
  void pump(Peer& peer);
  void greet(Peer& peer, const Frame& frame);
  bool is_full() const;
  size_t most_ranks() const { return most_ranks_ != 0 ? most_ranks_ : most_by_descriptors(); }
  void refuse(Peer& peer, group::RefusalKind kind, std::string text);
  void hear(Peer& peer, const Frame& frame);
  CommRoll& roll_of(const Peer& peer);
  void say(Peer& peer, const std::string& topic, std::string bytes);
  void drop(Peer& peer);
  void expire();
  std::string token_of(const std::string& roll);

  sys::PrivateFd listener_;
  const sys::Endpoint at_;
  const size_t most_ranks_;  // 0: by the limit of descriptors
  sys::Wake wake_;
  group::Door door_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::map<std::string, CommRoll> rolls_;
  std::mutex mutex_;
  std::map<std::string, std::string> tokens_;  // by the id's name
  std::atomic<bool> is_closing_{false};
  const int owner_ = sys::process_id();
  std::unique_ptr<std::thread> thread_;
};

void ThreadedRollHost::run() {
  while (!is_closing_) {
    poll_all();
    expire();
    std::erase_if(rolls_, [](const auto& named) { return named.second.is_empty(); });
    std::erase_if(peers_, [](const auto& peer) { return peer->state == Peer::State::kClosed; });
  }
  rolls_.clear();
  peers_.clear();
}

void ThreadedRollHost::poll_all() {
  std::vector<pollfd> entries{{wake_.fd(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
  for (const auto& peer : peers_) {
    const int output = peer->channel.has_output() ? POLLOUT : 0;
    entries.push_back({peer->channel.fd(), static_cast<short>(POLLIN | output), 0});
  }
  ::poll(entries.data(), entries.size(), sys::poll_timeout_ms(Deadline::after_ns(kTick)));
  if (entries[0].revents != 0) wake_.drain();
  const size_t polled = peers_.size();
  for (size_t i = 0; i < polled; ++i)
    if (entries[i + 2].revents != 0) pump(*peers_[i]);
  if (entries[1].revents != 0) accept_all();
}

void ThreadedRollHost::accept_all() {
  while (true) {
    auto fd = sys::accept_on(listener_.get(), Deadline::after_ns(0));
    if (!fd.ok()) {
      // Out of descriptors: not a busy loop.
      if (fd.status().code() != Code::kTimeout)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      return;
    }
    // Beside the ranks that are let in, who has yet to say that it is one, and hears when it is full.
    if (peers_.size() >= most_ranks() + most_ranks() / 2 + kFewestGreetings) continue;
    if (auto peer = door_.admit(std::move(fd).value(), peers_)) peers_.push_back(std::move(peer));
  }
}

void ThreadedRollHost::pump(Peer& peer) {
  if (peer.state == Peer::State::kClosed) return;
  if (!peer.channel.flush().ok()) return drop(peer);
  const Status got = peer.channel.fill();
  peer.has_spoken = peer.has_spoken || got.ok();
  while (peer.state == Peer::State::kGreeting || peer.state == Peer::State::kMember) {
    const Frame frame = peer.channel.next();
    if (frame.state == Frame::State::kIncomplete) break;
    if (frame.state != Frame::State::kComplete) return drop(peer);
    if (peer.state == Peer::State::kGreeting)
      greet(peer, frame);
    else
      hear(peer, frame);
  }
  if (!got.ok()) drop(peer);
}

std::string ThreadedRollHost::token_of(const std::string& roll) {
  const std::lock_guard lock(mutex_);
  const auto found = tokens_.find(roll.substr(0, roll.find('/')));
  return found == tokens_.end() ? "" : found->second;
}

void ThreadedRollHost::greet(Peer& peer, const Frame& frame) {
  auto hello = group::decode_hello(frame.body);
  if (frame.type != FrameType::kHello || !hello.ok()) return drop(peer);
  group::Session& session = peer.session;
  session.rank_nonce = hello->nonce;
  session.job_id = hello->job_id;
  session.rank = hello->rank;
  session.size = hello->size;
  session.process = hello->process;
  session.purpose = hello->purpose;
  const std::string token = token_of(hello->job_id);
  if (token.empty())
    return refuse(peer, group::RefusalKind::kOtherJob, "no id of this process has that name");
  if (!group::is_equal(hello->proof, group::prove_rank(token, session)))
    return refuse(peer, group::RefusalKind::kToken,
                  "another id or job token; set BRAID_JOB_TOKEN alike on all ranks");
  // Of a kind that nobody knocks at again for: those inside stay as long as their communicators.
  if (is_full())
    return refuse(
        peer, group::RefusalKind::kOtherJob,
        fmt::format("the roll over nodes is full: its process lets {} ranks in, a quarter of "
                    "the descriptors that it may have (ulimit -n)",
                    most_ranks()));
  peer.channel.queue(group::encode(group::Welcome{group::prove_store(token, session)}));
  peer.channel.seal(group::key_to_rank(token, session), group::key_to_store(token, session));
  peer.state = Peer::State::kMember;
  roll_of(peer).let_in(peer);
  if (!peer.channel.flush().ok()) drop(peer);
}

bool ThreadedRollHost::is_full() const {
  const auto is_inside = [](const auto& peer) { return peer->state == Peer::State::kMember; };
  return static_cast<size_t>(std::count_if(peers_.begin(), peers_.end(), is_inside)) >=
         most_ranks();
}

void ThreadedRollHost::refuse(Peer& peer, group::RefusalKind kind, std::string text) {
  door_.warn(text);
  peer.channel.queue(group::encode(group::Refusal{kind, std::move(text), {}}));
  (void)peer.channel.flush();
  peer.state = Peer::State::kClosed;
}

void ThreadedRollHost::hear(Peer& peer, const Frame& frame) {
  if (frame.type != FrameType::kBlob) return drop(peer);
  auto blob = group::decode_blob(frame.body);
  if (!blob.ok()) return drop(peer);
  CommRoll& roll = roll_of(peer);
  if (blob->topic == "sign") {
    roll.sign(peer);
    return say(peer, "sign", "");
  }
  auto coming = decode_coming(std::as_bytes(std::span(blob->bytes)));
  if (!coming.ok() || !roll.come(peer, blob->topic, *coming)) drop(peer);
}

CommRoll& ThreadedRollHost::roll_of(const Peer& peer) {
  const std::string& name = peer.session.job_id;
  const auto tell = [this](Peer& to, const std::string& topic, std::string bytes) {
    say(to, topic, std::move(bytes));
  };
  return rolls_.try_emplace(name, name, at_, tell).first->second;
}

void ThreadedRollHost::say(Peer& peer, const std::string& topic, std::string bytes) {
  if (peer.state != Peer::State::kMember) return;
  peer.channel.queue(group::encode(group::Blob{0, 0, topic, std::move(bytes)}));
  // A failed send shows again as the end of the stream, in pump().
  (void)peer.channel.flush();
  if (peer.channel.queued_bytes() > kMostQueuedBytes) drop(peer);
}

void ThreadedRollHost::drop(Peer& peer) {
  if (peer.state == Peer::State::kClosed) return;
  const bool was_let_in = peer.state == Peer::State::kMember;
  peer.state = Peer::State::kClosed;
  peer.channel.close();
  const auto found = was_let_in ? rolls_.find(peer.session.job_id) : rolls_.end();
  if (found == rolls_.end()) return;
  found->second.leave(peer);
}

void ThreadedRollHost::expire() {
  for (const auto& peer : peers_)
    if (peer->state == Peer::State::kGreeting && peer->deadline.passed()) drop(*peer);
  for (auto& [name, roll] : rolls_) roll.expire();
}

}  // namespace

Result<std::unique_ptr<RollHost>> RollHost::serve(sys::Endpoint at, size_t most_ranks) {
  at.set_port(0);
  BRAID_ASSIGN_OR_RETURN(sys::Fd listener, sys::listen_on(at, kRollBacklog));
  BRAID_ASSIGN_OR_RETURN(const sys::Endpoint found, sys::local_endpoint(listener.get()));
  BRAID_ASSIGN_OR_RETURN(sys::Wake wake, sys::Wake::create());
  auto host =
      std::make_unique<ThreadedRollHost>(std::move(listener), found, std::move(wake), most_ranks);
  BRAID_RETURN_IF_ERROR(host->start());
  return std::unique_ptr<RollHost>(std::move(host));
}

}  // namespace braid::nccl
