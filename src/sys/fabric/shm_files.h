// The files by which endpoints of libfabric's provider shm reach each other: one of 16 MiB in /dev/shm for
// each endpoint, called by it "<process>:<user>:<index>". Its owner removes it on closing; one that was
// killed does not, and then it stays, until the machine starts anew, unless somebody else removes it.
//
// Whether a file is still needed its name does not tell: numbers of processes come again, and mean others
// in another pid namespace, whose containers may share /dev/shm. So the kernel is asked who has it open
// for writing, as all have that have it mapped, their owner and its peers, in whatever namespace: it
// grants a read lease (fcntl(2)) on a file that nobody has open so. What that cannot prove unused stays.
//
// Threads: any.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace braid::sys {

/// Removes the file of the endpoint called `name` if no process uses it. Whether there is none now: always
/// for a name that is no shm endpoint's, which names no file.
bool remove_unused_shm_file(std::string_view name);

/// The same for endpoints that were the peers of one which has been closed. A peer that is just being killed
/// has its file for some microseconds more, and that is when others hear of its end: so for one that is
/// being taken apart this waits, 100 ms in all at most.
void remove_dead_shm_files(std::span<const std::string> names);

}  // namespace braid::sys
