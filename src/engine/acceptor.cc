#include "engine/acceptor.h"

#include <algorithm>

#include "base/log.h"
#include "sys/net/api.h"

namespace braid::engine {
namespace {
constexpr size_t kMostGuests = 64;
constexpr int64_t kGuestNs = 5'000'000'000;
constexpr int64_t kLeastGuestNs = 200'000'000;  // a handshake of an honest one takes less
}  // namespace

Acceptor::Acceptor(Ground& ground, std::vector<sys::PrivateFd> listeners, Doors doors)
    : ground_(ground), listeners_(std::move(listeners)), doors_(std::move(doors)) {}

bool Acceptor::progress(int64_t now) {
  const bool moved = accept(now);
  return greet(now) || moved;
}

std::vector<pollfd> Acceptor::sockets(int64_t now) const {
  std::vector<pollfd> out;
  const short of_listeners = now >= listen_at_ns_ && !is_full(now) ? POLLIN : 0;
  for (const sys::PrivateFd& listener : listeners_)
    out.push_back({listener.get(), of_listeners, 0});
  for (const Guest& guest : guests_) out.push_back({guest.socket.fd(), POLLIN, 0});
  return out;
}

// Not in every round: sources that connect have time.
bool Acceptor::accept(int64_t now) {
  constexpr int64_t kEveryNs = 100'000;
  if (now < accept_at_ns_) return false;
  accept_at_ns_ = now + kEveryNs;
  bool moved = false;
  if (now < listen_at_ns_ || is_full(now)) return false;
  for (const sys::PrivateFd& listener : listeners_) {
    // All that wait: a source that the kernel's queue has no room for tries again a second later.
    for (size_t i = 0; i < kMostGuests && !is_full(now); ++i) {
      Result<sys::Fd> fd = sys::accept_on(listener.get(), Deadline::at_ns(0));
      if (!fd.ok()) {
        if (fd.status().code() == Code::kExhausted) rest_listeners(now, fd.status());
        break;
      }
      make_room(now);
      guests_.push_back({ControlSocket(std::move(fd).value()),
                         TargetHandshake(ground_.secret, ground_.self.incarnation), now});
      moved = true;
      if (!greet(guests_.back(), now)) guests_.pop_back();  // what it says first may be here
    }
  }
  return moved;
}

bool Acceptor::is_full(int64_t now) const {
  return guests_.size() >= kMostGuests && now < guests_.front().came_at_ns + kLeastGuestNs &&
         std::none_of(
             guests_.begin(), guests_.end(), [](const Guest& guest) { return !guest.has_spoken; });
}

// A flood under which the oldest guest always left would turn out all that are about to speak.
void Acceptor::make_room(int64_t now) {
  if (guests_.size() < kMostGuests) return;
  std::vector<std::list<Guest>::iterator> silent;
  for (auto guest = guests_.begin(); guest != guests_.end(); ++guest)
    if (!guest->has_spoken) silent.push_back(guest);
  // The clock is as good as any dice here.
  const auto one =
      silent.empty() ? guests_.begin() : silent[static_cast<uint64_t>(now_ns()) % silent.size()];
  send_away(*one, "others wait, and it has not said who it is", now);
  guests_.erase(one);
}

void Acceptor::send_away(const Guest& guest, std::string_view why, int64_t now) {
  constexpr int64_t kSayEveryNs = 1'000'000'000;
  ++ground_.stats.handshakes_refused;
  if (now < say_refused_at_ns_) return (void)++num_unsaid_;
  say_refused_at_ns_ = now + kSayEveryNs;
  const Result<sys::Endpoint> from = sys::remote_endpoint(guest.socket.fd());
  log::info("engine", "'{}': refused a connection of {}: {}{}", ground_.self.name,
            from.ok() ? from->text() : "?", why,
            num_unsaid_ != 0 ? fmt::format(" (and {} others before)", num_unsaid_) : "");
  num_unsaid_ = 0;
}

// Connections that wait there would wake us again at once, and for nothing.
void Acceptor::rest_listeners(int64_t now, const Status& why) {
  constexpr int64_t kRestNs = 100'000'000, kWarnEveryNs = 60'000'000'000;
  const bool is_new = now - listen_at_ns_ > kWarnEveryNs;
  listen_at_ns_ = now + kRestNs;
  if (is_new)
    log::warn("engine", "'{}': cannot take connections: {}", ground_.self.name, why.message());
}

bool Acceptor::greet(int64_t now) {
  return guests_.remove_if([&](Guest& guest) { return !greet(guest, now); }) != 0;
}

bool Acceptor::greet(Guest& guest, int64_t now) {
  const Status filled = guest.socket.fill();
  while (!guest.handshake.is_done()) {
    Result<std::optional<Frame>> frame = guest.socket.next();
    if (frame.ok() && !frame->has_value()) break;
    guest.has_spoken = true;
    const Status heard = frame.ok() ? guest.handshake.on_frame(guest.socket, **frame, doors_.recall)
                                    : frame.status();
    if (!heard.ok()) {
      (void)guest.socket.flush();  // the answer that says why
      send_away(guest, heard.message(), now);
      return false;
    }
  }
  if (guest.handshake.is_done()) {
    doors_.attach(guest.handshake.introduction(), std::move(guest.socket));
    return false;
  }
  if (!filled.ok() || !guest.socket.flush().ok()) return false;
  if (now < guest.came_at_ns + kGuestNs) return true;
  send_away(guest, "it has not said who it is", now);
  return false;
}

}  // namespace braid::engine
