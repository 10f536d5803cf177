// The store's door: who knocks, who is let in to greet, and who has to go when there are too many.
//
// Everybody may knock; what a stranger can take from others is bounded by his own share. Whoever a
// connection counts for is its user, when the other end is a process of this host (the kernel says
// so), else its address. The fullest makes room, for itself or for others.
//
// Threads: the store's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "group/channel.h"
#include "group/proof.h"
#include "sys/net/api.h"

namespace braid::group {

/// The other end of one connection of the store.
struct Peer {
  enum class State { kGreeting, kMember, kRefused, kClosed };
  Peer(sys::Fd fd, Deadline until) : channel(std::move(fd)), deadline(until) {}
  Channel channel;
  State state = State::kGreeting;
  Deadline deadline;   // of greeting and refusal
  std::string source;  // whom it counts for while it greets
  bool has_spoken = false;
  Session session;  // once greeted
  int rank = -1;    // of a member
  bool has_left = false;
  bool is_shut = false;  // we ended the stream; theirs is no death
};

class Door {
 public:
  /// `address` is the store's, for the log. `is_for_one_user`: processes of others are turned out.
  Door(std::string address, bool is_for_one_user, int64_t greeting_ns);

  /// The connection as a peer that has been sent its challenge, or null. May close one of `peers`.
  std::unique_ptr<Peer> admit(sys::Fd fd, std::vector<std::unique_ptr<Peer>>& peers);
  /// One line a second about strangers; it has the number of those that had none.
  void warn(std::string_view what);

 private:
  std::string source_of(int fd) const;
  void make_room(std::vector<std::unique_ptr<Peer>>& peers);

  const std::string address_;
  const std::string only_source_;  // empty: anybody
  const int64_t greeting_ns_;
  std::optional<sys::PeerUsers> users_;
  std::minstd_rand random_;
  int64_t next_warn_ns_ = 0;
  uint64_t num_unsaid_ = 0;
};

}  // namespace braid::group
