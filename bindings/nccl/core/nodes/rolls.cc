#include "bindings/nccl/core/nodes/rolls.h"

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "bindings/nccl/core/nodes/roll_host.h"

namespace braid::nccl {

namespace {

/// One for each address that NCCL's bootstrap has used. They end with the process: ranks may come to
/// a meeting at any time.
class Hosts {
 public:
  Result<Mark> add_id(const sys::Endpoint& at, const std::string& job_token) {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<RollHost>& host = hosts_[at.host()];
    if (!host) {
      BRAID_ASSIGN_OR_RETURN(host, RollHost::serve(at));
    }
    BRAID_ASSIGN_OR_RETURN(const Mark made, host->add_id(job_token));
    made_.insert(made.secret);
    return made;
  }
  bool has(const Mark& mark) {
    const std::lock_guard lock(mutex_);
    return made_.contains(mark.secret);
  }

 private:
  std::mutex mutex_;
  std::set<decltype(Mark::secret)> made_;
  std::map<std::string, std::unique_ptr<RollHost>> hosts_;
};

Hosts& all_hosts() {
  static Hosts& hosts = *new Hosts;  // as the real library, never destroyed
  return hosts;
}

}  // namespace

Result<Mark> add_roll(const sys::Endpoint& at, const std::string& job_token) {
  return all_hosts().add_id(at, job_token);
}

bool has_roll(const Mark& mark) { return all_hosts().has(mark); }

// With NCCL_COMM_ID every rank makes the id for itself, and they must be equal.
Status mark_id(std::span<std::byte, kIdBytes> id, const std::string& job_token) {
  if (secure_getenv("NCCL_COMM_ID") != nullptr)  // NOLINT(concurrency-mt-unsafe)
    return unsupported("NCCL_COMM_ID is set: every rank makes the id for itself");
  BRAID_ASSIGN_OR_RETURN(const sys::Endpoint at, bootstrap_of(id));
  BRAID_ASSIGN_OR_RETURN(const Mark mark, add_roll(at, job_token));
  write_mark(id, mark);
  return {};
}

}  // namespace braid::nccl
