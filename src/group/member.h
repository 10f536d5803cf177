// A rank's end of the control plane: the Group that join() returns, over one proved connection to
// the store.
//
// A monitor thread owns the connection. It sends what callers queue, reads what the store relays,
// and notes it under one lock; callers only queue, wait on a condition and read notes. So report()
// never waits for a network, and an exchange that gives up leaves nothing half-sent.
//
// Exchanges are numbered. A rank's part of number n comes through the store in order, so a rank can
// be at most one number ahead unless others gave up on a deadline; parts that come early wait here,
// parts that come late are dropped.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "group/channel.h"
#include "group/group.h"
#include "group/store.h"

namespace braid::group {

class Member : public Group {
 public:
  /// `store` is null on all ranks but 0; it closes when this rank leaves.
  static Result<std::unique_ptr<Member>> start(const Identity& identity, Channel channel,
                                               std::unique_ptr<Store> store);

  /// Waits until all ranks have joined. timeout names the missing ones; peer_lost when the store
  /// closed first; what the interrupt or the store's news say.
  virtual Status wait_ready(Deadline deadline) = 0;
};

/// The group of one rank: no store, no socket, no thread.
std::unique_ptr<Group> make_lone_group(const Identity& identity);

/// The rules for arguments of an exchange.
Status check_exchange(std::string_view topic, std::string_view blob);

}  // namespace braid::group
