#include "group/greeting.h"

#include <poll.h>

#include <algorithm>

#include "base/units.h"
#include "group/proof.h"
#include "group/wire.h"
#include "sys/host/api.h"

namespace braid::group {

namespace {

// A host that drops packets must not hold up the other candidates. On this host, only a queue that
// somebody floods is slow, and a new attempt finds a place in it sooner than TCP's own next one.
constexpr int64_t kConnectTime = 2_s, kLoopbackConnectTime = 250_ms;
// Our store speaks first, at once; what stays silent is foreign, or its machine is overloaded.
constexpr int64_t kChallengeTime = 1_s;
constexpr int64_t kAnswerTime = 5_s;  // for the store's answer to our hello

Deadline sooner(Deadline a, int64_t limit_ns) {
  return Deadline::at_ns(std::min(a.at_ns(), now_ns() + limit_ns));
}

Greeting foreign(std::string why) {
  return {Greeting::Outcome::kForeign, std::move(why), Channel{sys::Fd()}};
}

Greeting nobody(const Status& why) {
  return {Greeting::Outcome::kNobody, why.message(), Channel{sys::Fd()}};
}

// A store that is flooded, or about to close, ends connections: it is asked again as soon as one
// that is not there.
Greeting no_word(const Status& why) {
  if (why.code() == Code::kPeerLost) return nobody(why);
  if (why.code() == Code::kTimeout)
    return {Greeting::Outcome::kSilent, why.message(), Channel{sys::Fd()}};
  return foreign(why.message());
}

/// One rank's words with one store. Steps answer with a Greeting that ends it, or with nothing.
class Conversation {
 public:
  Conversation(const Identity& identity, const std::string& token, Purpose purpose,
               Deadline deadline, const Interrupt& interrupt)
      : identity_(identity),
        token_(token),
        purpose_(purpose),
        deadline_(deadline),
        interrupt_(interrupt) {}

  Greeting with(const sys::Endpoint& endpoint);
  /// Not ok when the conversation was broken off, whatever it came to.
  const Status& broken_off() const { return broken_off_; }

 private:
  bool await(int fd, short events, Deadline deadline);
  Status connect(const sys::Endpoint& endpoint);
  Result<Frame> await_frame(Deadline deadline);
  Status hear_challenge();
  Status say_hello();
  Greeting hear_answer();
  Greeting read_refusal(const Frame& frame) const;

