#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cstddef>
#include <cstring>

#include "sys/error_text.h"
#include "sys/fds/api.h"
#include "sys/host/api.h"

namespace braid::sys {

namespace {

constexpr size_t kWordBytes = 16;  // of a name, and of a secret
constexpr size_t kWordChars = 2 * kWordBytes;

struct SocketName {
  sockaddr_un address{};
  socklen_t bytes = 0;
};

/// Names that begin with a zero are abstract.
SocketName socket_name(std::string_view word) {
  const std::string text = "braid-fds-" + std::string(word);
  SocketName name;
  name.address.sun_family = AF_UNIX;
  std::memcpy(name.address.sun_path + 1, text.data(), text.size());
  name.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return name;
}

/// Room for the descriptors of one letter, aligned as the kernel's headers want it.
union Ancillary {
  cmsghdr aligned;
  std::array<char, CMSG_SPACE(kMostFdsOfLetter * sizeof(int))> bytes;
};

void put_fds(msghdr& message, Ancillary& room, std::span<const Fd> fds) {
  if (fds.empty()) return;
  message.msg_control = room.bytes.data();
  message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
  cmsghdr* head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
  for (size_t i = 0; i < fds.size(); ++i) {
    const int fd = fds[i].get();
    std::memcpy(CMSG_DATA(head) + i * sizeof fd, &fd, sizeof fd);
  }
}

std::vector<Fd> take_fds(msghdr& message) {
  std::vector<Fd> fds;
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr;
       head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(head) + i * sizeof fd, sizeof fd);
      fds.emplace_back(fd);
    }
  }
  return fds;
}

bool is_for_later(int error) {
  return error == EAGAIN || error == ENOBUFS || error == ETOOMANYREFS || error == EINTR;
}

}  // namespace

Result<FdBox> FdBox::open() {
  Fd made(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made.is_open()) return exhausted("box for descriptors: socket: {}", error_text(errno));
  BRAID_ASSIGN_OR_RETURN(const std::string word, random_hex(kWordBytes));
  BRAID_ASSIGN_OR_RETURN(const std::string secret, random_hex(kWordBytes));
  const SocketName name = socket_name(word);
  if (::bind(made.get(), reinterpret_cast<const sockaddr*>(&name.address), name.bytes) != 0)
    return driver_error("box for descriptors: bind: {}", error_text(errno));
  return FdBox(std::move(made), word + secret);
}

Result<bool> FdBox::try_send(const std::string& address, std::string_view text,
                             std::span<const Fd> fds) const {
  if (address.size() != 2 * kWordChars || text.size() > kMostTextOfLetter ||
      fds.size() > kMostFdsOfLetter)
    return internal_error("letter of {} characters and {} descriptors to '{}'", text.size(),
                          fds.size(), address);
  SocketName name = socket_name(std::string_view(address).substr(0, kWordChars));
  std::string body = address.substr(kWordChars) + std::string(text);
  iovec part{body.data(), body.size()};
  msghdr message{};
  message.msg_name = &name.address;
  message.msg_namelen = name.bytes;
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  Ancillary room{};
  put_fds(message, room, fds);
  if (::sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return true;
  if (is_for_later(errno)) return false;
  return unavailable("box for descriptors: sendmsg: {}", error_text(errno));
}

Result<std::optional<Letter>> FdBox::try_receive() const {
  for (;;) {
    std::array<char, kWordChars + kMostTextOfLetter> body{};
    iovec part{body.data(), body.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    Ancillary room{};
    message.msg_control = room.bytes.data();
    message.msg_controllen = sizeof room.bytes;
    const ssize_t got = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && is_for_later(errno)) return std::optional<Letter>();
    if (got < 0) return driver_error("box for descriptors: recvmsg: {}", error_text(errno));
    Letter letter{{}, take_fds(message), (message.msg_flags & MSG_CTRUNC) == 0};
    const std::string_view all(body.data(), static_cast<size_t>(got));
    if (!all.starts_with(std::string_view(address_).substr(kWordChars))) continue;  // a stranger's
    letter.text = all.substr(kWordChars);
    return std::optional<Letter>(std::move(letter));
  }
}

void FdBox::wait(int limit_ms) const {
  pollfd entry{socket_.get(), POLLIN, 0};
  (void)::poll(&entry, 1, limit_ms);
}

}  // namespace braid::sys
