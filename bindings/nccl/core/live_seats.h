// The seats that a process has, which it leaves when it ends.
//
// Threads: any.
#pragma once

#include <mutex>
#include <set>

namespace braid::nccl {

class Seat;

/// Programs seldom destroy their communicators. Without a goodbye the other ranks would take the
/// end of this process for a death, and say so; and a roll that was never sealed would keep its
/// name.
class LiveSeats {
 public:
  static LiveSeats& all();
  void add(Seat* seat);
  void remove(Seat* seat);

 private:
  LiveSeats();
  void leave();

  const int owner_;
  std::mutex mutex_;
  std::set<Seat*> seats_;
};

}  // namespace braid::nccl
