#include "engine/wake_set.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace braid::engine {
namespace {

// Changes a socket that is in the set, else adds it (its number was closed, and is used again). An
// error leaves it out, and the sleep's limit ends the wait for it.
void put(const sys::Fd& set, int fd, uint32_t events, uint64_t data) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = data;
  if (::epoll_ctl(set.get(), EPOLL_CTL_MOD, fd, &event) == 0 || errno != ENOENT) return;
  (void)::epoll_ctl(set.get(), EPOLL_CTL_ADD, fd, &event);
}

constexpr uint64_t kSignal = ~uint64_t{0};  // data of what is no socket

}  // namespace

Result<WakeSet> WakeSet::create(int wake, int call) {
  WakeSet out;
  out.wake_ = wake;
  out.worker_ = sys::Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!out.worker_.is_open()) return exhausted("epoll_create1: error {}", errno);
  put(out.worker_, call, EPOLLIN, kSignal);
  BRAID_RETURN_IF_ERROR(out.make_moving());
  return out;
}

Status WakeSet::make_moving() {
  sys::Fd made(::epoll_create1(EPOLL_CLOEXEC));
  if (!made.is_open()) return exhausted("epoll_create1: error {}", errno);
  // While it has a name: a process that was forked off keeps the set itself open, too.
  if (moving_.is_open()) (void)::epoll_ctl(worker_.get(), EPOLL_CTL_DEL, moving_.get(), nullptr);
  moving_ = std::move(made);
  put(moving_, wake_, EPOLLIN, kSignal);
  put(worker_, moving_.get(), is_muted_ ? uint32_t{0} : uint32_t{EPOLLIN}, kSignal);
  return {};
}

void WakeSet::put_all(std::span<const pollfd> sockets) {
  for (const pollfd& socket : sockets)
    put(moving_, socket.fd,
        ((socket.events & POLLIN) != 0 ? uint32_t{EPOLLIN} : uint32_t{0}) |
            ((socket.events & POLLOUT) != 0 ? uint32_t{EPOLLOUT} : uint32_t{0}),
        uint64_t{round_} << 32 | static_cast<uint32_t>(socket.fd));
}

// A socket that was closed leaves by itself, unless a process that was forked off has it, too: then
// it stays, wakes us for ever, and cannot be named any more. A new set is without it.
void WakeSet::watch(std::span<const pollfd> sockets) {
  ++round_;
  put_all(sockets);
  if (has_ghost() && make_moving().ok()) put_all(sockets);
}

bool WakeSet::has_ghost() const {
  std::array<epoll_event, 16> events;
  const int count = ::epoll_wait(moving_.get(), events.data(), static_cast<int>(events.size()), 0);
  return std::any_of(events.begin(), events.begin() + std::max(count, 0), [&](const auto& event) {
    return event.data.u64 != kSignal && event.data.u64 >> 32 != round_;
  });
}

void WakeSet::mute() {
  if (!is_muted_) put(worker_, moving_.get(), 0, kSignal);
  is_muted_ = true;
}

void WakeSet::unmute() {
  if (is_muted_) put(worker_, moving_.get(), EPOLLIN, kSignal);
  is_muted_ = false;
}

void WakeSet::sleep(const sys::Fd& set, int limit_ms) {
  epoll_event event;
  (void)::epoll_wait(set.get(), &event, 1, limit_ms);
}

}  // namespace braid::engine
