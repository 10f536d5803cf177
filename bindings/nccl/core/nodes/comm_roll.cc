#include "bindings/nccl/core/nodes/comm_roll.h"

#include <algorithm>
#include <utility>

#include "bindings/nccl/core/nodes/roll_host.h"
#include "sys/host/api.h"

namespace braid::nccl {

namespace {
constexpr size_t kMostMeetings = 64;  // of one roll
}  // namespace

bool CommRoll::Meeting::is_whole() const {
  return std::all_of(words.begin(), words.end(), [](const auto& one) { return one.has_value(); });
}

bool CommRoll::come(Peer& peer, const std::string& topic, const Coming& coming) {
  if (!have_signed_.contains(&peer)) return false;
  if (!meetings_.contains(topic) && meetings_.size() >= kMostMeetings) return false;
  Meeting& meeting = meetings_[topic];
  if (meeting.num_ranks == 0) {
    meeting.num_ranks = coming.num_ranks;
    meeting.deadline = Deadline::after_ns(coming.patience_ns);
    meeting.words.resize(coming.num_ranks);
  }
  if (meeting.outcome) {
    tell_(peer, topic, encode(*meeting.outcome));
    return true;
  }
  meeting.at.insert(&peer);
  if (coming.num_ranks != meeting.num_ranks || meeting.words[coming.rank].has_value()) {
    end(topic, meeting, {"ranks disagree about who they are", {}});
    return true;
  }
  meeting.words[coming.rank] = coming.words;
  judge(topic, meeting);
  return true;
}

void CommRoll::judge(const std::string& topic, Meeting& meeting) {
  const size_t num_signed = have_signed_.size();
  if (has_lost_one_) return end(topic, meeting, {"a rank has ended", {}});
  if (num_signed != meeting.num_ranks)
    return end(topic, meeting,
               {fmt::format("{} of {} ranks have signed the roll over nodes", num_signed,
                            meeting.num_ranks),
                {}});
  if (!meeting.is_whole()) return;
  Met met;
  for (auto& words : meeting.words) met.words.push_back(std::move(*words));
  if (topic == kGroupTopic) {
    auto served = serve_group(meeting.num_ranks);
    if (!served.ok()) return end(topic, meeting, {served.status().message(), {}});
    met.words.push_back(std::move(served).value());
  }
  end(topic, meeting, std::move(met));
}

Result<std::string> CommRoll::serve_group(uint32_t num_ranks) {
  sys::Endpoint at = at_;
  at.set_port(0);
  BRAID_ASSIGN_OR_RETURN(sys::Fd listener, sys::listen_on(at, kRollBacklog));
  BRAID_ASSIGN_OR_RETURN(const sys::Endpoint found, sys::local_endpoint(listener.get()));
  BRAID_ASSIGN_OR_RETURN(const std::string token, sys::random_hex(32));
  group::Terms terms;
  terms.token = token;
  terms.job_id = name_;
  terms.size = static_cast<int>(num_ranks);
  BRAID_ASSIGN_OR_RETURN(store_, group::Store::serve(std::move(listener), std::move(terms)));
  return fmt::format("{} {}", found.port(), token);
}

void CommRoll::end(const std::string& topic, Meeting& meeting, Met outcome) {
  const std::string bytes = encode(outcome);
  meeting.outcome = std::move(outcome);
  for (Peer* const peer : std::exchange(meeting.at, {})) tell_(*peer, topic, bytes);
}

void CommRoll::leave(Peer& peer) {
  let_in_.erase(&peer);
  if (have_signed_.erase(&peer) != 0) has_lost_one_ = true;
  for (auto& [topic, meeting] : meetings_) {
    meeting.at.erase(&peer);
    if (!meeting.outcome) end(topic, meeting, {"a rank has ended", {}});
  }
}

void CommRoll::expire() {
  for (auto& [topic, meeting] : meetings_) {
    if (meeting.outcome || !meeting.deadline.passed()) continue;
    const auto came = std::count_if(meeting.words.begin(), meeting.words.end(),
                                    [](const auto& words) { return words.has_value(); });
    end(topic, meeting, {fmt::format("{} of {} ranks came in time", came, meeting.num_ranks), {}});
  }
}

}  // namespace braid::nccl
