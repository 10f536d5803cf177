#include "coll/messages/exchange.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/clock.h"
#include "base/units.h"
#include "coll/arguments.h"
#include "coll/host/call.h"

namespace braid::coll {

using transport::PeerSet;
using Way = Message::Way;

namespace {

// Sender and receiver cut alike without asking, whatever the length: it may not be the same.
uint32_t cell_bytes_of(const comm::Comm::State& state) {
  uint32_t most = 64_KiB;
  for (const comm::LinkState& link : state.links)
    most = std::min(most, link.lane->caps().max_piece_bytes);
  return most & ~63U;
}

// As an all_to_all in which every rank sends as much: the links of this rank are not loaded more.
plan::Shares shares_of(comm::Comm::State& state, uint64_t bytes) {
  const plan::Plan plan = state.plan_now({plan::Op::kAllToAll, bytes, state.size()});
  return comm::without_links(plan.shares, state.local_up_mask());
}

}  // namespace

Status check_message(const comm::Comm& comm, const Message& message) {
  const char* const what = message.way == Way::kSend ? "send" : "recv";
  if (message.peer < 0 || message.peer >= comm.size() || message.peer == comm.rank())
    return invalid_argument("{}: peer is {}; rank {} of {} has messages with the others alone",
                            what, message.peer, comm.rank(), comm.size());
  BRAID_ASSIGN_OR_RETURN(const uint64_t bytes, buffer_bytes(message.count, 1, message.dtype));
  return check_buffer({"data", message.data, bytes}).with_context(what);
}

Exchange::Exchange(comm::Comm& comm)
    : guard_(comm),
      state_(guard_.state()),
      epoch_(state_.epoch + 1),
      cell_bytes_(cell_bytes_of(state_)),
      peers_(static_cast<size_t>(state_.size())) {
  if (!guard_.status().ok()) return;
  state_.messages.resize(peers_.size());
  state_.probe_down_links();
  state_.report.links.assign(state_.links.size(), {});
  state_.report_is_fresh = false;  // it has no call's times any more
  const int64_t now = now_ns();
  outbox_.emplace(state_, epoch_, cell_bytes_, plan::Shares(state_.links.size(), 0));
  stall_watch_.emplace(state_, state_.config.duration_ns("BRAID_STALL"), now);
  waiter_.emplace(state_);
}

int Exchange::post(const Message& message) {
  std::deque<Open>& in_order = queue(message.peer, message.way);
  in_order.push_back({next_id_, message, false, -1, {}, 0, now_ns()});
  ++num_open_;
  if (in_order.size() == 1) announce(message.peer, in_order.front());
  return next_id_++;
}

Status Exchange::give_up(const Message& message, const Status& why) {
  BRAID_RETURN_IF_ERROR(guard_.status());
  stop(why.with_context(to_words(message)));
  return end_comm(state_, status_);
}

void Exchange::announce(int peer, Open& open) {
  const Message& m = open.message;
  const int link = outbox_->first_usable_link(peer);
  if (link < 0) return stop(unavailable("no usable link: {}", state_.links.back().why));
  put_announcement(link, peer, open);
  open.announced_link = link;
  open.moved_ns = now_ns();
  const auto& theirs = m.way == Way::kSend ? book(peer).want : book(peer).offer;
  if (theirs) agree(peer, open, *theirs);
}

void Exchange::put_announcement(int link, int peer, const Open& open) {
  const Message& m = open.message;
  Tag tag{epoch_, m.way == Way::kSend ? PieceKind::kOffer : PieceKind::kWant};
  tag.number = number(peer, m.way);
  outbox_->push_piece(link, peer, encode_tag(tag), encode_announcement({m.dtype, m.count}));
}

void Exchange::agree(int peer, Open& open, const comm::Announcement& theirs) {
  const Message& m = open.message;
  const comm::Announcement ours{m.dtype, m.count};
  open.moved_ns = now_ns();
  const bool is_send = m.way == Way::kSend;
  if (ours != theirs)
    return end(peer, m.way,
               invalid_argument("rank {} sends {} to rank {}, which receives {}",
                                is_send ? state_.rank() : peer, to_words(is_send ? ours : theirs),
                                is_send ? peer : state_.rank(), to_words(is_send ? theirs : ours)));
  open.is_agreed = true;
  if (is_send) return queue_cells(peer, open);
  open.cells_missing = num_cells(m.count * dtype_bytes(m.dtype), cell_bytes_);
  open.seen.assign(open.cells_missing, false);
  if (open.cells_missing == 0) end(peer, m.way, {});
}

void Exchange::queue_cells(int peer, Open& open) {
  const Message& m = open.message;
  const ConstBlock data{static_cast<const std::byte*>(m.data), m.count * dtype_bytes(m.dtype)};
  const auto cut =
      plan::cut_cells(num_cells(data.bytes, cell_bytes_), shares_of(state_, data.bytes));
  SendRange range{PieceKind::kMessage, false, 0, 0, 0, data, number(peer, m.way)};
  range.offer = comm::Announcement{m.dtype, m.count};
  range.offered_link = open.announced_link;
  for (size_t link = 0; link + 1 < cut.size(); ++link) {
    range.cell_begin = cut[link];
    range.cell_end = cut[link + 1];
    outbox_->push(static_cast<int>(link), peer, range);
  }
}

// The first message of a queue is over; what was said of it is forgotten, and the next one begins.
void Exchange::end(int peer, Way way, Status status) {
  std::deque<Open>& in_order = queue(peer, way);
  comm::PeerMessages& known = book(peer);
  if (way == Way::kRecv && status.ok()) {
    Tag tag{epoch_, PieceKind::kArrived};
    tag.number = known.num_received;
    outbox_->push_piece(std::max(outbox_->first_usable_link(peer), 0), peer, encode_tag(tag), {});
  }
  if (way == Way::kSend) {
    ++known.num_sent;
    known.want.reset();
  } else {
    ++known.num_received;
    known.offer.reset();
  }
  ended_.push_back({in_order.front().id, std::move(status)});
  last_end_ns_ = now_ns();
  in_order.pop_front();
  --num_open_;
  if (!in_order.empty()) announce(peer, in_order.front());
}

// What the last message put must have left, and be acknowledged where a lane may lose it, before the
// caller goes on to something else.
bool Exchange::has_news() const {
  return num_open_ == 0 ? outbox_->empty() && outbox_->acked() : !ended_.empty();
}

void Exchange::move() {
  // Passes between looks for trouble while things move; a pass is under a millisecond.
  constexpr int kWatchEvery = 256;
  for (int pass = 1; status_.ok(); ++pass) {
    const bool is_poked = is_poked_.exchange(false, std::memory_order_relaxed);
    if (has_news() || (is_poked && num_open_ > 0)) break;
    bool moved = outbox_->pump();
    for (comm::LinkState& link : state_.links) (void)link.lane->progress();
    moved |= receive();
    if (moved) {
      waiter_->reset();
    } else {
      (void)waiter_->wait();
    }
    if (!moved || pass % kWatchEvery == 0) watch();
  }
}

Result<std::vector<Exchange::Ended>> Exchange::step() {
  try {
    move();
  } catch (const std::bad_alloc&) {  // as of a call: the others wait for what is now lost
    state_.spare.reset();
    status_ = exhausted("messages: rank {} has no memory left for them", state_.rank());
  }
  if (!status_.ok()) return end_comm(state_, status_);
  return std::exchange(ended_, {});
}

}  // namespace braid::coll
