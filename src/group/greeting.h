// A rank's first words with whoever listens on a candidate port.
#pragma once

#include <string>

#include "base/clock.h"
#include "group/channel.h"
#include "group/group.h"
#include "sys/net/api.h"

namespace braid::group {

/// What was found at one address.
struct Greeting {
  enum class Outcome {
    kWelcome,   // our store: `channel` is a member's
    kNobody,    // no connection, or one that ended before a word was said: it may come yet
    kForeign,   // a service that does not speak our protocol
    kSilent,    // it took the connection and said nothing in time: foreign, or too busy
    kStranger,  // a braid store with another token: another job's, or ours is wrong
    kOtherJob,  // a braid store that says so
    kRunning,   // a store of our job whose group is complete: it ends, or ours is at another
                // candidate
    kRefused,   // our store, and it proved that it is; it will never take us
    kOwn,       // a store of this very process: it has several groups
  };
  Outcome outcome = Outcome::kNobody;
  std::string text;  // why, unless welcome
  Channel channel{sys::Fd()};
};

/// A Status only when `interrupt` said so, or exhausted: this process can open no connection.
Result<Greeting> greet_store(const sys::Endpoint& endpoint, const Identity& identity,
                             const std::string& token, Purpose purpose, Deadline deadline,
                             const Interrupt& interrupt);

}  // namespace braid::group
