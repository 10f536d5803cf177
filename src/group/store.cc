#include "group/store.h"

#include <poll.h>
#include <sys/socket.h>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/units.h"
#include "group/channel.h"
#include "group/door.h"
#include "group/proof.h"
#include "group/wire.h"
#include "sys/host/api.h"
#include "sys/host/thread.h"
#include "sys/net/api.h"
#include "sys/net/private_fd.h"
#include "sys/net/wake.h"

namespace braid::group {

namespace {

constexpr int kMaxAccepts = 64;  // in a row, before members are heard again
// To one member: 64 ranks' largest blobs, four exchanges deep.
constexpr size_t kMaxQueuedBytes = 256 << 20;
constexpr int64_t kAcceptPause =
    100_ms;  // after running out of descriptors, instead of a busy loop
// So long after a nameless group is whole, a second claim to a place may mean that it is made of two
// jobs, which were started side by side.
constexpr int64_t kMixTime = 60_s;

std::string address_of(int listener) {
  auto at = sys::local_endpoint(listener);
  return at.ok() ? at->text() : "?";
}

class ThreadedStore final : public Store {
 public:
  ThreadedStore(sys::Fd listener, Terms terms, sys::Wake wake)
      : listener_(std::move(listener)),
        terms_(std::move(terms)),
        wake_(std::move(wake)),
        address_(address_of(listener_.get())),
        door_(address_, terms_.is_users_own, terms_.greeting_ns),
        members_(static_cast<size_t>(terms_.size), nullptr) {
    if (auto mark = sys::process_mark(); mark.ok()) process_ = *mark;
  }
  Status start() {
    BRAID_ASSIGN_OR_RETURN(std::thread thread, sys::start_thread("store", [this] { run(); }));
    thread_ = std::make_unique<std::thread>(std::move(thread));
    return {};
  }
  ~ThreadedStore() override { close(Deadline::after_ns(0)); }

  void close(Deadline deadline) override {
    if (!thread_) return;
    if (sys::process_id() != owner_)
      return (void)thread_.release();  // a forked child has no such thread to join
    close_at_ns_.store(deadline.at_ns(), std::memory_order_relaxed);
    is_closing_.store(true, std::memory_order_release);  // pairs with the acquire in run()
    wake_.signal();
    thread_->join();
    thread_.reset();
  }

 private:
  void run();
  bool is_drained();
  void poll_all(bool is_closing);
  void accept_all();
  void pump(Peer& peer);
  void handle(Peer& peer, const Frame& frame);
  void greet(Peer& peer, const Frame& frame);
  void judge(Peer& peer);
  void judge_claim(Peer& peer);
  void judge_server(Peer& peer);
  bool is_contested(const Session& claim) const;
  void refuse(Peer& peer, RefusalKind kind, std::string text);
  void refuse_as_mixed(Peer& peer);
  void welcome(Peer& peer);
  void relay_blob(Peer& peer, const Frame& frame);
  void note_left(Peer& peer);
  void hear_news(Peer& peer, const Frame& frame);
  void drop(Peer& peer, std::string_view how);
  void announce(Code code, int rank, std::string text);
  void queue_to(Peer& peer, std::string_view frame);
  void to_all_but(const Peer* except, std::string_view frame);
  void expire(Peer& peer);

