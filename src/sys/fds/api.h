// Open file descriptors handed from one process of a host to another. A descriptor of the GPU's
// driver cannot be opened through /proc/<pid>/fd, as shared memory's can; it has to be sent.
//
// A box is a datagram socket in the abstract namespace: no file system holds it, and it is gone
// with its owner. Everybody on the host may see its name and write to it; so an address is a name
// and a secret, and letters without the secret are dropped.
//
// Threads: a box belongs to one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "sys/fd.h"

namespace braid::sys {

/// Of one letter; the kernel takes 253.
inline constexpr size_t kMostFdsOfLetter = 64;
inline constexpr size_t kMostTextOfLetter = 256;

struct Letter {
  std::string text;
  std::vector<Fd> fds;
  bool is_whole = true;  // false: this process can open no more descriptors, and some are lost
};

class FdBox {
 public:
  /// exhausted or driver when the kernel refuses.
  static Result<FdBox> open();

  /// For those who are to write to it, and nobody else.
  const std::string& address() const { return address_; }
  /// The sender keeps its descriptors and may close them at once. False: the box is full, and will
  /// be until its owner receives. unavailable: there is no such box.
  Result<bool> try_send(const std::string& address, std::string_view text,
                        std::span<const Fd> fds) const;
  /// None when there is no letter now.
  Result<std::optional<Letter>> try_receive() const;
  /// Waits for a letter, `limit_ms` at most.
  void wait(int limit_ms) const;

 private:
  FdBox(Fd socket, std::string address)
      : socket_(std::move(socket)), address_(std::move(address)) {}
  Fd socket_;
  std::string address_;
};

}  // namespace braid::sys
