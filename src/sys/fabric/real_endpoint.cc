// One end of libfabric: an address table, a completion queue and an endpoint; the operations and
// what they come to.
#include <algorithm>

#include "base/clock.h"
#include "base/log.h"
#include "sys/fabric/real.h"
#include "sys/fabric/shm_files.h"

namespace braid::sys {

Status RealEndpoint::open(const EndpointRequest& request) {
  handle_->domain = domain_.handle();
  BRAID_RETURN_IF_ERROR(open_queues(request));
  BRAID_RETURN_IF_ERROR(open_end());
  BRAID_RETURN_IF_ERROR(read_name());
  if (!domain_.quirks().shares_mappings) return {};
  neighbours_ = std::make_shared<Neighbours>();
  Neighbours::enter(name_, neighbours_, handle_);
  return {};
}

Status RealEndpoint::open_queues(const EndpointRequest& request) {
  const auto failed = [this](const char* call, long rc) { return domain_.failed(call, rc); };
  fi_av_attr av{};
  av.type = FI_AV_TABLE;
  av.count = request.num_peers;
  BRAID_FI(fi_av_open(handle_->domain->domain, &av, &handle_->av, nullptr), "fi_av_open");
  fi_cq_attr cq{};
  cq.format = FI_CQ_FORMAT_DATA;
  cq.size = request.queue_depth;
  BRAID_FI(fi_cq_open(handle_->domain->domain, &cq, &handle_->cq, nullptr), "fi_cq_open");
  return {};
}

// On shm an endpoint is a file, called by this process's number and a count, and a file of that name may
// be there: of a process that had the number before and was killed, or of one that has it in another pid
// namespace. libfabric would refuse, and remove the other's file, whose ever it is (its smr_retry_map();
// one that is empty ends the process with SIGBUS). So one that nobody uses is removed before, and where it
// is used, the next name is taken.
Status RealEndpoint::make_end(const std::optional<ShmFilesTurn>& turn) {
  const auto failed = [this](const char* call, long rc) { return domain_.failed(call, rc); };
  constexpr int kMostNames = 256;
  for (int i = 0; i < kMostNames; ++i) {
    if (handle_->endpoint != nullptr) fi_close(&std::exchange(handle_->endpoint, nullptr)->fid);
    BRAID_FI(fi_endpoint(handle_->domain->domain, domain_.info(), &handle_->endpoint, nullptr),
             "fi_endpoint");
    if (!turn) return {};
    BRAID_RETURN_IF_ERROR(read_name());
    if (remove_unused_shm_file(name_, *turn)) return {};
  }
  return exhausted(
      "libfabric {}: {} files as {} are in use in /dev/shm, by processes that have this one's "
      "number in other pid namespaces",
      domain_.description(), kMostNames, name_);
}

Status RealEndpoint::open_end() {
  const auto failed = [this](const char* call, long rc) { return domain_.failed(call, rc); };
  std::optional<ShmFilesTurn> turn;  // until fi_enable has made the file
  if (domain_.quirks().leaves_files) turn.emplace();
  BRAID_RETURN_IF_ERROR(make_end(turn));
  BRAID_FI(fi_ep_bind(handle_->endpoint, &handle_->av->fid, 0), "fi_ep_bind(av)");
  // What goes out is told of where it is asked for (FI_COMPLETION), what comes in always.
  BRAID_FI(fi_ep_bind(handle_->endpoint, &handle_->cq->fid, FI_TRANSMIT | FI_SELECTIVE_COMPLETION),
           "fi_ep_bind(cq, transmit)");
  BRAID_FI(fi_ep_bind(handle_->endpoint, &handle_->cq->fid, FI_RECV), "fi_ep_bind(cq, receive)");
  BRAID_FI(fi_enable(handle_->endpoint), "fi_enable");
  return {};
}

Status RealEndpoint::read_name() {
  size_t bytes = 0;
  fi_getname(&handle_->endpoint->fid, nullptr, &bytes);  // answers -FI_ETOOSMALL and the size
  name_.resize(std::max<size_t>(bytes, 256));
  bytes = name_.size();
  if (const int rc = fi_getname(&handle_->endpoint->fid, name_.data(), &bytes); rc != 0)
    return domain_.failed("fi_getname", rc);
  name_.resize(bytes);
  if (domain_.quirks().forgets_half_open) handle_->listens_at = name_;
  handle_->follows_unread_arrivals = domain_.quirks().follows_unread_arrivals;
  return {};
}

Result<uint64_t> RealEndpoint::add_peer(std::string_view name) {
  fi_addr_t peer = FI_ADDR_UNSPEC;
  const std::string copy(name);  // shm reads a terminated string
  const int rc = fi_av_insert(handle_->av, copy.c_str(), 1, &peer, 0, nullptr);
  if (rc != 1) return domain_.failed("fi_av_insert", rc < 0 ? rc : -FI_EINVAL);
  ++handle_->num_peers;
  if (neighbours_ != nullptr) Neighbours::hold_each_other(*neighbours_, handle_, copy);
  return static_cast<uint64_t>(peer);
}

Result<bool> RealEndpoint::write(const FabricTransfer& transfer, FabricOp* op) {
  return submit({Direction::kWrite, transfer, op});
}

Result<bool> RealEndpoint::read(const FabricTransfer& transfer, FabricOp* op) {
  if (!domain_.limits().can_read)
    return unsupported("libfabric {}: reads are not possible", domain_.description());
  return submit({Direction::kRead, transfer, op});
}

// FI_MORE must be followed by an operation without it on the same endpoint, else what it held back
// stays there for ever. So an operation with has_more waits here, and is handed over with FI_MORE
// when the next one is known; poll() hands over the last one of a batch that nobody ended.
// An immediate whose data is out waits here too, and poll() alone hands it over: when the queue is
// empty, so that no unread failure may be that of the data, which a new connection would hide.
Result<bool> RealEndpoint::submit(Operation operation) {
  const bool was_holding = held_.has_value();
  if (was_holding) {
    if (held_->is_data_out) return false;
    const Result<bool> is_posted = post(*held_, true);
    if (!is_posted.ok() || !is_posted.value()) return false;
    held_.reset();
  }
  if (!operation.transfer.has_more) {
    BRAID_ASSIGN_OR_RETURN(const bool is_posted, post(operation, false));
    if (is_posted) return true;
    if (!was_holding && !operation.is_data_out) return false;
  }
  held_ = operation;
  return true;
}

// The data that goes before its immediate is not told when it completes: the immediate is behind it
// on the same connection, and fails when it failed.
Result<bool> RealEndpoint::post(Operation& operation, bool has_more) {
  FabricTransfer t = operation.transfer;
  const uint64_t more = has_more ? FI_MORE : 0;
  if (operation.direction == Direction::kRead)
    return post_transfer(t, Direction::kRead, operation.op, FI_COMPLETION | more);
  if (domain_.quirks().splits_immediates && t.immediate && t.bytes > 0) {
    if (!operation.is_data_out) {
      BRAID_ASSIGN_OR_RETURN(operation.is_data_out,
                             post_transfer(t, Direction::kWrite, &data_, more));
      if (!operation.is_data_out) return false;
    }
    t.bytes = 0;
  }
  return post_transfer(t, Direction::kWrite, operation.op, write_flags(t) | more);
}

uint64_t RealEndpoint::write_flags(const FabricTransfer& t) const {
  const bool confirm = t.wants_delivery && (t.bytes > 0 || domain_.quirks().confirms_empty_writes);
  return FI_COMPLETION | (t.immediate ? FI_REMOTE_CQ_DATA : 0) |
         (confirm ? FI_DELIVERY_COMPLETE : 0);
}

Result<bool> RealEndpoint::post_transfer(const FabricTransfer& t, Direction direction,
                                         FabricOp* context, uint64_t flags) {
  iovec local{t.local, t.bytes};
  void* descriptor = static_cast<const RealRegion*>(t.local_region)->descriptor();
  fi_rma_iov remote{t.remote_address, t.bytes, t.remote_key};
  fi_msg_rma message{};
  message.msg_iov = &local;  // always a valid one: sockets and rxd crash without
  message.desc = &descriptor;
  message.iov_count = 1;
  message.addr = t.peer;
  message.rma_iov = &remote;
  message.rma_iov_count = 1;
  message.context = context;
  message.data = t.immediate.value_or(0);
  if (direction == Direction::kRead)
    return posted(fi_readmsg(handle_->endpoint, &message, flags), "fi_readmsg");
  return posted(fi_writemsg(handle_->endpoint, &message, flags), "fi_writemsg");
}

Result<bool> RealEndpoint::posted(ssize_t rc, const char* call) const {
  if (rc == 0) return true;
  if (rc == -FI_EAGAIN) return false;
  return domain_.failed(call, rc);
}

Result<bool> RealEndpoint::send(const FabricMessage& message, FabricOp* op) {
  const iovec local{message.memory, message.bytes};
  void* descriptor = static_cast<const RealRegion*>(message.region)->descriptor();
  fi_msg out{};
  out.msg_iov = &local;
  out.desc = &descriptor;
  out.iov_count = 1;
  out.addr = message.peer;
  out.context = op;
  return posted(fi_sendmsg(handle_->endpoint, &out, FI_COMPLETION), "fi_sendmsg");
}

Result<bool> RealEndpoint::receive(const FabricMessage& message, FabricOp* op) {
  void* descriptor = static_cast<const RealRegion*>(message.region)->descriptor();
  return posted(
      fi_recv(handle_->endpoint, message.memory, message.bytes, descriptor, FI_ADDR_UNSPEC, op),
      "fi_recv");
}

namespace {

// An arrival's `len` is never read and no flag but REMOTE_CQ_DATA is expected of it: both differ
// between providers. The other flags are looked at because nothing forbids a provider to show
// REMOTE_CQ_DATA on operations of ours too.
FabricEvent event_of(const fi_cq_data_entry& entry) {
  constexpr uint64_t kOurs = FI_WRITE | FI_READ | FI_SEND | FI_RECV;
  FabricEvent event;
  if ((entry.flags & FI_REMOTE_CQ_DATA) != 0 &&
      ((entry.flags & FI_REMOTE_WRITE) != 0 || (entry.flags & kOurs) == 0)) {
    event.kind = FabricEvent::Kind::kArrived;
    event.immediate = static_cast<uint32_t>(entry.data);
    return event;
  }
  event.op = static_cast<FabricOp*>(entry.op_context);
  if ((entry.flags & FI_RECV) == 0) return event;
  event.kind = FabricEvent::Kind::kReceived;
  event.bytes = static_cast<uint32_t>(entry.len);
  return event;
}

/// What a failure is told in: from 1.20 on with the sender's address behind what 1.17 has.
struct ErrorEntry {
  fi_cq_err_entry entry;
  std::byte of_later_versions[64];
};

FabricEvent failure_of(int error, FabricOp* op) {
  FabricEvent event;
  event.kind = FabricEvent::Kind::kFailed;
  event.op = op;
  event.error = error;
  return event;
}

}  // namespace

// The number of failures: of an operation that the library refused for good, or whose data is known
// to be lost: its immediate must not be sent.
size_t RealEndpoint::hand_over_held(FabricEvent& refused) {
  if (!held_) return 0;
  const Result<bool> is_posted =
      has_lost_data_ ? Result<bool>(Status(Code::kDriver, "lost")) : post(*held_, false);
  if (is_posted.ok() && !is_posted.value()) return 0;  // busy: it stays
  refused = failure_of(FI_EIO, held_->op);
  held_.reset();
  has_lost_data_ = false;
  return is_posted.ok() ? 0 : 1;
}

size_t RealEndpoint::poll(std::span<FabricEvent> events) {
  if (events.empty()) return 0;
  const bool waits_for_empty_queue = held_ && held_->is_data_out;
  if (!waits_for_empty_queue && hand_over_held(events[0]) > 0) return 1;
  // What strangers leave in the queue lies before what is ours.
  constexpr int kMostStrangers = 16;
  long n = 0;
  for (int i = 0; i < kMostStrangers && n == 0; ++i) n = read_queue(events);
  if (n == -FI_EAGAIN) return waits_for_empty_queue ? hand_over_held(events[0]) : 0;
  return static_cast<size_t>(n);
}

// The number of events, or -FI_EAGAIN: the queue is empty. 0: what was there is nobody's.
long RealEndpoint::read_queue(std::span<FabricEvent> events) {
  std::array<fi_cq_data_entry, 32> entries;
  const ssize_t n =
      fi_cq_read(handle_->cq, entries.data(), std::min(entries.size(), events.size()));
  if (n == -FI_EAGAIN) return n;
  if (n == -FI_EAVAIL) return static_cast<long>(read_error(events[0]));
  if (n < 0) {
    events[0] = failure_of(static_cast<int>(-n), nullptr);
    return 1;
  }
  for (ssize_t i = 0; i < n; ++i) events[i] = event_of(entries[i]);
  return n;
}

// The number of events: none for data whose immediate fails for itself, and for what is none of ours.
size_t RealEndpoint::read_error(FabricEvent& event) {
  ErrorEntry error{};
  event = failure_of(FI_EOTHER, nullptr);
  if (fi_cq_readerr(handle_->cq, &error.entry, 0) < 0) return 1;
  event = failure_of(error.entry.err, static_cast<FabricOp*>(error.entry.op_context));
  event.provider_error = error.entry.prov_errno;
  if (event.op == nullptr && domain_.quirks().names_own_failures) {
    note_stranger(event);
    return 0;
  }
  if (event.op != &data_) return 1;
  has_lost_data_ = held_ && held_->is_data_out;
  return 0;
}

// At 1, 10, 100... of them.
void RealEndpoint::note_stranger(const FabricEvent& failed) {
  uint64_t power = 1;
  while (power < num_strangers_ + 1) power *= 10;
  if (power != ++num_strangers_) return;
  log::warn("sys", "libfabric {}: {} times something came in that is of no peer, at last: {}",
            domain_.description(), num_strangers_, why(failed));
}

std::string RealEndpoint::why(const FabricEvent& failed) const {
  char text[256] = "";
  const char* words =
      fi_cq_strerror(handle_->cq, failed.provider_error, nullptr, text, sizeof text);
  return fmt::format("{} ({}), provider error {} ({})", domain_.symbols().strerror(failed.error),
                     failed.error, failed.provider_error, words != nullptr ? words : "no text");
}

RealEndpoint::~RealEndpoint() {
  if (neighbours_ != nullptr) Neighbours::leave(name_);
}

// One -FI_EAGAIN does not say that the queue is empty: a read that met the failed receive of a peer that
// has gone answers it too (rxm drops one a read and looks no further), and so does one that met 32
// completions of rxm's own; what others sent lies behind them. So there are as many in a row as all
// peers have receives. A peer that writes for ever is left in time, but never before so many reads: a
// thread that was not run meanwhile has read nothing.
void EndHandle::read_what_is_left() {
  constexpr uint64_t kReceivesOfAPeer = 128;  // rxm's FI_OFI_RXM_MSG_RX_SIZE
  const uint64_t enough = kReceivesOfAPeer * std::max<uint64_t>(num_peers, 8);
  const Deadline deadline = Deadline::after_ns(100'000'000);
  uint64_t num_empty = 0;
  for (uint64_t reads = 0; num_empty < enough && (reads < enough || !deadline.passed()); ++reads) {
    std::array<fi_cq_data_entry, 32> entries;
    ErrorEntry error{};
    const ssize_t n = fi_cq_read(cq, entries.data(), entries.size());
    const bool has_read = n > 0 || (n == -FI_EAVAIL && fi_cq_readerr(cq, &error.entry, 0) > 0);
    num_empty = has_read ? 0 : num_empty + 1;
  }
}

// What peers left that were killed goes behind the table of addresses, which has their files mapped.
EndHandle::~EndHandle() {
  close();
  if (domain != nullptr) domain->remove_dead_files(100'000'000);
}

// The endpoint first, so that nothing can land while the rest goes.
void EndHandle::close() {
  if (follows_unread_arrivals && endpoint != nullptr) read_what_is_left();
  const KeptSignals keep;
  std::optional<HalfOpen> half_open;
  if (!listens_at.empty()) half_open.emplace(listens_at);
  if (endpoint != nullptr) fi_close(&endpoint->fid);
  if (half_open) half_open->close();
  if (cq != nullptr) fi_close(&cq->fid);
  if (av != nullptr) fi_close(&av->fid);
}

}  // namespace braid::sys
