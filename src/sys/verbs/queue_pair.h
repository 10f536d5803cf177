// A reliable connection's end.
//
// States: made (it may be given receives), connected to one peer's queue pair, failed (everything
// that is in it completes with an error, and nothing lands any more).
#pragma once

#include "sys/verbs/library.h"
#include "sys/verbs/name.h"

namespace braid::sys::verbs {

struct QueuePairRequest {
  ibv_pd* domain = nullptr;
  ibv_cq* completions = nullptr;
  uint8_t port = 1;
  uint32_t max_sends = 0;
  uint32_t max_receives = 0;
  int remote_access = 0;  // what the peer may do to registered memory through it
};

/// The way to the peer.
struct Route {
  uint8_t port = 1;
  uint32_t gid_index = 0;
  bool is_global = true;  // by GID; else by LID alone
  uint8_t mtu = 0;
  uint8_t reads_from_peer = 0;  // that we answer at once
  uint8_t reads_to_peer = 0;
  uint8_t traffic_class = 0;
};

class QueuePair {
 public:
  QueuePair() = default;
  static Result<QueuePair> create(const Library& library, const QueuePairRequest& request);

  QueuePairName name() const { return {queue_pair_->qp_num, first_packet_}; }
  /// Bytes that a write may carry inside its work request.
  uint32_t inline_bytes() const { return inline_bytes_; }
  Status connect(const Route& route, const EndpointName& peer, const QueuePairName& pair);
  /// Ends it; what is in it completes with an error.
  void fail();
  /// Answers an errno; `bad` is the first that was not posted then.
  int post(ibv_send_wr* first, ibv_send_wr** bad) {
    return ibv_post_send(queue_pair_.get(), first, bad);
  }
  int post(ibv_recv_wr* first, ibv_recv_wr** bad) {
    return ibv_post_recv(queue_pair_.get(), first, bad);
  }

 private:
  Status initialise(const QueuePairRequest& request);
  Status modify(ibv_qp_attr& attributes, int mask, const char* state);

  const Library* library_ = nullptr;
  Owned<&Library::destroy_qp, ibv_qp> queue_pair_;
  uint32_t first_packet_ = 0;
  uint32_t inline_bytes_ = 0;
};

}  // namespace braid::sys::verbs
