#include "bindings/nccl/core/nodes/across.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string_view>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/units.h"
#include "bindings/nccl/core/enqueue.h"
#include "bindings/nccl/core/nodes/own_facts.h"
#include "bindings/nccl/core/nodes/roll_host.h"
#include "bindings/nccl/core/nodes/rolls.h"
#include "comm/node_group.h"
#include "sys/host/thread.h"

namespace braid::nccl {

namespace {

constexpr int64_t kSignTime = 3_s;  // NCCL's init waits for it
constexpr std::chrono::microseconds kWorkNap{200};
constexpr int64_t kPeaceTime = 10_s, kAbortTime = 1_s, kAbortStart = 20_ms;
constexpr std::chrono::milliseconds kRailLook{1};

/// While it lives, a rail of which `gives_up` tells something is broken off: at their first calls
/// NCCL's ranks connect, on the host, and who does so waits for one that fails beside it, or died, for
/// ever. The program sees nothing of that, as no call of its own is under way.
class RailWatch {
 public:
  RailWatch() = default;
  /// Once. exhausted: the system has no thread left.
  Status begin(std::shared_ptr<NcclRail> rail, NcclRail::GivesUp gives_up) {
    const auto look = [this, rail = std::move(rail), gives_up = std::move(gives_up)] {
      while (!must_stop_) {
        if (!gives_up().ok() || !rail->error().ok()) return rail->abort();
        std::this_thread::sleep_for(kRailLook);
      }
    };
    BRAID_ASSIGN_OR_RETURN(watch_, sys::start_thread("watch of a rail", look));
    return {};
  }
  ~RailWatch() {
    must_stop_ = true;
    if (watch_.joinable()) watch_.join();
  }
  RailWatch(const RailWatch&) = delete;
  RailWatch& operator=(const RailWatch&) = delete;

