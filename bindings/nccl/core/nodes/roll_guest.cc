#include "bindings/nccl/core/nodes/roll_guest.h"

#include <poll.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <thread>

#include "base/units.h"
#include "group/greeting.h"
#include "group/member.h"
#include "group/wire.h"

namespace braid::nccl {

namespace {

constexpr int64_t kAbortLook = 5_ms;  // for an abort
// Beyond the patience of a meeting, for its outcome to come here.
constexpr int64_t kGrace = 15_s;
constexpr std::chrono::milliseconds kBetweenKnocks{20};

/// A door that is flooded is knocked at again, and one behind which nobody has found the time to
/// answer: the mark says that there is a roll.
Result<group::Channel> let_in(const sys::Endpoint& at, const group::Identity& identity,
                              Deadline deadline, const group::Interrupt& interrupt) {
  while (true) {
    BRAID_ASSIGN_OR_RETURN(group::Greeting greeting,
                           group::greet_store(at, identity, identity.job_token,
                                              group::Purpose::kJoin, deadline, interrupt));
    if (greeting.outcome == group::Greeting::Outcome::kWelcome) return std::move(greeting.channel);
    const bool may_come = greeting.outcome == group::Greeting::Outcome::kNobody ||
                          greeting.outcome == group::Greeting::Outcome::kSilent;
    if (!may_come || deadline.passed())
      return unavailable("the roll at {}: {}", at.text(), greeting.text);
    std::this_thread::sleep_for(kBetweenKnocks);
  }
}

}  // namespace

Result<std::unique_ptr<RollGuest>> RollGuest::sign(const Mark& mark, std::string_view key,
                                                   const std::string& job_token,
                                                   Deadline deadline) {
  group::Identity identity;
  identity.job_token = roll_token(mark, job_token);
  identity.job_id = roll_of_key(mark, key);
  BRAID_ASSIGN_OR_RETURN(group::Channel channel, let_in(mark.at, identity, deadline, {}));
  std::unique_ptr<RollGuest> guest(new RollGuest(mark.at, identity.job_id, std::move(channel)));
  guest->channel_.queue(group::encode(group::Blob{0, 0, "sign", ""}));
  BRAID_RETURN_IF_ERROR(guest->await("sign", deadline, [] { return false; }).status());
  return guest;
}

Result<std::string> RollGuest::await(const std::string& topic, Deadline deadline,
                                     const std::function<bool()>& is_aborted) {
  while (true) {
    BRAID_RETURN_IF_ERROR(channel_.flush());
    const group::Frame frame = channel_.next();
    if (frame.state == group::Frame::State::kComplete) {
      BRAID_ASSIGN_OR_RETURN(group::Blob blob, group::decode_blob(frame.body));
      if (frame.type == group::FrameType::kBlob && blob.topic == topic) return blob.bytes;
      continue;  // of a meeting that was left
    }
    if (frame.state != group::Frame::State::kIncomplete)
      return peer_lost("the roll at {} sent what no braid sends", at_.text());
    if (is_aborted()) return unavailable("aborted");
    if (deadline.passed()) return timeout("the roll at {} does not answer", at_.text());
    const int events = channel_.has_output() ? POLLIN | POLLOUT : POLLIN;
    if (!sys::poll_one(channel_.fd(), static_cast<short>(events), Deadline::after_ns(kAbortLook)))
      continue;
    BRAID_RETURN_IF_ERROR(channel_.fill());
  }
}

Result<Met> RollGuest::meet(const std::string& topic, const Coming& coming,
                            const std::function<bool()>& is_aborted) {
  channel_.queue(group::encode(group::Blob{0, 0, topic, encode(coming)}));
  const Deadline deadline = Deadline::after_ns(coming.patience_ns + kGrace);
  auto bytes = await(topic, deadline, is_aborted);
  if (!bytes.ok()) {
    channel_.close();  // a word of ours that nobody heard the answer to must not count later
    return bytes.status().with_context("the ranks' meeting '" + topic + "'");
  }
  return decode_met(std::as_bytes(std::span(*bytes)));
}

Result<std::unique_ptr<group::Group>> RollGuest::join(const Met& met, int rank, int num_ranks,
                                                      Deadline deadline,
                                                      const group::Interrupt& interrupt) const {
  if (met.words.size() != static_cast<size_t>(num_ranks) + 1)
    return internal_error("the roll named no group");
  const std::string& served = met.words.back();
  const size_t space = served.find(' ');
  uint16_t port = 0;
  const char* const end = served.data() + std::min(space, served.size());
  if (std::from_chars(served.data(), end, port).ptr != end || space == std::string::npos)
    return internal_error("the roll named no group");
  group::Identity identity;
  identity.rank = identity.local_rank = rank;
  identity.size = num_ranks;
  identity.job_id = name_;
  identity.job_token = served.substr(space + 1);
  sys::Endpoint at = at_;
  at.set_port(port);
  BRAID_ASSIGN_OR_RETURN(group::Channel channel, let_in(at, identity, deadline, interrupt));
  BRAID_ASSIGN_OR_RETURN(auto member, group::Member::start(identity, std::move(channel), nullptr));
  member->set_interrupt(interrupt);
  BRAID_RETURN_IF_ERROR(member->wait_ready(deadline));
  return std::unique_ptr<group::Group>(std::move(member));
}

}  // namespace braid::nccl
