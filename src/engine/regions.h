// The memory that an engine knows, registered on each of its NICs, and the NICs themselves.
//
// A region's number is never used again, so a descriptor of memory that is gone can be told from
// one of memory that came after it.
//
// Threads: any; one mutex for the table, one for the NICs' registrations.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "engine/descriptor.h"
#include "engine/gpu.h"
#include "engine/ticket.h"
#include "sys/fabric/api.h"

namespace braid::engine {

struct NicRequest {
  std::string provider;  // "tcp", "verbs", ...
  std::string address;   // local address or the NIC's name; empty: the provider's choice
  sys::FabricLibrary* library = nullptr;  // null: the one that has this provider
};

/// One NIC, open. Its probe words are written by peers that try a rail, and read by nobody.
struct Nic {
  std::string provider;
  std::unique_ptr<sys::FabricDomain> domain;
  std::unique_ptr<std::array<std::byte, 64>> probe;
  const sys::FabricRegion* probe_region = nullptr;
};

Result<Nic> open_nic(const NicRequest& request);

struct Region {
  uint64_t id = 0;
  std::byte* base = nullptr;
  uint64_t bytes = 0;
  int device = -1;             // GPU; -1: memory of the host
  sys::DevicePtr address = 0;  // as our GPU sees it; 0: it does not
  bool is_pinned = false;      // by us
  bool is_read_only = false;   // transfers read it, and fill nothing of it
  sys::IpcHandle ipc;          // of a GPU's allocation, and where in it the region begins
  uint64_t ipc_offset = 0;
  std::vector<const sys::FabricRegion*> handles;  // by NIC; null: it does not reach a GPU
  std::atomic<uint32_t> num_uses = 0;  // transfers of ours under way that read or fill it
  // Its memory was found to be gone, though it was not unregistered: nobody may touch it any more.
  std::atomic<bool> is_freed = false;
  const char* how_freed = "";  // set before that, for messages
  bool is_told = false;        // take_freed() has given it
};

class Regions {
 public:
  Regions(const std::vector<Nic>& nics, const std::unique_ptr<Gpu>& gpu) : nics_(nics), gpu_(gpu) {}

  /// Registers on every NIC, or on none. Memory of a GPU is left out where a NIC does not reach it.
  /// invalid_argument for memory of the host that is not there, behind the end of a file that is mapped,
  /// say: a copy would end the process.
  Result<std::shared_ptr<Region>> add(std::byte* base, uint64_t bytes, int device);
  /// The engine's own memory on its GPU, which is lent but never found: no peer can name it as a
  /// place to write to. Nothing is to be taken back.
  Result<std::shared_ptr<Region>> add_own(sys::DevicePtr address, uint64_t bytes);
  /// Null when it is not there (any more), or its memory is not.
  std::shared_ptr<Region> find(uint64_t id) const;
  /// A transfer of ours begins to use it, until ~Transfer. False: it is no region of this engine (any
  /// more), and hide() may have let its registrations go, or its memory is gone.
  bool begin_use(const std::shared_ptr<Region>& region);
  /// That it is a region of this engine still; invalid_argument.
  Status check_own(const Region& region) const;
  size_t count() const;
  /// Looks whether the memory of all regions is still there, two system calls each: providers in software
  /// would end this process if a peer wrote into what is not.
  void note_freed();
  /// The same; those of which it has not told before.
  std::vector<uint64_t> take_freed();
  /// From now on find() does not know it; its registrations stay until let_go(), which may follow
  /// when `clear` has ended. invalid_argument while transfers of ours use it, and as check_own().
  Status hide(const Region& region, TicketPtr clear);
  /// The ticket of one that was hidden and not let go; null: it is none of those.
  TicketPtr hidden(const Region& region) const;
  /// Those that were hidden and not let go.
  std::vector<uint64_t> all_hidden() const;
  /// Takes back the registrations of one that was hidden, once.
  void let_go(uint64_t id);
  void release_all();
  /// Why find() does not know `id`.
  std::string why_gone(uint64_t id) const;

 private:
  struct Gone {
    uint64_t id = 0;
    int64_t at_ns = 0;
  };
  /// One whose peers have not all answered yet.
  struct Hidden {
    std::shared_ptr<Region> region;
    TicketPtr clear;
  };
  static constexpr size_t kMostGone = 4096;
  static Status look_at(Region& region);
  static bool is_freed(Region& region);
  bool is_own(const Region& region) const;
  static std::string text_of_freed(const Region& region);
  void release(const Region& region);
  Status register_on_nics(Region& region);
  Status describe_gpu_memory(Region& region);

  const std::vector<Nic>& nics_;
  const std::unique_ptr<Gpu>& gpu_;
  // Registering takes seconds for much memory, and the worker, which looks regions up, must not miss
  // its beats for that. Taken before the other one.
  std::mutex nics_mutex_;
  mutable std::mutex mutex_;  // of what follows
  uint64_t next_id_ = 1;
  std::unordered_map<uint64_t, std::shared_ptr<Region>> regions_;
  std::unordered_map<uint64_t, Hidden> hidden_;
  std::deque<Gone> gone_;  // the latest, for messages
};

}  // namespace braid::engine