  const Identity& identity_;
  const std::string& token_;
  const Purpose purpose_;
  const Deadline deadline_;
  const Interrupt& interrupt_;
  Status broken_off_;
  Session session_;
  Channel channel_{sys::Fd()};
};

// False at the deadline, and when the interrupt says so.
bool Conversation::await(int fd, short events, Deadline deadline) {
  while (true) {
    if (sys::poll_one(fd, events, sooner(deadline, kInterruptNap))) return true;
    if (interrupt_) broken_off_ = interrupt_();
    if (deadline.passed() || !broken_off_.ok()) return false;
  }
}

Status Conversation::connect(const sys::Endpoint& endpoint) {
  BRAID_ASSIGN_OR_RETURN(sys::Fd fd, sys::begin_connect(endpoint));
  const int64_t limit_ns = endpoint.is_loopback() ? kLoopbackConnectTime : kConnectTime;
  if (!await(fd.get(), POLLOUT, sooner(deadline_, limit_ns)))
    return timeout("connect to {}: no answer", endpoint.text());
  BRAID_RETURN_IF_ERROR(sys::connected(fd.get(), endpoint));
  channel_ = Channel(std::move(fd));
  return {};
}

// The frame's body lies in the channel: valid until its next call.
Result<Frame> Conversation::await_frame(Deadline deadline) {
  while (true) {
    const Frame frame = channel_.next();
    if (frame.state == Frame::State::kComplete) return frame;
    if (frame.state == Frame::State::kGarbage)
      return invalid_argument("it does not speak braid's protocol");
    if (!await(channel_.fd(), POLLIN, deadline)) return timeout("it says nothing");
    BRAID_RETURN_IF_ERROR(channel_.fill());
  }
}

Status Conversation::hear_challenge() {
  BRAID_ASSIGN_OR_RETURN(const Frame frame, await_frame(sooner(deadline_, kChallengeTime)));
  auto challenge = decode_challenge(frame.body);
  if (frame.type != FrameType::kChallenge || !challenge.ok())
    return invalid_argument("it does not speak braid's protocol");
  session_.store_nonce = challenge->nonce;
  return {};
}

Status Conversation::say_hello() {
  BRAID_ASSIGN_OR_RETURN(session_.rank_nonce, fresh_nonce());
  BRAID_ASSIGN_OR_RETURN(session_.process, sys::process_mark());
  session_.job_id = identity_.job_id;
  session_.rank = static_cast<uint32_t>(identity_.rank);
  session_.size = static_cast<uint32_t>(identity_.size);
  session_.purpose = purpose_;
  channel_.queue(encode(Hello{session_.rank_nonce, session_.job_id, session_.rank, session_.size,
                              session_.process, session_.purpose, prove_rank(token_, session_)}));
  return channel_.flush();
}

Greeting Conversation::read_refusal(const Frame& frame) const {
  using Outcome = Greeting::Outcome;
  auto refusal = decode_refusal(frame.body);
  if (!refusal.ok()) return foreign(refusal.status().message());
  const auto as = [&](Outcome outcome) {
    return Greeting{outcome, std::move(refusal->text), Channel{sys::Fd()}};
  };
  if (refusal->kind == RefusalKind::kOtherJob) return as(Outcome::kOtherJob);
  if (refusal->kind == RefusalKind::kRunning) return as(Outcome::kRunning);
  const Proof expected = prove_refusal(token_, session_, refusal->kind, refusal->text);
  const bool is_proved = refusal->kind != RefusalKind::kToken && is_equal(refusal->proof, expected);
  if (!is_proved) return as(Outcome::kStranger);
  return as(refusal->kind == RefusalKind::kOwn ? Outcome::kOwn : Outcome::kRefused);
}

Greeting Conversation::hear_answer() {
  auto frame = await_frame(sooner(deadline_, kAnswerTime));
  if (!frame.ok()) return no_word(frame.status());
  if (frame->type == FrameType::kRefusal) return read_refusal(*frame);
  if (frame->type != FrameType::kWelcome) return foreign("it does not speak braid's protocol");
  auto welcome = decode_welcome(frame->body);
  if (!welcome.ok()) return foreign(welcome.status().message());
  if (!is_equal(welcome->proof, prove_store(token_, session_)))
    return {Greeting::Outcome::kStranger,
            "it welcomed us, but could not prove that it knows the job token", Channel{sys::Fd()}};
  channel_.seal(key_to_store(token_, session_), key_to_rank(token_, session_));
  return {Greeting::Outcome::kWelcome, "", std::move(channel_)};
}

Greeting Conversation::with(const sys::Endpoint& endpoint) {
  if (const Status there = connect(endpoint); !there.ok()) {
    // Of this process, and no word about the other side.
    if (there.code() == Code::kExhausted)
      broken_off_ = exhausted("group: rank {}: no connection to {}: {}; ulimit -n bounds them",
                              identity_.rank, endpoint.text(), there.message());
    return nobody(there);
  }
  if (const Status heard = hear_challenge(); !heard.ok()) return no_word(heard);
  if (const Status said = say_hello(); !said.ok()) return no_word(said);
  return hear_answer();
}

}  // namespace

Result<Greeting> greet_store(const sys::Endpoint& endpoint, const Identity& identity,
                             const std::string& token, Purpose purpose, Deadline deadline,
                             const Interrupt& interrupt) {
  Conversation conversation(identity, token, purpose, deadline, interrupt);
  Greeting greeting = conversation.with(endpoint);
  BRAID_RETURN_IF_ERROR(conversation.broken_off());
  return greeting;
}

}  // namespace braid::group
