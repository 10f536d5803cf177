// NIXL's plug-in interface as far as a backend meets it: the project's own reading of the C++ ABI
// of NIXL 1.4 and 1.5, whose wheels bring no headers.
//
// Three things are fixed by compiled code on the other side: the order of virtual functions, the
// fields of structures that cross the border, and numbers. Names are ours. NIXL calls a backend
// through its table of virtual functions, reads the fields of Backend with code that was inlined
// into it, and leaves every object to whoever made it. Both sides must have libstdc++'s types of
// today, from C++11 on. tests/nixl compares the order with the tables in NIXL's own plug-ins.
//
// Threads: NIXL calls a backend from any thread that its agent is called from, several at once where
// the agent was made so.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace braid::nixl {

enum class Answer : int {
  kInProgress = 1,
  kDone = 0,
  kInvalid = -2,
  kFailed = -3,  // "backend"
  kNotFound = -4,
  kMismatch = -5,
  kNotAllowed = -6,
  kUnsupported = -9,
  kPeerLost = -10,  // NIXL then forgets the agent
  kCancelled = -11,
};
enum class MemoryKind : int { kHost = 0, kGpu = 1 };  // others are storage
enum class Operation : int { kRead = 0, kWrite = 1 };

using Settings = std::unordered_map<std::string, std::string>;
using MemoryKinds = std::vector<MemoryKind>;
using Notifications = std::vector<std::pair<std::string, std::string>>;  // agent, message

/// How a backend is made.
struct Birth {
  std::string agent;
  std::string type;  // "BRAID"
  Settings* settings = nullptr;
  bool has_progress_thread = false;
  uint64_t progress_delay_us = 0;
  int threads = 0;  // what locks the agent takes
  bool wants_telemetry = false;
};

/// What a backend keeps for memory, its own or a peer's. NIXL passes it back and never looks inside.
class Memory {
 public:
  explicit Memory(bool is_own) : is_own_(is_own) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  virtual ~Memory() = default;
  bool is_own() const { return is_own_; }

 private:
  bool is_own_;
};

/// What a backend keeps for a transfer, between prep_xfer and release_req_h.
class Work {
 public:
  Work() = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
  virtual ~Work() = default;
};

struct Place {
  uint64_t address = 0;
  size_t bytes = 0;
  uint64_t device = 0;
};
struct PlaceWithText : Place {
  std::string text;
};
struct PlaceWithMemory : Place {
  Memory* memory = nullptr;
};
template <typename T>
struct Places {
  virtual ~Places() = default;
  MemoryKind kind = MemoryKind::kHost;
  std::vector<T> all;
};
using TransferPlaces = Places<PlaceWithMemory>;

struct TransferWishes {
  std::string notification;
  bool has_notification = false;
  std::string setting;
};

/// The base of all backends. Its functions stand in NIXL's order and have NIXL's names, but for
/// their spelling; `prep_mem_view` and `release_mem_view` are calls of GPU kernels.
class Backend {
 public:
  explicit Backend(const Birth& birth)
      : type_(birth.type), settings_(*birth.settings), agent_(birth.agent) {}
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  virtual ~Backend() = default;
  virtual bool supports_remote() const = 0;
  virtual bool supports_local() const = 0;
  virtual bool supports_notif() const = 0;
  virtual MemoryKinds get_supported_mems() const = 0;
  virtual Answer register_mem(const PlaceWithText& place, const MemoryKind& kind, Memory*& out) = 0;
  virtual Answer deregister_mem(Memory* memory) = 0;
  virtual Answer connect(const std::string& agent) = 0;
  virtual Answer disconnect(const std::string& agent) = 0;
  virtual Answer unload_md(Memory* memory) = 0;
  virtual Answer prep_xfer(const Operation& operation, const TransferPlaces& local,
                           const TransferPlaces& remote, const std::string& agent, Work*& work,
                           const TransferWishes* wishes) const = 0;
  virtual Answer post_xfer(const Operation& operation, const TransferPlaces& local,
                           const TransferPlaces& remote, const std::string& agent, Work*& work,
                           const TransferWishes* wishes) const = 0;
  virtual Answer check_xfer(Work* work) const = 0;
  virtual Answer release_req_h(Work* work) const = 0;
  virtual Answer prep_mem_view(const void* /*remote*/, void*& /*view*/,
                               const TransferWishes* /*wishes*/) const {
    return Answer::kUnsupported;
  }
  // Two overloads on the other side: this one is of local memory.
  virtual Answer prep_mem_view_local(const void* /*local*/, void*& /*view*/,
                                     const TransferWishes* /*wishes*/) const {
    return Answer::kUnsupported;
  }
  virtual void release_mem_view(void* /*view*/) const {}
  virtual Answer get_public_data(const Memory* memory, std::string& out) const = 0;
  virtual Answer get_conn_info(std::string& out) const = 0;
  virtual Answer load_remote_conn_info(const std::string& agent, const std::string& info) = 0;
  virtual Answer load_remote_md(const PlaceWithText& place, const MemoryKind& kind,
                                const std::string& agent, Memory*& out) = 0;
  virtual Answer load_local_md(Memory* memory, Memory*& out) = 0;
  virtual Answer get_notifs(Notifications& out) = 0;
  virtual Answer gen_notif(const std::string& agent, const std::string& message) const = 0;
  virtual Answer query_mem(const Places<PlaceWithText>& /*places*/,
                           std::vector<std::optional<Settings>>& /*out*/) const {
    return Answer::kUnsupported;
  }
  virtual Answer estimate_xfer_cost(const Operation& /*operation*/, const TransferPlaces& /*local*/,
                                    const TransferPlaces& /*remote*/, const std::string& /*agent*/,
                                    Work* const& /*work*/, std::chrono::microseconds& /*time*/,
                                    std::chrono::microseconds& /*error*/, int& /*method*/,
                                    const void* /*wishes*/) const {
    return Answer::kUnsupported;
  }

 protected:
  const std::string& agent() const { return agent_; }

 private:
  // Read by NIXL's inlined code, all in this order; what stands here is never used by us.
  std::string type_;
  Settings settings_;
  std::vector<std::byte> telemetry_;  // of another type there; always empty
  std::mutex telemetry_mutex_;
  [[maybe_unused]] bool is_broken_ = false;
  const std::string agent_;
  [[maybe_unused]] const bool wants_telemetry_ = false;
};

/// What nixl_plugin_init() returns.
struct Plugin {
  int version;
  Backend* (*create)(const Birth* birth);
  void (*destroy)(Backend* backend);
  const char* (*name)();
  const char* (*plugin_version)();
  Settings (*settings)();
  MemoryKinds (*memory_kinds)();
};
inline constexpr int kPluginVersion = 1;

}  // namespace braid::nixl
