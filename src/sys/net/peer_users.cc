#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "sys/error_text.h"
#include "sys/net/api.h"

namespace braid::sys {

namespace {

struct Question {
  nlmsghdr head;
  inet_diag_req_v2 body;
};

void put_address(const Endpoint& endpoint, __be16& port, std::array<__be32, 4>& address) {
  address.fill(0);
  port = htons(endpoint.port());
  if (endpoint.family() == AF_INET6)
    std::memcpy(address.data(),
                &reinterpret_cast<const sockaddr_in6*>(endpoint.address())->sin6_addr, 16);
  else
    std::memcpy(address.data(), &reinterpret_cast<const sockaddr_in*>(endpoint.address())->sin_addr,
                4);
}

// The other end's socket: to it, our peer's address is the source.
Question question_for(const Endpoint& peer, const Endpoint& own) {
  Question question{};
  question.head.nlmsg_len = sizeof question;
  question.head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  question.head.nlmsg_flags = NLM_F_REQUEST;
  question.body.sdiag_family = static_cast<uint8_t>(peer.family());
  question.body.sdiag_protocol = IPPROTO_TCP;
  question.body.idiag_states = UINT32_MAX;
  std::array<__be32, 4> address{};
  put_address(peer, question.body.id.idiag_sport, address);
  std::memcpy(question.body.id.idiag_src, address.data(), sizeof address);
  put_address(own, question.body.id.idiag_dport, address);
  std::memcpy(question.body.id.idiag_dst, address.data(), sizeof address);
  question.body.id.idiag_cookie[0] = question.body.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  return question;
}

}  // namespace

Result<PeerUsers> PeerUsers::open() {
  Fd made(::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_SOCK_DIAG));
  if (!made.is_open()) return unavailable("sock_diag: {}", error_text(errno));
  return PeerUsers(std::move(made));
}

Result<uint32_t> PeerUsers::user_of(int fd) const {
  BRAID_ASSIGN_OR_RETURN(const Endpoint peer, remote_endpoint(fd));
  BRAID_ASSIGN_OR_RETURN(const Endpoint own, local_endpoint(fd));
  const Question question = question_for(peer, own);
  if (::send(socket_.get(), &question, sizeof question, 0) < 0)
    return unavailable("sock_diag: send: {}", error_text(errno));
  alignas(nlmsghdr) std::array<char, 1024> answer{};
  // The kernel has answered before send() came back.
  const ssize_t got = ::recv(socket_.get(), answer.data(), answer.size(), MSG_DONTWAIT);
  nlmsghdr head{};
  inet_diag_msg found{};
  if (got < static_cast<ssize_t>(sizeof head)) return unavailable("sock_diag: {} bytes", got);
  std::memcpy(&head, answer.data(), sizeof head);
  if (head.nlmsg_type != SOCK_DIAG_BY_FAMILY || head.nlmsg_len < NLMSG_LENGTH(sizeof found))
    return unavailable("sock_diag: no socket of this host is {}", peer.text());
  std::memcpy(&found, answer.data() + NLMSG_HDRLEN, sizeof found);
  if (found.id.idiag_sport != question.body.id.idiag_sport ||
      found.id.idiag_dport != question.body.id.idiag_dport)
    return unavailable("sock_diag: an answer to another question");
  return found.idiag_uid;
}

}  // namespace braid::sys
