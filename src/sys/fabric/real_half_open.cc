// Connections that were begun at an endpoint and are not finished when it closes (real.h).
#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "sys/fabric/real.h"

namespace braid::sys {
namespace {

// Descriptors are looked at that other threads may be closing, and whatever the answer is, it is
// one: the number of the file is compared again before anything is closed. By the calls' numbers,
// since the thread sanitizer takes a look through libc for a use of the file.

/// The number of the file behind a descriptor that is a socket; 0: it is none.
uint64_t socket_at(int fd) {
  struct stat facts{};
  return ::syscall(SYS_fstat, fd, &facts) == 0 && S_ISSOCK(facts.st_mode) ? facts.st_ino : 0;
}

// Family, port and address: what else a socket address holds is not the same for all sockets.
bool is_at(int fd, const std::string& name) {
  sockaddr_storage found{};
  socklen_t bytes = sizeof found;
  sockaddr_storage wanted{};
  std::memcpy(&wanted, name.data(), std::min(name.size(), sizeof wanted));
  if (::syscall(SYS_getsockname, fd, &found, &bytes) != 0 || found.ss_family != wanted.ss_family)
    return false;
  if (found.ss_family == AF_INET) {
    const auto& a = reinterpret_cast<const sockaddr_in&>(found);
    const auto& b = reinterpret_cast<const sockaddr_in&>(wanted);
    return a.sin_port == b.sin_port && a.sin_addr.s_addr == b.sin_addr.s_addr;
  }
  if (found.ss_family != AF_INET6) return false;
  const auto& a = reinterpret_cast<const sockaddr_in6&>(found);
  const auto& b = reinterpret_cast<const sockaddr_in6&>(wanted);
  return a.sin6_port == b.sin6_port &&
         std::memcmp(&a.sin6_addr, &b.sin6_addr, sizeof a.sin6_addr) == 0;
}

}  // namespace

HalfOpen::HalfOpen(const std::string& name) {
  DIR* const folder = ::opendir("/proc/self/fd");
  if (folder == nullptr) return;
  while (const dirent* const entry = ::readdir(folder)) {
    const int fd = std::atoi(entry->d_name);
    const uint64_t file = socket_at(fd);
    if (entry->d_name[0] != '.' && file != 0 && is_at(fd, name)) sockets_.push_back({fd, file});
  }
  ::closedir(folder);
}

// A number that means another file by now is somebody else's.
void HalfOpen::close() {
  for (const Socket& socket : sockets_)
    if (socket_at(socket.fd) == socket.file) ::close(socket.fd);
  sockets_.clear();
}

}  // namespace braid::sys
