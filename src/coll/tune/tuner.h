// Tuner: stage 1 itself. For every operation it measures each link alone at two sizes, solves the
// split from that, and then lets plan::StepSearch refine the split of all links together, per size
// class, until they finish together.
//
// What it finds is kept for later starts, so one preempted call must not decide: short calls are
// repeated more often, and a size that took longer than a larger one is measured again.
//
// Every rank runs the same steps on the same agreed numbers (Workload::measure), so all end with
// the same table and nobody has to tell anybody. The time budget is agreed in the same way: it is
// the slowest rank's clock that counts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "coll/tune/measure.h"
#include "coll/tune/tune.h"
#include "comm/comm.h"
#include "plan/table.h"

namespace braid::coll {

class Tuner {
 public:
  Tuner(comm::Comm& comm, std::string fabric_hash, int64_t budget_ns, const TuneProgress& progress);
  Result<plan::TuningTable> run();
  /// What it did, a line per operation and size.
  const std::vector<std::string>& log() const { return log_; }

 private:
  struct Single {
    size_t link = 0;
    int64_t duration_ns = 0;
  };
  Status measure_alone(plan::Op op, uint64_t bytes);
  Status note_alone(plan::Op op, uint64_t bytes, size_t link, int64_t duration_ns);
  Status refine(plan::Op op, uint64_t bytes);
  Result<Single> best_alone(plan::Op op, uint64_t bytes);
  void show(const std::string& what);
  bool is_late() const { return elapsed_ns_ >= budget_ns_; }
  /// A budget of 0 cuts off, too, and 0 in the table means that nothing did.
  void note_cut_off() { table_.set_cut_off_ns(std::max<int64_t>(budget_ns_, 1)); }
  bool is_affordable(double call_ns, int calls) const;
  uint64_t affordable_bytes(plan::Op op, uint64_t wanted_bytes) const;

  comm::Comm& comm_;
  const int64_t budget_ns_;
  const TuneProgress& progress_;
  const int64_t start_ns_;
  int64_t elapsed_ns_ = 0;  // agreed by all ranks at the last measurement
  int steps_done_ = 0;
  plan::TuningTable table_;
  Workload workload_;
  std::vector<std::string> names_;
  std::vector<std::string> log_;
};

}  // namespace braid::coll
