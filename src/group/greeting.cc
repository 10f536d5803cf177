#include "group/greeting.h"

#include <poll.h>

#include <algorithm>

#include "base/units.h"
#include "group/proof.h"
#include "group/wire.h"

namespace braid::group {

namespace {

// A host that drops packets must not hold up the other candidates.
constexpr int64_t kConnectTime = 2_s;
// Our store speaks first, at once; what stays silent is foreign.
constexpr int64_t kChallengeTime = 1_s;
constexpr int64_t kAnswerTime = 5_s;  // for the store's answer to our hello

Deadline sooner(Deadline a, int64_t limit_ns) {
  return Deadline::at_ns(std::min(a.at_ns(), now_ns() + limit_ns));
}

Greeting foreign(std::string why) { return {Greeting::Outcome::kForeign, std::move(why)}; }

// The frame's body lies in the channel: valid until its next call.
Result<Frame> await_frame(Channel& channel, Deadline deadline) {
  while (true) {
    const Frame frame = channel.next();
    if (frame.state == Frame::State::kComplete) return frame;
    if (frame.state == Frame::State::kGarbage)
      return invalid_argument("it does not speak braid's protocol");
    if (!sys::poll_one(channel.fd(), POLLIN, deadline)) return timeout("it says nothing");
    BRAID_RETURN_IF_ERROR(channel.fill());
  }
}

Greeting read_refusal(const Frame& frame, const Session& session, const std::string& token) {
  auto refusal = decode_refusal(frame.body);
  if (!refusal.ok()) return foreign(refusal.status().message());
  if (refusal->kind == RefusalKind::kOtherJob)
    return {Greeting::Outcome::kOtherJob, std::move(refusal->text)};
  if (refusal->kind == RefusalKind::kRunning)
    return {Greeting::Outcome::kRunning, std::move(refusal->text)};
  const bool is_proved = refusal->kind == RefusalKind::kDisagreement &&
                         is_equal(refusal->proof, prove_refusal(token, session, refusal->text));
  return {is_proved ? Greeting::Outcome::kRefused : Greeting::Outcome::kStranger,
          std::move(refusal->text)};
}

Greeting read_answer(Channel channel, const Session& session, const std::string& token,
                     Deadline deadline) {
  auto frame = await_frame(channel, sooner(deadline, kAnswerTime));
  if (!frame.ok()) return foreign(frame.status().message());
  if (frame->type == FrameType::kRefusal) return read_refusal(*frame, session, token);
  if (frame->type != FrameType::kWelcome) return foreign("it does not speak braid's protocol");
  auto welcome = decode_welcome(frame->body);
  if (!welcome.ok()) return foreign(welcome.status().message());
  if (!is_equal(welcome->proof, prove_store(token, session)))
    return {Greeting::Outcome::kStranger,
            "it welcomed us, but could not prove that it knows the job token"};
  channel.set_max_body_bytes(kMaxBodyBytes);
  return {Greeting::Outcome::kWelcome, "", std::move(channel)};
}

}  // namespace

Greeting greet_store(const sys::Endpoint& endpoint, const Identity& identity,
                     const std::string& token, Deadline deadline) {
  auto fd = sys::connect_to(endpoint, sooner(deadline, kConnectTime));
  if (!fd.ok()) return {Greeting::Outcome::kNobody, fd.status().message()};
  Channel channel(std::move(fd).value());
  auto frame = await_frame(channel, sooner(deadline, kChallengeTime));
  if (!frame.ok()) return foreign(frame.status().message());
  auto challenge = decode_challenge(frame->body);
  if (frame->type != FrameType::kChallenge || !challenge.ok())
    return foreign("it does not speak braid's protocol");
  auto nonce = fresh_nonce();
  if (!nonce.ok()) return foreign(nonce.status().message());
  const Session session{challenge->nonce, *nonce, identity.job_id,
                        static_cast<uint32_t>(identity.rank), static_cast<uint32_t>(identity.size)};
  channel.queue(encode(
      Hello{*nonce, session.job_id, session.rank, session.size, prove_rank(token, session)}));
  if (const Status sent = channel.flush(); !sent.ok()) return foreign(sent.message());
  return read_answer(std::move(channel), session, token, deadline);
}

}  // namespace braid::group