 private:
  std::atomic<bool> must_stop_{false};
  std::thread watch_;  // last: it uses what is above
};

/// Where all streams of a GPU share one queue, what waits may stand before what it waits for.
bool shares_one_queue() {
  const char* const queues =
      secure_getenv("CUDA_DEVICE_MAX_CONNECTIONS");  // NOLINT(concurrency-mt-unsafe)
  return queues != nullptr && std::string_view(queues) == "1";
}

}  // namespace

Result<std::unique_ptr<AcrossNodes>> AcrossNodes::sign(const std::string& key, const Config& config,
                                                       uint64_t process, uint64_t settings) {
  if (config.text("BRAID_NCCL_NODES") == "off") return unsupported("BRAID_NCCL_NODES is off");
  const auto mark = read_mark(key);
  if (!mark) return unsupported("its id has no mark of braid's");
  RankFacts facts{"", process, settings, 0, unfit_by_environment()};
  BRAID_ASSIGN_OR_RETURN(facts.host, hashed_host(config.text("BRAID_HOST_ID")));
  BRAID_ASSIGN_OR_RETURN(auto guest, RollGuest::sign(*mark, key, config.text("BRAID_JOB_TOKEN"),
                                                     Deadline::after_ns(kSignTime)));
  return std::unique_ptr<AcrossNodes>(
      new AcrossNodes(key, config, std::move(facts), std::move(guest)));
}

AcrossNodes::~AcrossNodes() { end(false); }

Result<Met> AcrossNodes::meet(const std::string& topic, std::string words, int64_t patience_ns,
                              const IsAborted& is_aborted) {
  Coming coming;
  coming.rank = static_cast<uint32_t>(rank_);
  coming.num_ranks = static_cast<uint32_t>(num_ranks_);
  coming.patience_ns = patience_ns;
  coming.words = std::move(words);
  const std::lock_guard at_the_roll(guest_mutex_);
  auto met = guest_ ? guest_->meet(topic, coming, is_aborted)
                    : Result<Met>(unavailable("this rank's part of the communicator has ended"));
  if (!met.ok()) lose(met.status());
  return met;
}

Result<AcrossNodes::Agreed> AcrossNodes::come(int rank, int num_ranks, int nccl_version,
                                              const IsAborted& is_aborted) {
  // NCCL has told all of them the same, so nobody has to be met for it.
  if (static_cast<uint32_t>(num_ranks) > kMostNodeRanks)
    return left(
        unsupported("it has {} ranks; at most {} are taken over", num_ranks, kMostNodeRanks));
  rank_ = rank;
  num_ranks_ = num_ranks;
  facts_.nccl_version = nccl_version;
  BRAID_ASSIGN_OR_RETURN(const Met met,
                         meet("first call", encode(facts_), patience_ns_, is_aborted));
  if (!met.all_came()) return left(unsupported("{}", met.why_not));
  std::vector<RankFacts> all;
  for (const std::string& words : met.words) {
    auto facts = decode_facts(words);
    if (!facts.ok()) return left(facts.status());  // everyone reads the same words
    all.push_back(std::move(facts).value());
  }
  const auto map = judge_nodes(all, may_share_);
  if (!map.ok()) return left(map.status());
  map_ = map.value();
  BRAID_ASSIGN_OR_RETURN(Agreed agreed, move_roll(is_aborted));
  if (agreed.why_not) return agreed;
  BRAID_ASSIGN_OR_RETURN(served_, meet(kGroupTopic, "", patience_ns_, is_aborted));
  return served_.all_came() ? Agreed{} : left(unavailable("{}", served_.why_not));
}

/// Of rank 0, for all: where it can be signed. Empty: it stays, for it is here already, or cannot be.
std::string AcrossNodes::open_roll() const {
  if (const auto mark = read_mark(key_); mark && has_roll(*mark)) return "";
  const auto here = guest_->own_address();
  const auto mark = here.ok() ? add_roll(here.value(), job_token_) : Result<Mark>(here.status());
  if (mark.ok()) return encode(mark.value());
  log::info("nccl", "rank 0 has no roll of its own: {}", mark.status().message());
  return "";
}

// Who made the id need not be a rank: a child's is its parent's. Its end in order would be that of the
// others' group. So the roll goes on where rank 0 is, once all have said in the old one that they have
// signed there; where one has not, all stay.
Result<AcrossNodes::Agreed> AcrossNodes::move_roll(const IsAborted& is_aborted) {
  BRAID_ASSIGN_OR_RETURN(const Met told,
                         meet("roll", rank_ == 0 ? open_roll() : "", patience_ns_, is_aborted));
  if (!told.all_came()) return left(unavailable("{}", told.why_not));
  if (told.words.front().empty()) return Agreed{};
  auto next = sign_at(told.words.front());
  BRAID_ASSIGN_OR_RETURN(const Met met,
                         meet("signed", next.ok() ? "yes" : "no", patience_ns_, is_aborted));
  if (!met.all_came()) return left(unavailable("{}", met.why_not));
  const auto is_yes = [](const std::string& said) { return said == "yes"; };
  if (!std::ranges::all_of(met.words, is_yes)) return Agreed{};
  const std::lock_guard at_the_roll(guest_mutex_);
  guest_ = std::move(next).value();
  return Agreed{};
}

Result<std::unique_ptr<RollGuest>> AcrossNodes::sign_at(const std::string& told) const {
  BRAID_ASSIGN_OR_RETURN(const Mark mark, decode_mark(told));
  return RollGuest::sign(mark, key_, job_token_, Deadline::after_ns(kSignTime));
}

Result<std::shared_ptr<group::Group>> AcrossNodes::join(Deadline deadline,
                                                        const IsAborted& is_aborted) {
  const group::Interrupt interrupt = [is_aborted] {
    return is_aborted() ? unavailable("aborted") : Status();
  };
  BRAID_ASSIGN_OR_RETURN(auto group, guest_->join(served_, rank_, num_ranks_, deadline, interrupt));
  group->set_interrupt({});
  return std::shared_ptr<group::Group>(std::move(group));
}

Result<AcrossNodes::Agreed> AcrossNodes::vote(bool yes, const IsAborted& is_aborted) {
  BRAID_ASSIGN_OR_RETURN(const Met met, meet("vote", yes ? "yes" : "no", patience_ns_, is_aborted));
  if (!met.all_came()) return left(unavailable("{}", met.why_not));
  for (size_t rank = 0; rank < met.words.size(); ++rank)
    if (met.words[rank] != "yes") return left(unavailable("rank {} could not be set up", rank));
  return Agreed{};
}

Result<bool> AcrossNodes::meet(size_t number, int64_t patience_ns, const IsAborted& is_aborted) {
  BRAID_ASSIGN_OR_RETURN(const Met met,
                         meet(fmt::format("meeting {}", number), "", patience_ns, is_aborted));
  return met.all_came();
}

// What a rank meets here it tells the others, and hears what they have met: none goes on alone.
Result<AcrossNodes::Agreed> AcrossNodes::tell_all(group::Group& group, const char* topic,
                                                  const Status& own, Deadline deadline) {
  auto all = group.exchange(topic, own.ok() ? "" : own.message().substr(0, kMostWords), deadline);
  if (!all.ok()) {
    lose(all.status());
    return all.status();
  }
  for (size_t rank = 0; rank < all->size(); ++rank)
    if (const std::string& words = (*all)[rank]; !words.empty())
      return left(unavailable("rank {}: {}", rank, words));
  return Agreed{};
}

Result<AcrossNodes::Agreed> AcrossNodes::finish(group::Group& group, const Status& own,
                                                Deadline deadline) {
  const Status through = comm::NodeGroup(group, map_).finish(deadline);
  if (!through.ok()) {
    lose(through);
    return through;
  }
  return tell_all(group, "nodes through", own, deadline);
}

Result<AcrossNodes::Agreed> AcrossNodes::connect(const braid_nccl_rails& real, group::Group& group,
                                                 comm::Device& device, Deadline deadline) {
  const auto id = NcclRail::agree_on_id(real, group, map_, deadline);
  if (!id.ok()) {
    lose(id.status());
    return id.status();
  }
  if (id->empty()) return left(unavailable("NCCL made no id for a rail"));
  // An abort ends the group's waits, and with it those for NCCL: it waits for the call that connects.
  const NcclRail::GivesUp gives_up = [&group, deadline] {
    if (group.broken()) return group.fate();
    return deadline.passed() ? timeout("NCCL did not connect nodes in time") : Status();
  };
  Status own = connect_own(real, id.value(), device, gives_up);
  BRAID_ASSIGN_OR_RETURN(Agreed agreed, tell_all(group, "nccl rails", own, deadline));
  if (!agreed.why_not) {
    own = warm_up(gives_up);
    if (!own.ok()) rail()->abort();  // who waits for this rank's part hears of it from NCCL
    BRAID_ASSIGN_OR_RETURN(agreed, tell_all(group, "nccl rails warm", own, deadline));
  }
  if (!agreed.why_not) {
    log::info("nccl", "{} nodes of {} ranks: rails are made, with {} of scratch", map_.num_nodes,
              map_.per_node, format_bytes(stages_->scratch_bytes()));
    is_connected_ = true;
    return agreed;
  }
  if (const auto made = rail()) made->abort();
  stages_.reset();
  (void)put_rail(nullptr);
  return agreed;
}

Status AcrossNodes::connect_own(const braid_nccl_rails& real, const std::string& id,
                                comm::Device& device, const NcclRail::GivesUp& gives_up) {
  const int node = map_.node_of(rank_);
  BRAID_ASSIGN_OR_RETURN(std::shared_ptr<NcclRail> made,
                         NcclRail::make(real, id, map_, node, device, gives_up));
  if (!put_rail(made)) return unavailable("the communicator is aborted");
  coll::nodes::StageTerms terms;
  terms.is_on_one_stream = shares_one_queue();
  terms.is_exact = is_exact_;
  BRAID_ASSIGN_OR_RETURN(stages_, coll::nodes::Stages::make(device, *made, map_, node, terms));
  device.faults().before_waits_end([this, &device] {
    const sys::RelaxedCapture relaxed(device.cuda());
    const auto scope = sys::CurrentDevice::use(device.cuda(), device.ordinal());
    break_off(device);
  });
  return {};
}

Status AcrossNodes::warm_up(const NcclRail::GivesUp& gives_up) {
  const std::shared_ptr<NcclRail> made = rail();
  RailWatch watch;
  BRAID_RETURN_IF_ERROR(watch.begin(made, gives_up));
  BRAID_RETURN_IF_ERROR(stages_->warm_up());
  while (true) {
    BRAID_ASSIGN_OR_RETURN(const bool is_idle, stages_->is_idle());
    BRAID_RETURN_IF_ERROR(made->error());  // work of a rail that was broken off ends, too
    if (is_idle) return {};
    BRAID_RETURN_IF_ERROR(gives_up());
    std::this_thread::sleep_for(kWorkNap);
  }
}

Status AcrossNodes::run(const braid_nccl_call& call) {
  if (!stages_) return unavailable("the ranks have no rails");
  const auto dtype = static_cast<Dtype>(call.dtype);
  const sys::DevicePtr send = address_of(call.send), recv = address_of(call.recv);
  const sys::Stream stream{call.stream};
  if (call.op == BRAID_NCCL_ALL_GATHER)
    return stages_->all_gather(send, recv, call.count, dtype, stream);
  if (call.op == BRAID_NCCL_REDUCE_SCATTER)
    return stages_->reduce_scatter(send, recv, call.count, dtype, static_cast<RedOp>(call.redop),
                                   stream);
  return internal_error("nccl call {} does not go over nodes", call.op);
}

bool AcrossNodes::put_rail(std::shared_ptr<NcclRail> rail) {
  const std::lock_guard lock(mutex_);
  rail_.swap(rail);  // the old one ends with the argument, after the lock
  return !is_aborting_;
}

Status AcrossNodes::status() {
  Status why = lost();
  if (!why.ok()) return why;
  const auto made = is_connected_ ? rail() : nullptr;  // of one that is made, connect() tells
  return made ? made->error() : Status();
}

bool AcrossNodes::begin_abort() {
  const std::lock_guard lock(mutex_);
  is_aborting_ = true;
  if (!rail_ || aborting_.joinable()) return rail_ != nullptr;
  auto thread = sys::start_thread("rail abort", [this, made = rail_] {
    made->abort();
    is_rail_aborted_ = true;
  });
  if (thread.ok()) aborting_ = std::move(thread).value();
  return thread.ok();
}

// NCCL's abort tells its kernels at once, and may then wait for what lies before them.
void AcrossNodes::break_off(comm::Device& device) {
  device.fail_kernels();
  if (!begin_abort()) return;
  const Deadline patience = Deadline::after_ns(kAbortStart);
  while (!is_rail_aborted_ && !patience.passed()) std::this_thread::sleep_for(kWorkNap);
}

bool AcrossNodes::finishes_in(int64_t time_ns) {
  const Deadline patience = Deadline::after_ns(time_ns);
  while (!stages_->is_finished() && !patience.passed()) std::this_thread::sleep_for(kWorkNap);
  return stages_->is_finished();
}

// Work that does not end in peace waits for a rank that stands still. NCCL's destroy would wait for it,
// without an end, and its abort ends it. What the comm's own calls have enqueued is behind us: their close
// waits for it as NCCL's destroy does, without an end. Scratch that may still be used is left to who uses it.
void AcrossNodes::end(bool is_in_peace) {
  if (aborting_.joinable()) aborting_.join();
  if (stages_) {
    bool is_finished = finishes_in(is_in_peace ? kPeaceTime : kAbortTime);
    if (!is_finished && is_in_peace) {
      if (const auto made = rail()) made->abort();
      is_finished = finishes_in(kAbortTime);
    }
    if (!is_finished) (void)stages_.release();
  }
  stages_.reset();
  (void)put_rail(nullptr);
  const std::lock_guard nobody_meets(guest_mutex_);
  guest_.reset();
}

}  // namespace braid::nccl