  sys::PrivateFd listener_;
  const Terms terms_;
  sys::Wake wake_;
  std::string address_;
  Door door_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<Peer*> members_;  // by rank; null while the place is free
  ProcessMark process_{};
  std::string mixed_;  // why nobody is taken any more: this is not one job
  int64_t ready_at_ns_ = 0;
  bool is_ready_ = false;
  bool has_news_ = false;
  int64_t accept_again_ns_ = 0;
  std::atomic<bool> is_closing_{false};
  std::atomic<int64_t> close_at_ns_{0};
  const int owner_ = sys::process_id();
  std::unique_ptr<std::thread> thread_;
};

void ThreadedStore::run() {
  log::set_rank(0);
  while (true) {
    // Pairs with the release in close().
    const bool is_closing = is_closing_.load(std::memory_order_acquire);
    if (is_closing &&
        (Deadline::at_ns(close_at_ns_.load(std::memory_order_relaxed)).passed() || is_drained()))
      break;
    poll_all(is_closing);
    std::erase_if(peers_, [](const auto& peer) { return peer->state == Peer::State::kClosed; });
  }
  peers_.clear();
  listener_.reset();
}

// A socket that is closed with unread input resets the connection, and the other side may lose what
// was sent last. So each member first gets everything and an end of stream, and answers with its
// own.
bool ThreadedStore::is_drained() {
  for (const auto& peer : peers_) {
    if (peer->channel.has_output() || peer->is_shut) continue;
    ::shutdown(peer->channel.fd(), SHUT_WR);
    peer->is_shut = true;
  }
  return std::none_of(peers_.begin(), peers_.end(),
                      [](const auto& peer) { return peer->state == Peer::State::kMember; });
}

void ThreadedStore::poll_all(bool is_closing) {
  int64_t next_ns = is_closing ? close_at_ns_.load(std::memory_order_relaxed) : INT64_MAX;
  const bool accepts = !is_closing && now_ns() >= accept_again_ns_;
  if (!is_closing && !accepts) next_ns = accept_again_ns_;
  std::vector<pollfd> entries{{wake_.fd(), POLLIN, 0}, {accepts ? listener_.get() : -1, POLLIN, 0}};
  for (const auto& peer : peers_) {
    const int output = peer->channel.has_output() ? POLLOUT : 0;
    entries.push_back({peer->channel.fd(), static_cast<short>(POLLIN | output), 0});
    if (peer->state != Peer::State::kMember) next_ns = std::min(next_ns, peer->deadline.at_ns());
  }
  ::poll(entries.data(), entries.size(),
         next_ns == INT64_MAX ? -1 : sys::poll_timeout_ms(Deadline::at_ns(next_ns)));
  if (entries[0].revents != 0) wake_.drain();
  // Accept_all() appends; the new ones wait for the next round.
  const size_t polled = peers_.size();
  for (size_t i = 0; i < polled; ++i) {
    if (entries[i + 2].revents != 0) pump(*peers_[i]);
    expire(*peers_[i]);
  }
  if (entries[1].revents != 0) accept_all();
}

void ThreadedStore::expire(Peer& peer) {
  if (peer.state == Peer::State::kMember || !peer.deadline.passed()) return;
  if (peer.state == Peer::State::kGreeting) door_.warn("a connection said nothing useful in time");
  peer.state = Peer::State::kClosed;
}

void ThreadedStore::accept_all() {
  for (int i = 0; i < kMaxAccepts; ++i) {
    auto fd = sys::accept_on(listener_.get(), Deadline::after_ns(0));
    if (fd.ok()) {
      if (auto peer = door_.admit(std::move(fd).value(), peers_)) peers_.push_back(std::move(peer));
      continue;
    }
    if (fd.status().code() != Code::kTimeout) accept_again_ns_ = now_ns() + kAcceptPause;
    return;
  }
}

void ThreadedStore::pump(Peer& peer) {
  if (peer.state == Peer::State::kClosed) return;
  if (const Status sent = peer.channel.flush(); !sent.ok()) return drop(peer, sent.message());
  const Status got = peer.channel.fill();
  peer.has_spoken = peer.has_spoken || got.ok();
  while (peer.state == Peer::State::kGreeting || peer.state == Peer::State::kMember) {
    const Frame frame = peer.channel.next();
    if (frame.state == Frame::State::kIncomplete) break;
    if (frame.state == Frame::State::kGarbage) return drop(peer, "it sent garbage");
    if (frame.state == Frame::State::kForged)
      return drop(peer, "a frame from it had been altered: somebody is on its control connection");
    handle(peer, frame);
  }
  if (!got.ok()) return drop(peer, "its control connection closed");
  if (peer.state == Peer::State::kRefused && !peer.channel.has_output())
    peer.state = Peer::State::kClosed;
}

void ThreadedStore::handle(Peer& peer, const Frame& frame) {
  if (peer.state == Peer::State::kGreeting) return greet(peer, frame);
  switch (frame.type) {
    case FrameType::kBlob: return relay_blob(peer, frame);
    case FrameType::kNews: return hear_news(peer, frame);
    case FrameType::kLeft: return note_left(peer);
    default: return drop(peer, "it sent a frame that only the store sends");
  }
}

void ThreadedStore::greet(Peer& peer, const Frame& frame) {
  if (frame.type != FrameType::kHello) return drop(peer, "it sent garbage");
  auto hello = decode_hello(frame.body);
  if (!hello.ok()) return drop(peer, "it sent garbage");
  Session& session = peer.session;
  session.rank_nonce = hello->nonce;
  session.job_id = hello->job_id;
  session.rank = hello->rank;
  session.size = hello->size;
  session.process = hello->process;
  session.purpose = hello->purpose;
  if (hello->job_id != terms_.job_id)
    return refuse(
        peer, RefusalKind::kOtherJob,
        fmt::format("this store serves job '{}', not '{}'", terms_.job_id, hello->job_id));
  if (!is_equal(hello->proof, prove_rank(terms_.token, session)))
    return refuse(peer, RefusalKind::kToken,
                  "the job token is another one; set BRAID_JOB_TOKEN alike on all ranks");
  judge(peer);
}

// What a process that has proved the secret may be.
void ThreadedStore::judge(Peer& peer) {
  const Session& session = peer.session;
  if (!mixed_.empty()) return refuse(peer, RefusalKind::kDisagreement, mixed_);
  if (session.purpose == Purpose::kServe) return judge_server(peer);
  if (session.size != static_cast<uint32_t>(terms_.size))
    return refuse(peer, RefusalKind::kDisagreement,
                  fmt::format("rank {} says the group has {} ranks, rank 0 says {}", session.rank,
                              session.size, terms_.size));
  if (session.rank >= session.size)
    return refuse(peer, RefusalKind::kDisagreement,
                  fmt::format("rank {} of {} does not exist", session.rank, session.size));
  judge_claim(peer);
}

void ThreadedStore::judge_claim(Peer& peer) {
  const uint32_t rank = peer.session.rank;
  if (terms_.is_nameless && is_contested(peer.session)) return refuse_as_mixed(peer);
  if (is_ready_)
    return refuse(peer, RefusalKind::kRunning, "a complete group of this job is running here");
  if (members_[rank] != nullptr)
    return refuse(peer, RefusalKind::kDisagreement,
                  fmt::format("rank {} is taken by another process", rank));
  welcome(peer);
}

// Rank 0 of a job with our secret would serve a store of its own, and asks whose this one is.
void ThreadedStore::judge_server(Peer& peer) {
  if (peer.session.process == process_)
    return refuse(peer, RefusalKind::kOwn, "a group of this process");
  const auto is_here = [](const Peer* member) { return member != nullptr && !member->has_left; };
  const bool is_ending =
      has_news_ || (is_ready_ && !std::all_of(members_.begin(), members_.end(), is_here));
  if (terms_.is_nameless && !is_ending) return refuse_as_mixed(peer);
  if (is_ready_)
    return refuse(peer, RefusalKind::kRunning, "a complete group of this job is running here");
  refuse(peer, RefusalKind::kDisagreement, "rank 0 is taken by another process");
}

/// Whether a living process has that place, and it is another one.
bool ThreadedStore::is_contested(const Session& claim) const {
  const Peer* holder = members_[claim.rank];
  return holder != nullptr && !holder->has_left && !has_news_ &&
         holder->session.process != claim.process;
}

void ThreadedStore::refuse_as_mixed(Peer& peer) {
  const std::string text = fmt::format(
      "two processes say that they are rank {} of {} at the store at {}: two jobs of user {} use "
      "this port, and nothing tells them apart; set BRAID_JOB_TOKEN to another random text for "
      "each job, or give each a MASTER_PORT of its own",
      peer.session.rank, terms_.size, address_, ::geteuid());
  refuse(peer, RefusalKind::kDisagreement, text);
  if (is_ready_ && now_ns() - ready_at_ns_ > kMixTime) return;  // it is known to be whole
  mixed_ = text;
  has_news_ = true;
  to_all_but(nullptr, encode(News{Code::kInvalidArgument, 0, text}));
}

void ThreadedStore::refuse(Peer& peer, RefusalKind kind, std::string text) {
  auto from = sys::remote_endpoint(peer.channel.fd());
  // One of ours, early for the next group, is nothing to tell of.
  if (kind != RefusalKind::kRunning && kind != RefusalKind::kOwn)
    door_.warn(fmt::format("refused {} as rank {}: {}", from.ok() ? from->text() : "?",
                           peer.session.rank, text));
  text.resize(std::min<size_t>(text.size(), kMaxRefusalBytes));  // what arrives is what is proved
  Refusal refusal{kind, std::move(text), {}};
  if (kind == RefusalKind::kDisagreement || kind == RefusalKind::kOwn)
    refusal.proof = prove_refusal(terms_.token, peer.session, kind, refusal.text);
  peer.channel.queue(encode(refusal));
  peer.state = Peer::State::kRefused;
  peer.deadline = Deadline::after_ns(terms_.greeting_ns);
  if (!peer.channel.flush().ok() || !peer.channel.has_output()) peer.state = Peer::State::kClosed;
}

void ThreadedStore::welcome(Peer& peer) {
  peer.rank = static_cast<int>(peer.session.rank);
  peer.state = Peer::State::kMember;
  queue_to(peer, encode(Welcome{prove_store(terms_.token, peer.session)}));
  peer.channel.seal(key_to_rank(terms_.token, peer.session),
                    key_to_store(terms_.token, peer.session));
  for (const Peer* member : members_)
    if (member != nullptr) queue_to(peer, encode(FrameType::kJoined, {member->session.rank}));
  members_[peer.session.rank] = &peer;
  to_all_but(nullptr, encode(FrameType::kJoined, {peer.session.rank}));
  is_ready_ = std::find(members_.begin(), members_.end(), nullptr) == members_.end();
  if (!is_ready_) return;
  ready_at_ns_ = now_ns();
  to_all_but(nullptr, encode_ready());
}

void ThreadedStore::relay_blob(Peer& peer, const Frame& frame) {
  auto blob = decode_blob(frame.body);
  if (!blob.ok() || blob->rank != peer.session.rank || !is_ready_)
    return drop(peer, "it sent a malformed blob");
  to_all_but(&peer, encode(*blob));
}

// Of a group that forms the place is free at once: the end of the stream may come behind the last
// rank.
void ThreadedStore::note_left(Peer& peer) {
  if (!is_ready_) return drop(peer, "it left");
  peer.has_left = true;
  to_all_but(&peer, encode(FrameType::kLeft, {peer.session.rank}));
}

void ThreadedStore::hear_news(Peer& peer, const Frame& frame) {
  auto news = decode_news(frame.body);
  if (!news.ok()) return drop(peer, "it sent malformed news");
  announce(news->code, peer.rank, fmt::format("rank {} failed: {}", peer.rank, news->text));
}

// The first failure is everybody's fate; what follows from it is noise.
void ThreadedStore::announce(Code code, int rank, std::string text) {
  if (has_news_ || !is_ready_) return;
  has_news_ = true;
  log::info("group", "store {}: {}", address_, text);
  to_all_but(nullptr, encode(News{code, static_cast<uint32_t>(rank), std::move(text)}));
}

void ThreadedStore::drop(Peer& peer, std::string_view how) {
  if (peer.state == Peer::State::kClosed) return;
  const bool was_member = peer.state == Peer::State::kMember;
  peer.state = Peer::State::kClosed;
  peer.channel.close();  // now, so that the other side learns it now
  if (!was_member) {
    if (how == "it sent garbage") door_.warn(fmt::format("closed a connection: {}", how));
    return;
  }
  members_[peer.session.rank] = nullptr;
  if (!is_ready_) return to_all_but(nullptr, encode(FrameType::kGone, {peer.session.rank}));
  if (!peer.has_left && !peer.is_shut)
    announce(Code::kPeerLost, peer.rank, fmt::format("rank {} died: {}", peer.rank, how));
}

void ThreadedStore::queue_to(Peer& peer, std::string_view frame) {
  if (peer.state != Peer::State::kMember) return;
  peer.channel.queue(frame);
  // A failed send shows again as an end of stream in pump(), where it can be dropped without
  // recursion.
  (void)peer.channel.flush();
  if (peer.channel.queued_bytes() > kMaxQueuedBytes)
    drop(peer, "it does not read its control connection");
}

void ThreadedStore::to_all_but(const Peer* except, std::string_view frame) {
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    Peer* member = members_[rank];
    if (member != nullptr && member != except) queue_to(*member, frame);
  }
}

}  // namespace

Result<std::unique_ptr<Store>> Store::serve(sys::Fd listener, Terms terms) {
  BRAID_ASSIGN_OR_RETURN(sys::Wake wake, sys::Wake::create());
  auto store =
      std::make_unique<ThreadedStore>(std::move(listener), std::move(terms), std::move(wake));
  BRAID_RETURN_IF_ERROR(store->start());
  return std::unique_ptr<Store>(std::move(store));
}

}  // namespace braid::group
