#include "sys/verbs/queue_pair.h"

#include <algorithm>
#include <cerrno>

#include "sys/error_text.h"
#include "sys/fabric/api.h"

namespace braid::sys::verbs {
namespace {

// A packet without an answer is sent again after 4.096 us * 2^15 = 134 ms, 6 times: a peer that is
// dead is known after 0.94 s. NICs may take up to four times as long, and most take about twice. Not
// 7 times: soft-RoCE takes that for "without end", as it is for a receiver that is not ready.
constexpr uint8_t kAckTimeout = 15;
constexpr uint8_t kRetries = 6;
// A write with an immediate that finds no receive at the target is sent again after 0.64 ms (code
// 12), without end (7): a target that is busy elsewhere must not break the connection. It ends by
// a time of ours: Endpoint::watch_silence().
constexpr uint8_t kNotReadyTimer = 12;
constexpr uint8_t kNotReadyRetries = 7;
// As far as a datagram of IP gets in any data centre.
constexpr uint8_t kHopLimit = 64;
// Small enough that the work request keeps its size on the NICs that we know of.
constexpr uint32_t kWantedInlineBytes = 64;

// Unpredictable, so that packets of an earlier connection, or of somebody who only knows the
// number of the queue pair, do not fit in.
uint32_t random_packet_number() { return static_cast<uint32_t>(random_key()) & 0xffffff; }

ibv_qp* make(const Library& library, const QueuePairRequest& request, uint32_t& inline_bytes) {
  ibv_qp_init_attr wanted{};
  wanted.qp_type = IBV_QPT_RC;
  wanted.send_cq = wanted.recv_cq = request.completions;
  wanted.cap = {request.max_sends, request.max_receives, 1, 1, inline_bytes};
  ibv_qp* made = library.create_qp(request.domain, &wanted);
  inline_bytes = wanted.cap.max_inline_data;  // what was granted
  return made;
}

}  // namespace

Result<QueuePair> QueuePair::create(const Library& library, const QueuePairRequest& request) {
  QueuePair made;
  made.library_ = &library;
  made.first_packet_ = random_packet_number();
  made.inline_bytes_ = kWantedInlineBytes;
  ibv_qp* pair = make(library, request, made.inline_bytes_);
  if (pair == nullptr && errno == EINVAL) {  // the device takes nothing inline
    made.inline_bytes_ = 0;
    pair = make(library, request, made.inline_bytes_);
  }
  if (pair == nullptr)
    return driver_error("ibv_create_qp (RC, {} sends, {} receives): {}", request.max_sends,
                        request.max_receives, error_text(errno));
  made.queue_pair_ = {library, pair};
  BRAID_RETURN_IF_ERROR(made.initialise(request));
  return made;
}

Status QueuePair::modify(ibv_qp_attr& attributes, int mask, const char* state) {
  const int rc = library_->modify_qp(queue_pair_.get(), &attributes, mask);
  if (rc == 0) return {};
  return driver_error("ibv_modify_qp to {}: {}", state, error_text(rc));
}

Status QueuePair::initialise(const QueuePairRequest& request) {
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_INIT;
  a.pkey_index = 0;
  a.port_num = request.port;
  a.qp_access_flags = static_cast<unsigned>(request.remote_access);
  return modify(a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "INIT");
}

Status QueuePair::connect(const Route& route, const EndpointName& peer, const QueuePairName& pair) {
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_RTR;  // ready to receive
  a.path_mtu = static_cast<ibv_mtu>(route.mtu);
  a.dest_qp_num = pair.number;
  a.rq_psn = pair.first_packet;
  a.max_dest_rd_atomic = route.reads_from_peer;
  a.min_rnr_timer = kNotReadyTimer;
  a.ah_attr.dlid = peer.lid;
  a.ah_attr.port_num = route.port;
  a.ah_attr.is_global = route.is_global ? 1 : 0;
  std::copy(peer.gid.begin(), peer.gid.end(), a.ah_attr.grh.dgid.raw);
  a.ah_attr.grh.sgid_index = static_cast<uint8_t>(route.gid_index);
  a.ah_attr.grh.hop_limit = kHopLimit;
  a.ah_attr.grh.traffic_class = route.traffic_class;
  BRAID_RETURN_IF_ERROR(modify(a,
                               IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                   IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                               "RTR"));
  a.qp_state = IBV_QPS_RTS;  // ready to send
  a.sq_psn = first_packet_;
  a.timeout = kAckTimeout;
  a.retry_cnt = kRetries;
  a.rnr_retry = kNotReadyRetries;
  a.max_rd_atomic = route.reads_to_peer;
  return modify(a,
                IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                    IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC,
                "RTS");
}

void QueuePair::fail() {
  if (!queue_pair_) return;
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_ERR;
  library_->modify_qp(queue_pair_.get(), &a, IBV_QP_STATE);
}

}  // namespace braid::sys::verbs
