#include "coll/tune/measure.h"

#include <algorithm>

#include "base/check.h"
#include "base/clock.h"
#include "coll/all_gather/all_gather.h"
#include "coll/all_reduce/all_reduce.h"
#include "coll/all_to_all/all_to_all.h"
#include "coll/broadcast/broadcast.h"
#include "coll/reduce_scatter/reduce_scatter.h"

namespace braid::coll {

Workload::Workload(comm::Comm& comm, uint64_t most_bytes)
    : comm_(comm), send_(most_bytes), recv_(most_bytes) {}

Status Workload::run_once(plan::Op op, uint64_t bytes) {
  const auto n = static_cast<uint64_t>(comm_.size());
  const uint64_t floats = bytes / sizeof(float);
  BRAID_CHECK(floats * sizeof(float) <= send_.size(), "{} bytes in a workload of {}", bytes,
              send_.size());
  switch (op) {
    case plan::Op::kAllGather:
      return all_gather(comm_, send_.data(), recv_.data(), floats / n, Dtype::kFloat32);
    case plan::Op::kAllReduce:
      return all_reduce(comm_, send_.data(), recv_.data(), floats, Dtype::kFloat32, RedOp::kSum);
    case plan::Op::kReduceScatter:
      return reduce_scatter(comm_, send_.data(), recv_.data(), floats / n, Dtype::kFloat32,
                            RedOp::kSum);
    case plan::Op::kAllToAll:
      return all_to_all(comm_, send_.data(), recv_.data(), floats / n, Dtype::kFloat32);
    case plan::Op::kBroadcast: return broadcast(comm_, send_.data(), floats, Dtype::kFloat32, 0);
  }
  return internal_error("op {} is unknown", static_cast<int>(op));
}

Result<Round> Workload::measure(plan::Op op, uint64_t bytes, const plan::Shares& shares,
                                int repeats, bool is_first, int64_t since_ns) {
  const size_t num_links = comm_.links().size();
  BRAID_RETURN_IF_ERROR(comm_.force_shares(shares));
  if (is_first) BRAID_RETURN_IF_ERROR(run_once(op, bytes));
  std::vector<std::vector<int64_t>> samples(num_links + 1);
  std::vector<int64_t> agreed(num_links + 2);
  for (int i = 0; i < repeats; ++i) {
    BRAID_RETURN_IF_ERROR(barrier(comm_));
    BRAID_RETURN_IF_ERROR(run_once(op, bytes));
    const comm::CallReport& report = comm_.last_call();
    for (size_t link = 0; link < num_links; ++link) agreed[link] = report.links[link].finish_ns;
    agreed[num_links] = report.duration_ns;
    agreed[num_links + 1] = now_ns() - since_ns;
    BRAID_RETURN_IF_ERROR(
        all_reduce(comm_, agreed.data(), agreed.data(), agreed.size(), Dtype::kInt64, RedOp::kMax));
    for (size_t s = 0; s <= num_links; ++s) samples[s].push_back(agreed[s]);
  }
  Round round;
  round.elapsed_ns = agreed[num_links + 1];
  for (std::vector<int64_t>& s : samples) {
    const size_t at = s.size() < 4 ? (s.size() - 1) / 2 : s.size() / 4;
    std::nth_element(s.begin(), s.begin() + static_cast<ptrdiff_t>(at), s.end());
    round.finish_ns.push_back(s[at]);
  }
  round.duration_ns = round.finish_ns.back();
  round.finish_ns.pop_back();
  return round;
}

}  // namespace braid::coll
