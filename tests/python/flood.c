// Connects to a port of loopback as often as it can, as another user, and ends each connection at
// once: flood USER PORT SECONDS
#include <arpa/inet.h>
#include <grp.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const unsigned user = (unsigned)atoi(argv[1]);
  if (setgroups(0, NULL) != 0 || setgid(user) != 0 || setuid(user) != 0) return 1;
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(argv[2]))};
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const struct linger now = {1, 0};
  const time_t end = time(NULL) + atoi(argv[3]);
  puts("on");
  fflush(stdout);
  for (unsigned long i = 0; (i & 255) != 0 || time(NULL) < end; ++i) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    (void)!connect(fd, (struct sockaddr*)&to, sizeof to);
    close(fd);
  }
  return 0;
}
