// braid's transfer engine as a backend of NIXL.
//
// A NIXL agent has one backend, which has an engine for the host's memory, or for that and one GPU
// (setting `device`), and makes one more for each other GPU whose memory is registered. An agent's
// connection info is its first engine's address; a registration's public data is its descriptor,
// which names the engine that it belongs to. Progress needs no call: engines have threads.
//
// What NIXL asks and the engine answers:
//
//   post_xfer        the transfers of request.h            check_xfer       their tickets
//   release_req_h    cancels, and waits until nothing can land any more
//   deregister_mem   waits until nothing can land there    disconnect       ends the connections
//   get_notifs       what came, behind all bytes of its transfer
//
// A peer that is lost is NIXL's "remote disconnected": the agent then forgets it, and may load its
// metadata again. Why something failed is logged, for NIXL's answers are numbers.
//
// Threads: any, at once.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "abi.h"
#include "notices.h"
#include "request.h"

namespace braid::nixl {

class BraidBackend final : public Backend {
 public:
  static Result<std::unique_ptr<BraidBackend>> create(const Birth& birth);
  /// The same with options that no setting says.
  static Result<std::unique_ptr<BraidBackend>> create(const Birth& birth,
                                                      const engine::EngineOptions& options);

  bool supports_remote() const override { return true; }
  bool supports_local() const override { return true; }
  bool supports_notif() const override { return true; }
  MemoryKinds get_supported_mems() const override { return memory_kinds(); }
  static MemoryKinds memory_kinds() { return {MemoryKind::kHost, MemoryKind::kGpu}; }

  Answer register_mem(const PlaceWithText& place, const MemoryKind& kind, Memory*& out) override;
  Answer deregister_mem(Memory* memory) override;
  Answer connect(const std::string& agent) override;
  Answer disconnect(const std::string& agent) override;
  Answer unload_md(Memory* memory) override;
  Answer prep_xfer(const Operation& operation, const TransferPlaces& local,
                   const TransferPlaces& remote, const std::string& agent, Work*& work,
                   const TransferWishes* wishes) const override;
  Answer post_xfer(const Operation& operation, const TransferPlaces& local,
                   const TransferPlaces& remote, const std::string& agent, Work*& work,
                   const TransferWishes* wishes) const override;
  Answer check_xfer(Work* work) const override;
  Answer release_req_h(Work* work) const override;
  Answer get_public_data(const Memory* memory, std::string& out) const override;
  Answer get_conn_info(std::string& out) const override;
  Answer load_remote_conn_info(const std::string& agent, const std::string& info) override;
  Answer load_remote_md(const PlaceWithText& place, const MemoryKind& kind,
                        const std::string& agent, Memory*& out) override;
  Answer load_local_md(Memory* memory, Memory*& out) override;
  Answer get_notifs(Notifications& out) override;
  Answer gen_notif(const std::string& agent, const std::string& message) const override;

 private:
  struct Peer {
    engine::Address address;
    std::map<engine::Incarnation, engine::Address> owners;  // of its registrations
  };

  BraidBackend(const Birth& birth, engine::EngineOptions options)
      : Backend(birth), options_(std::move(options)) {}
  Result<engine::Engine*> engine_for(const MemoryKind& kind, uint64_t device);
  engine::Engine* engine_of(int device) const;
  std::vector<engine::Engine*> engines() const;
  engine::Engine& first() const { return *first_; }
  Result<engine::Address> address_of(const std::string& agent) const;
  Result<std::vector<engine::TicketPtr>> tell(const std::string& agent,
                                              const std::vector<std::string>& notice) const;
  Answer answer(const Status& status, const std::string& doing) const;

  const engine::EngineOptions options_;
  mutable std::atomic<uint64_t> next_notice_ = 1;
  std::mutex making_;  // of engines, which takes a GPU's context and so seconds; before mutex_
  mutable std::mutex mutex_;  // of what follows, for moments
  std::map<std::string, Peer> peers_;
  std::mutex joiner_mutex_;
  Joiner joiner_;
  engine::Engine* first_ = nullptr;
  std::map<int, std::unique_ptr<engine::Engine>> engines_;  // last: their callbacks use the above
};

}  // namespace braid::nixl
