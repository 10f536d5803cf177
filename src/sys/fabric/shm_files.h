// The files by which endpoints of libfabric's provider shm reach each other: one of 16 MiB in /dev/shm for
// each endpoint, called by it "<process>:<user>:<index>". Its owner removes it on closing; one that was
// killed does not, and then it stays, until the machine starts anew, unless somebody else removes it.
//
// Whether a file is still needed its name does not tell: numbers of processes come again, and mean others
// in another pid namespace, whose containers may share /dev/shm. So the kernel is asked who has it open
// for writing, as all have that have it mapped, their owner and its peers, in whatever namespace: it
// grants a read lease (fcntl(2)) on a file that nobody has open so. What that cannot prove unused stays.
//
// A file has its name some moments before its maker counts as one who writes, and a stale file may be
// replaced by a living one of its name between a look and the removal. Against both braid's processes take
// turns at removing files and at making them, by a lock on the directory, which all containers that share
// it see; and the lease is held for a moment: a maker, whoever's program it is, then breaks it.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <string_view>

#include "sys/fd.h"

namespace braid::sys {

/// A turn at the files, among all processes of braid: it ends with the object. Waits for it for 200 ms at
/// most; where another process keeps it longer nothing is removed.
class ShmFilesTurn {
 public:
  ShmFilesTurn();
  bool is_held() const { return is_held_; }

 private:
  Fd directory_;
  bool is_held_ = false;
};

/// Removes the file of the endpoint called `name` if no process uses it. Whether there is none now: always
/// for a name that is no shm endpoint's, which names no file.
bool remove_unused_shm_file(std::string_view name, const ShmFilesTurn& turn);

/// Removes all such files of this user that no process uses: what killed processes left, whose ever peers
/// they were. A process that is just being killed has its files for some microseconds more, and that is
/// when others hear of its end: so where one is being taken apart this waits, `patience_ns` in all at most.
void remove_dead_shm_files(int64_t patience_ns);

}  // namespace braid::sys
