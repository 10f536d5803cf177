// One end of a connection to one peer: a queue pair for writes, reads and immediates, another one
// for messages. Two, because both an immediate and a message take a receive in the order in which
// receives were posted, and only a message's has memory.
//
// An endpoint has one peer. Its name lists the queue pairs that it has made, and with more than
// one peer two endpoints could not agree by names alone which of them are for each other.
//
// When anything of a connection fails, all of it does: both queue pairs are failed, every
// operation completes, and writes are refused from then on. A new endpoint is the way back.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "sys/fabric/api.h"
#include "sys/verbs/domain.h"
#include "sys/verbs/failure.h"
#include "sys/verbs/queue_pair.h"
#include "sys/verbs/queues.h"
#include "sys/verbs/work_id.h"

namespace braid::sys::verbs {

class Endpoint final : public FabricEndpoint {
 public:
  explicit Endpoint(Domain& domain) : domain_(domain), library_(domain.library()) {}
  ~Endpoint() override;
  Status open(const EndpointRequest& request);

  const std::string& name() const override { return name_; }
  Result<uint64_t> add_peer(std::string_view name) override;
  Result<bool> write(const FabricTransfer& transfer, FabricOp* op) override;
  Result<bool> read(const FabricTransfer& transfer, FabricOp* op) override;
  Result<bool> send(const FabricMessage& message, FabricOp* op) override;
  Result<bool> receive(const FabricMessage& message, FabricOp* op) override;
  size_t poll(std::span<FabricEvent> events) override;
  std::string why(const FabricEvent& failed) const override;

 private:
  static constexpr size_t kChain = 4;  // work requests of one ringing of the NIC's bell
  struct Chain {
    std::array<ibv_send_wr, kChain> requests = {};
    std::array<ibv_sge, kChain> memory = {};
    size_t size = 0;
  };

  Status open_queues(const EndpointRequest& request);
  EndpointName make_name() const;
  Result<Route> route_to(const EndpointName& peer) const;
  Status check_usable(uint64_t peer) const;
  Status check_local(const FabricRegion* region, const std::byte* memory, size_t bytes) const;
  Result<bool> hold(const FabricTransfer& transfer, FabricOp* op, ibv_wr_opcode opcode);
  void post_held();
  void refuse_held(const ibv_send_wr* first, int error);
  void offer_immediates(uint32_t count);
  size_t take_owed(std::span<FabricEvent> events);
  size_t take_completions(std::span<FabricEvent> events);
  std::optional<FabricEvent> take(const ibv_wc& completion);
  std::optional<FabricEvent> take_failed(const ibv_wc& completion, FabricOp* op);
  void give_back(Work work);
  void look_around();
  void watch_silence(int64_t now);
  void break_off(const Failure& failure);
  void break_off_untold(const Failure& failure);

  Domain& domain_;
  const Library& library_;
  QueueSizes sizes_;
  CompletionQueue completions_;  // before what is bound to it
  QueuePair data_, messages_;
  Watch watch_;
  std::string name_;
  bool is_connected_ = false;
  std::optional<Failure> broken_;
  Credits transfer_credits_, send_credits_, receive_credits_;
  Chain held_;
  std::vector<FabricEvent> owed_;  // failures that no completion tells
  uint64_t progress_ = 0;          // operations posted and completed
  uint64_t progress_seen_ = 0;
  int64_t silent_since_ns_ = 0;
};

}  // namespace braid::sys::verbs
