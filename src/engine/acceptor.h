// The sockets on which sources connect, and the guests: whoever has connected and has not proved
// yet to be an engine of this job.
//
// A stranger must not keep honest sources out, though anybody may connect, say nothing, and connect
// again. There are at most 64 guests, each for at most 5 s. When another one comes, one that has
// said nothing loses its place: any of these, by chance. One that has spoken keeps its place for
// 200 ms, in which an honest source is through; while all 64 have spoken, others wait in the
// kernel's queue.
//
// Threads: whoever has the turn.
#pragma once

#include <poll.h>

#include <functional>
#include <list>
#include <string_view>
#include <vector>

#include "engine/ground.h"
#include "engine/handshake.h"
#include "sys/net/private_fd.h"

namespace braid::engine {

class Acceptor {
 public:
  /// What becomes of guests.
  struct Doors {
    TargetHandshake::Recall recall;
    /// The handshake of a session that recall() has answered for is done.
    std::function<void(const Introduction& told, ControlSocket socket)> attach;
  };

  Acceptor(Ground& ground, std::vector<sys::PrivateFd> listeners, Doors doors);

  /// Takes new connections, and hears all guests. True when anything moved.
  bool progress(int64_t now);
  /// There are no guests.
  bool is_empty() const { return guests_.empty(); }
  /// The next progress() looks for connections, even if the last one just did.
  void look_soon() { accept_at_ns_ = 0; }
  /// What to wait on.
  std::vector<pollfd> sockets(int64_t now) const;

 private:
  struct Guest {
    ControlSocket socket;
    TargetHandshake handshake;
    int64_t came_at_ns = 0;
    bool has_spoken = false;
  };

  bool accept(int64_t now);
  bool is_full(int64_t now) const;
  void make_room(int64_t now);
  void send_away(const Guest& guest, std::string_view why, int64_t now);
  void rest_listeners(int64_t now, const Status& why);
  bool greet(int64_t now);
  /// False: the guest is to go.
  bool greet(Guest& guest, int64_t now);

  Ground& ground_;
  const std::vector<sys::PrivateFd> listeners_;
  const Doors doors_;
  std::list<Guest> guests_;
  int64_t accept_at_ns_ = 0;
  int64_t listen_at_ns_ = INT64_MIN / 2;       // before it nobody looks at the listeners
  int64_t say_refused_at_ns_ = INT64_MIN / 2;  // before it nobody says who was sent away
  uint64_t num_unsaid_ = 0;
};

}  // namespace braid::engine
