#include "bindings/nccl/core/seat.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string_view>

#include "base/clock.h"
#include "base/log.h"
#include "base/units.h"
#include "bindings/nccl/core/enqueue.h"
#include "bindings/nccl/core/group_watchdog.h"
#include "bindings/nccl/core/hold_race.h"
#include "bindings/nccl/core/join.h"
#include "bindings/nccl/core/live_seats.h"
#include "bindings/nccl/core/settings.h"
#include "bindings/nccl/core/shared_group.h"
#include "coll/device/collectives.h"
#include "coll/device/entry.h"
#include "comm/node_group.h"
#include "comm/state.h"
#include "group/agree.h"
#include "sys/cuda/owned.h"
#include "sys/host/api.h"
#include "sys/host/thread.h"
#include "sys/net/api.h"
#include "transport/nvlink/fatbins.h"

namespace braid::nccl {

namespace {

// All ranks are here already: they take milliseconds. Whoever ends in between is not seen before.
constexpr int64_t kJoinTime = 15_s;
// For a rank that is late at a call: it may be writing a checkpoint, or never come.
constexpr int64_t kRaceMeeting = 60_s;

/// Random, for processes of different containers may have one number; a fork's is another one, or its
/// end would be taken for that of a thread of its parent's, and waited for.
Result<uint64_t> number_of_process() {
  BRAID_ASSIGN_OR_RETURN(const auto mark, sys::process_mark());
  uint64_t low = 0, high = 0;
  std::memcpy(&low, mark.data(), sizeof low);
  std::memcpy(&high, mark.data() + sizeof low, sizeof high);
  return low ^ high;
}

Result<std::string> fresh_token() {
  std::array<std::byte, 32> bytes{};
  BRAID_RETURN_IF_ERROR(sys::random_bytes(bytes));
  std::string token;
  for (const std::byte byte : bytes) token += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return token;
}

/// Of all sizes of the range, which is what there is without a race.
braid_nccl_choice all_of(SizeRange sizes) {
  const uint32_t bits = (uint32_t{1} << sizes.end) - (uint32_t{1} << sizes.begin);
  return {bits, bits};
}

}  // namespace

Status check_machine() {
  BRAID_RETURN_IF_ERROR(sys::real_cuda().ready());
  if (kernels::barrier_fatbin().empty()) return unavailable("this build of braid has no kernels");
  return {};
}

Result<std::unique_ptr<Seat>> Seat::sign(const std::string& key, uint64_t settings,
                                         sys::Cuda& cuda) {
  BRAID_ASSIGN_OR_RETURN(Config config, config_for_calls());
  return sign(key, settings, cuda, std::move(config));
}

Result<std::unique_ptr<Seat>> Seat::sign(const std::string& key, uint64_t settings, sys::Cuda& cuda,
                                         Config config) {
  BRAID_ASSIGN_OR_RETURN(const uint64_t process, number_of_process());
  BRAID_ASSIGN_OR_RETURN(Roll roll, Roll::open(key, config.text("BRAID_HOST_ID")));
  const uint64_t all_settings = fingerprint_of_settings(settings);
  BRAID_RETURN_IF_ERROR(roll.sign({process, all_settings}));
  auto across = AcrossNodes::sign(key, config, process, all_settings);
  if (!across.ok() && across.status().code() != Code::kUnsupported)
    log::info("nccl", "a communicator over nodes is left to NCCL: {}", across.status().message());
  std::unique_ptr<Seat> seat(new Seat(std::move(config), std::move(roll), cuda));
  if (across.ok()) seat->across_ = std::move(across).value();
  LiveSeats::all().add(seat.get());
  return seat;
}

Seat::~Seat() {
  close(false);
  LiveSeats::all().remove(this);
}

// ---- opening ----

Status Seat::open(const braid_nccl_place& place) {
  const std::lock_guard opening(opening_);
  const sys::RelaxedCapture relaxed(cuda_);
  roll_.seal();
  device_ = place.device;
  rails_ = place.rails;
  Status outcome = open_with_others(place);
  if (!is_later_) roll_.end_liveness_lock();  // it is decided, also for those who have yet to look
  return outcome;
}

// Whether all ranks have signed on this host looks the same on all of them, and over nodes they
// signed before NCCL's init, too.
Status Seat::open_with_others(const braid_nccl_place& place) {
  is_later_ = false;
  if (is_aborted_) return unavailable("aborted");
  const Status here = roll_.check(place.num_ranks, config_.flag("BRAID_NCCL_SHARED"));
  if (here.ok() || !across_) {
    across_.reset();
    return here.ok() ? open_here(place) : here;
  }
  is_later_ = place.op != BRAID_NCCL_ALL_GATHER && place.op != BRAID_NCCL_REDUCE_SCATTER;
  return is_later_ ? here : open_over_nodes(place);
}

Status Seat::open_here(const braid_nccl_place& place) {
  if (place.rank < 0) {
    roll_.decline();  // before it has arrived: the others would wait for it to join their group
    return internal_error("NCCL does not say which rank this is");
  }
  const int64_t patience_ns = config_.duration_ns("BRAID_NCCL_MEET");
  has_arrived_ = true;
  BRAID_RETURN_IF_ERROR(
      roll_.arrive(place.num_ranks, Deadline::after_ns(patience_ns), is_aborted()));
  const Deadline deadline = Deadline::after_ns(patience_ns);
  const Status own = set_up(place.rank, place.num_ranks, place.device, deadline);
  const Status verdict = roll_.vote(own.ok(), place.num_ranks, deadline, is_aborted());
  BRAID_RETURN_IF_ERROR(note_opened(verdict));
  return verdict.ok() || own.ok() ? verdict : own;
}

/// ok; but where the ranks' verdict is no, all that was set up ends.
Status Seat::note_opened(const Status& verdict) {
  {
    const std::lock_guard lock(mutex_);  // a watchdog's status() waits for it
    is_setting_up_ = false;
    is_open_ = verdict.ok();
  }
  if (verdict.ok()) return {};
  if (comm_) (void)comm_->close(false);
  const std::lock_guard lock(mutex_);
  if (group_) group_->leave();
  return {};
}

Status Seat::open_over_nodes(const braid_nccl_place& place) {
  if (place.rank < 0) {
    across_.reset();  // the others hear that a rank has ended
    return internal_error("NCCL does not say which rank this is");
  }
  const int version = place.rails != nullptr ? place.rails->version : 0;
  BRAID_ASSIGN_OR_RETURN(AcrossNodes::Agreed agreed,
                         across_->come(place.rank, place.num_ranks, version, is_aborted()));
  if (!agreed.why_not) {
    const Deadline deadline = Deadline::after_ns(config_.duration_ns("BRAID_NCCL_MEET"));
    const Status own = set_up_over_nodes(deadline);
    if (!own.ok() && group_) group_->report(own);  // who waits for this rank waits in vain
    auto voted = across_->vote(own.ok(), is_aborted());
    if (voted.ok() && voted->why_not && !own.ok()) voted->why_not = own;
    const Status verdict = !voted.ok()      ? voted.status()
                           : voted->why_not ? *voted->why_not
                                            : Status();
    (void)note_opened(verdict);
    BRAID_RETURN_IF_ERROR(voted.status());
    agreed = *voted;
  }
  if (agreed.why_not) {
    across_.reset();
    return *agreed.why_not;
  }
  is_over_nodes_ = true;
  race_time_ns_ *= 2;  // for its third heat
  return {};
}

Status Seat::use_group(std::shared_ptr<group::Group> group) {
  const std::lock_guard lock(mutex_);
  group_ = std::move(group);
  is_setting_up_ = true;
  return is_aborted_ ? unavailable("aborted") : Status();
}

// The comm is that of this node's ranks; what they exchange goes through all of them. Who fails says
// so to the group, which ends it on all.
Status Seat::set_up_over_nodes(Deadline deadline) {
  if (rails_ == nullptr) return internal_error("there is no library to make rails of");
  BRAID_ASSIGN_OR_RETURN(std::shared_ptr<group::Group> group,
                         across_->join(Deadline::after_ns(kJoinTime), is_aborted()));
  BRAID_RETURN_IF_ERROR(use_group(group));
  BRAID_ASSIGN_OR_RETURN(const auto watchdog, GroupWatchdog::begin(*group, deadline));
  Config config = config_;
  BRAID_RETURN_IF_ERROR(config.set("BRAID_GPU_RDMA", "off"));  // the NICs are the rails'
  BRAID_ASSIGN_OR_RETURN(
      comm_, comm::Comm::create(std::make_unique<comm::NodeGroup>(*group, across_->map()), config));
  comm_->call_it("nccl " + roll_.name());
  BRAID_RETURN_IF_ERROR(coll::device::on_device(
      *comm_, device_, [](comm::Device&) { return Status(); }, coll::device::Memory::kSmall,
      cuda_));
  return comm::NodeGroup(*group, across_->map()).finish(deadline);
}

Status Seat::set_up(int rank, int num_ranks, int device, Deadline deadline) {
  BRAID_ASSIGN_OR_RETURN(const Rendezvous rendezvous, meet(rank));
  group::Identity identity;
  identity.rank = identity.local_rank = rank;
  identity.size = num_ranks;
  identity.store_port = rendezvous.port;
  identity.job_token = rendezvous.token;
  identity.job_id = roll_.name();
  const group::Interrupt interrupt = [this] {
    return is_aborted_ ? unavailable("aborted") : Status();
  };
  BRAID_ASSIGN_OR_RETURN(
      std::shared_ptr<group::Group> group,
      group::Group::join(identity, config_, Deadline::after_ns(kJoinTime), interrupt));
  group->set_interrupt({});
  BRAID_RETURN_IF_ERROR(use_group(group));
  BRAID_ASSIGN_OR_RETURN(const auto watchdog, GroupWatchdog::begin(*group, deadline));
  BRAID_ASSIGN_OR_RETURN(comm_, comm::Comm::create(std::make_unique<SharedGroup>(group), config_));
  comm_->call_it("nccl " + roll_.name());
  BRAID_RETURN_IF_ERROR(coll::device::on_device(
      *comm_, device, [](comm::Device&) { return Status(); }, coll::device::Memory::kSmall, cuda_));
  return agree_on_sharp(Deadline::after_ns(kJoinTime));
}

// One rank that has it is enough to leave sums to NCCL where nobody measures.
Status Seat::agree_on_sharp(Deadline deadline) {
  BRAID_ASSIGN_OR_RETURN(const sys::DeviceFacts facts, cuda_.device(device_));
  const char* const wanted = secure_getenv("NCCL_NVLS_ENABLE");  // NOLINT(concurrency-mt-unsafe)
  const bool is_off = wanted != nullptr && std::string_view(wanted) == "0";
  const int64_t own = facts.has_multicast && !is_off ? 1 : 0;
  BRAID_ASSIGN_OR_RETURN(const auto all,
                         group::exchange_numbers(*group_, "nccl sharp", {&own, 1}, deadline));
  for (const std::vector<int64_t>& of_rank : all) has_sharp_ = has_sharp_ || of_rank[0] != 0;
  return {};
}

// A port that was free a moment ago: join() goes on to the next few when somebody was faster.
Result<Rendezvous> Seat::serve() {
  BRAID_ASSIGN_OR_RETURN(const auto hosts, sys::resolve("127.0.0.1", 0));
  BRAID_ASSIGN_OR_RETURN(const sys::Fd probe, sys::listen_on(hosts.front(), 1));
  BRAID_ASSIGN_OR_RETURN(const sys::Endpoint at, sys::local_endpoint(probe.get()));
  BRAID_ASSIGN_OR_RETURN(std::string token, fresh_token());
  return Rendezvous{at.port(), std::move(token)};
}

Result<Rendezvous> Seat::meet(int rank) {
  if (rank != 0)
    return roll_.find_rendezvous(Deadline::after_ns(kJoinTime),
                                 [this] { return is_aborted_.load(); });
  BRAID_ASSIGN_OR_RETURN(Rendezvous rendezvous, serve());
  roll_.publish(rendezvous);
  return rendezvous;
}

// ---- using ----

Status Seat::run(const braid_nccl_call& call) {
  if (is_lost()) return across_->lost();
  const sys::RelaxedCapture relaxed(cuda_);
  const auto enqueued = [&](comm::Device& device) {
    return is_over_nodes_ ? across_->run(call) : enqueue(device, call);
  };
  return coll::device::on_device(*comm_, device_, enqueued, coll::device::Memory::kAll, cuda_);
}

// Ranks come to it at the same call, but not at the same time; and a program may have them wait for
// each other crosswise at the calls of two communicators, which NCCL would let through. So they wait
// a while, and all or none of them race.
Result<bool> Seat::all_come_to(int op, Messages messages) {
  const auto is_over = [this] { return is_aborted_ || group_->broken(); };
  const int64_t patience_ns = std::min(kRaceMeeting, config_.duration_ns("BRAID_NCCL_MEET"));
  const size_t slot = 2 * static_cast<size_t>(op) + (messages.is_large ? 1 : 0) +
                      (messages.in_windows ? size_t{2} * BRAID_NCCL_NUM_OPS : 0);
  const int num_ranks = group_->size();
  static_assert(4 * BRAID_NCCL_NUM_OPS <= Roll::kNumMeetings);
  bool all_came = false;
  if (is_over_nodes_) {
    BRAID_ASSIGN_OR_RETURN(all_came, across_->meet(slot, patience_ns, is_over));
  } else {
    all_came = roll_.meet(slot, num_ranks, Deadline::after_ns(patience_ns), is_over);
  }
  if (!all_came)
    log::warn("nccl", "an operation is left to NCCL: not all of {} ranks came to its call in {}",
              num_ranks, format_ns(patience_ns));
  return all_came;
}

// Of ranks that are all there: tuning, also of a NIC, and the race (over nodes two times), and some time for what has
// none.
Deadline Seat::race_deadline() const {
  return Deadline::after_ns(kRaceMeeting + 4 * config_.duration_ns("BRAID_TUNE_TIME"));
}

Status Seat::race(int op, Messages messages, const braid_nccl_real* real,
                  braid_nccl_choice& choice) {
  if (op < 0 || op >= BRAID_NCCL_NUM_OPS) return internal_error("nccl operation {} is unknown", op);
  if (is_lost()) return across_->lost();
  if (is_aborted_) return unavailable("aborted");
  if (messages.in_windows && is_over_nodes_)
    return internal_error("a race in windows between nodes");
  const Status raced = race_with_others(static_cast<braid_nccl_op>(op), messages, real, choice);
  if (!raced.ok()) group_->report(raced);  // who still waits for this rank waits in vain
  return raced;
}

Status Seat::race_with_others(braid_nccl_op op, Messages messages, const braid_nccl_real* real,
                              braid_nccl_choice& choice) {
  BRAID_ASSIGN_OR_RETURN(const bool all_came, all_come_to(op, messages));
  if (!all_came) return is_aborted_ ? unavailable("aborted") : Status();
  if (is_over_nodes_) {
    BRAID_ASSIGN_OR_RETURN(const bool is_connected, connect_nodes());
    if (!is_connected) return {};
  }
  return race_here(op, messages, real, choice);
}

/// Rails are made at the first call that needs them. False, on all ranks: it stays NCCL's.
Result<bool> Seat::connect_nodes() {
  if (across_->is_connected() || has_no_rails_) return !has_no_rails_;
  AcrossNodes::Agreed agreed;
  BRAID_RETURN_IF_ERROR(with_device([&](comm::Device& device) -> Status {
    BRAID_ASSIGN_OR_RETURN(agreed, across_->connect(*rails_, *group_, device, race_deadline()));
    return {};
  }));
  has_no_rails_ = agreed.why_not.has_value();
  if (has_no_rails_)
    log::warn("nccl", "a communicator over {} nodes is left to NCCL: {}", across_->map().num_nodes,
              agreed.why_not->message());
  return !has_no_rails_;
}

// Memory for large messages stays when braid wins some.
Status Seat::race_here(braid_nccl_op op, Messages messages, const braid_nccl_real* real,
                       braid_nccl_choice& choice) {
  const comm::Unobserved racing(comm_->state().observer.get());
  BRAID_ASSIGN_OR_RETURN(const auto watchdog, GroupWatchdog::begin(*group_, race_deadline()));
  return with_device([&](comm::Device& device) -> Status {
    choice = all_of(SizeRange::of(messages.is_large));
    if (real != nullptr) {
      BRAID_ASSIGN_OR_RETURN(choice, race_on(device, op, messages, *real));
    }
    if (!messages.is_large) return {};
    if (choice.won != 0) {
      BRAID_ASSIGN_OR_RETURN(keeps_room_, make_room(device));
      if (!keeps_room_) choice = {};
    }
    return keeps_room_ ? Status() : give_back_room(device);
  });
}

// Each node takes such steps by itself, and may be through with one long before another is.
Result<AcrossNodes::Agreed> Seat::all_through(const Status& own, Deadline deadline) {
  if (is_over_nodes_) return across_->finish(*group_, own, deadline);
  AcrossNodes::Agreed agreed;
  if (!own.ok()) agreed.why_not = own;
  return agreed;
}

/// A node that has none takes part.
Status Seat::give_back_room(comm::Device& device) {
  const Status given = device.arena().give_back_room(race_deadline());
  BRAID_ASSIGN_OR_RETURN(const auto agreed, all_through(given, race_deadline()));
  return agreed.why_not.value_or(Status());
}

Result<braid_nccl_choice> Seat::race_on(comm::Device& device, braid_nccl_op op, Messages messages,
                                        const braid_nccl_real& real) {
  OverNodes nodes;
  if (is_over_nodes_)
    nodes = {[this](const braid_nccl_call& call) { return across_->run(call); },
             [this](sys::Stream stream) { return across_->barrier(stream); },
             fmt::format("{} x {}", across_->map().num_nodes, across_->map().per_node)};
  const Entrants entrants{device,
                          *group_,
                          real_calls_,
                          real,
                          op,
                          SizeRange::of(messages.is_large),
                          messages.in_windows,
                          is_over_nodes_ ? &nodes : nullptr};
  const RaceTerms terms{config_, race_deadline(), race_time_ns_ / 2,
                        [&] { return messages.is_large ? make_room(device) : Result<bool>(true); }};
  BRAID_ASSIGN_OR_RETURN(const Held held, hold_race(entrants, terms));
  race_time_ns_ -= std::min(held.elapsed_ns, race_time_ns_);
  return held.choice;
}

// Every rank has the same verdict. That one has no memory is no trouble: NCCL has the call.
Result<bool> Seat::make_room(comm::Device& device) {
  const Status made = coll::device::make_room(comm_->state());
  BRAID_ASSIGN_OR_RETURN(const auto agreed, all_through(made, race_deadline()));
  if (!agreed.why_not) return device.arena().has_room();
  if (device.arena().has_room() && !made.ok()) return made;
  if (group_->broken()) return group_->fate();
  log::info("nccl", "gpu {}: no memory for large messages, which are left to NCCL: {}", device_,
            agreed.why_not->message());
  return false;
}

// Unlike a call, what fails here leaves the comm as it is: results land in scratch as before.
Status Seat::with_device(const std::function<Status(comm::Device&)>& body) {
  if (!comm_) return internal_error("the communicator was not set up");
  comm::CallGuard guard(*comm_);
  BRAID_RETURN_IF_ERROR(guard.status());
  const sys::RelaxedCapture relaxed(cuda_);
  BRAID_ASSIGN_OR_RETURN(const auto scope, sys::CurrentDevice::use(cuda_, device_));
  return body(*guard.state().device);
}

Status Seat::add_window(const void* memory, uint64_t bytes) {
  if (is_lost()) return across_->lost();
  const Status own = with_device(
      [&](comm::Device& device) { return device.registrations().add(address_of(memory), bytes); });
  const Deadline deadline = Deadline::after_ns(config_.duration_ns("BRAID_TIMEOUT"));
  const auto agreed = all_through(own, deadline);
  if (!agreed.ok()) {
    group_->report(agreed.status());  // the others' kernels would wait for a rank that is lost
    return agreed.status();
  }
  if (agreed->why_not && own.ok()) (void)drop_window(memory);
  return agreed->why_not.value_or(Status());
}

Status Seat::drop_window(const void* memory) {
  if (!comm_ || comm_->is_closed()) return {};  // and all windows with it
  return with_device(
      [&](comm::Device& device) { return device.registrations().forget(address_of(memory)); });
}

Status Seat::join(std::span<void* const> streams) {
  BRAID_ASSIGN_OR_RETURN(const auto scope, sys::CurrentDevice::use(cuda_, device_));
  std::vector<sys::Stream> all;
  for (void* const stream : streams) all.push_back({stream});
  return join_streams(cuda_, all);
}

Status Seat::status() {
  const std::lock_guard lock(mutex_);  // nobody has it for long
  if (is_lost()) return across_->lost();
  if (!is_open_) return {};  // nothing to watch any more, or not yet
  if (group_->broken()) return group_->fate();
  if (is_over_nodes_) BRAID_RETURN_IF_ERROR(across_->status());
  return comm_->state().device->faults().status();
}

void Seat::interrupt() {
  is_aborted_ = true;
  real_calls_.shut();
  {
    const std::lock_guard lock(mutex_);
    // Whoever is in open() waits for other ranks, without a look at us: this ends it.
    if (is_setting_up_) group_->report(unavailable("aborted while it was set up"));
  }
  const std::lock_guard opening(opening_);
  if (!stop()) return;
  free_caller();
  break_off_work();
}

// What the program's own kernels of NCCL's lie before, they leave no result for, either.
void Seat::break_off_work() {
  const sys::RelaxedCapture relaxed(cuda_);
  const auto scope = sys::CurrentDevice::use(cuda_, device_);
  comm::Device* const device = comm_->state().device.get();
  if (device == nullptr) {
    if (across_) (void)across_->begin_abort();
    return;
  }
  // The program may be in a call of the driver's that ends with our kernels alone, and the driver may
  // let nobody else in until then.
  const sys::LimitedWait breaking("break off", comm::kFreeDriver, [this, device] {
    const sys::RelaxedCapture here(cuda_);
    const auto on = sys::CurrentDevice::use(cuda_, device_);
    if (across_)
      across_->break_off(*device);
    else
      device->fail_kernels();
  });
  device->faults().end_waits();
}

// The comm first: it waits for a thread that is in a call, and lets none in any more. What calls over
// nodes use goes after it, when nobody can be using it. Whoever aborts has ended the rail's work by
// then, which the comm's may wait for (interrupt()).
void Seat::close(bool is_in_peace) {
  if (!is_in_peace) interrupt();
  const std::lock_guard opening(opening_);
  const bool has_comm = stop();
  const sys::RelaxedCapture relaxed(cuda_);
  if (has_comm) (void)comm_->close(is_in_peace);
  if (across_) {
    const auto scope = sys::CurrentDevice::use(cuda_, device_);
    across_->end(is_in_peace);
  }
  if (has_comm && is_over_nodes_ && sys::process_id() == process_id_) group_->leave();
}

/// Whether there is a comm to be closed.
bool Seat::stop() {
  {
    const std::lock_guard lock(mutex_);
    is_open_ = false;
  }
  give_up_roll();
  return comm_ != nullptr && !comm_->is_closed();
}

// A thread may be inside a call of this comm because the stream is full of work that waits for a
// lost rank. close() would wait for that thread; a failure of the group ends the waits.
void Seat::free_caller() {
  const Deadline patience = Deadline::after_ns(100_ms);
  while (comm_->state().in_call && !patience.passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (comm_->state().in_call) group_->report(unavailable("aborted while a call was under way"));
}

// Others may come to a first call that this rank never comes to.
void Seat::give_up_roll() {
  if (sys::process_id() != process_id_) return;
  roll_.seal();
  if (!has_arrived_) roll_.decline();
}

void Seat::leave() {
  const std::lock_guard lock(mutex_);
  // Who is in open() has arrived, or gives up with the process.
  if (const std::unique_lock opening(opening_, std::try_to_lock); opening.owns_lock())
    give_up_roll();
  if (group_) group_->leave();
}

}  // namespace braid::nccl
