#include "coll/tune/tune.h"

#include <fmt/ranges.h>

#include "base/clock.h"
#include "base/units.h"
#include "coll/tune/tuner.h"
#include "coll/tuning_cache.h"
#include "comm/observe/observer.h"
#include "comm/state.h"
#include "fabric/hash.h"

namespace braid::coll {

namespace {

// Counts changes of the schedules: shares that were tuned for another way to broadcast are not
// worth keeping.
constexpr int kScheduleRevision = 2;

// Whether nothing better would come of measuring these links anew.
Status check_cached(const comm::Comm& comm, const plan::TuningTable& table) {
  std::vector<std::string> names;
  for (const fabric::Link& link : comm.links()) names.push_back(link.name);
  if (table.links() != names)
    return invalid_argument("is of the links {}, these are {}", fmt::join(table.links(), " "),
                            fmt::join(names, " "));
  const int64_t budget_ns = comm.config().duration_ns("BRAID_TUNE_TIME");
  if (table.cut_off_ns() != 0 && table.cut_off_ns() < budget_ns)
    return unavailable("is of a measurement that was cut off after {}, BRAID_TUNE_TIME is {}",
                       format_ns(table.cut_off_ns()), format_ns(budget_ns));
  return {};
}

// The tuning text that rank 0 found for this fabric; empty when there is none that holds.
std::string cached_text(comm::Comm& comm, const std::string& hash) {
  return find_tuning(comm.config(), comm.rank(), tuning_path(comm.config(), hash),
                     [&](const std::string& text) -> Status {
                       BRAID_ASSIGN_OR_RETURN(const auto table,
                                              plan::TuningTable::parse(text, hash));
                       return check_cached(comm, table);
                     });
}

void install(comm::Comm& comm, plan::TuningTable table, std::vector<std::string> lines) {
  comm::Comm::State& state = comm.state();
  const std::lock_guard lock(state.mutex);
  state.table = std::move(table);
  state.plans_changed();
  for (std::string& line : lines) state.note_event(std::move(line));
}

void save(const comm::Comm& comm, const std::string& hash, const plan::TuningTable& table) {
  const std::string path = tuning_path(comm.config(), hash), text = table.to_json();
  constexpr const char* kWhat = "this fabric";
  if (table.cut_off_ns() == 0) return keep_tuning(path, text, kWhat);
  keep_cut_off_tuning(path, text, kWhat, [&](const std::string& other) {
    const auto kept = plan::TuningTable::parse(other, hash);
    return kept.ok() && kept->links() == table.links() &&
           (kept->cut_off_ns() == 0 || kept->cut_off_ns() > table.cut_off_ns());
  });
}

Status measure_and_save(comm::Comm& comm, const std::string& hash, const TuneProgress& progress) {
  const comm::Unobserved tuning(comm.state().observer.get());
  Tuner tuner(comm, hash, comm.config().duration_ns("BRAID_TUNE_TIME"), progress);
  auto table = tuner.run();
  BRAID_RETURN_IF_ERROR(comm.force_shares({}));
  BRAID_RETURN_IF_ERROR(table.status());
  if (comm.rank() == 0) save(comm, hash, table.value());
  install(comm, std::move(table).value(), tuner.log());
  return {};
}

}  // namespace

Status ensure_tuned(comm::Comm& comm, const TuneProgress& progress) {
  const std::string& mode = comm.config().text("BRAID_TUNE");
  if (mode != "auto" && mode != "off" && mode != "force")
    return invalid_argument("BRAID_TUNE is '{}', expected auto, off or force", mode);
  if (mode == "off" || comm.links().size() < 2) return {};
  const std::string hash =
      fmt::format("{}-{}", fabric::fabric_hash(comm.fabric()), kScheduleRevision);
  BRAID_ASSIGN_OR_RETURN(
      const std::vector<std::string> texts,
      comm.state().group->exchange("tuning", cached_text(comm, hash),
                                   Deadline::after_ns(comm.config().duration_ns("BRAID_TIMEOUT"))));
  if (texts.front().empty()) return measure_and_save(comm, hash, progress);
  BRAID_ASSIGN_OR_RETURN(plan::TuningTable table, plan::TuningTable::parse(texts.front(), hash));
  install(comm, std::move(table), {"tuning read from the cache"});
  return {};
}

}  // namespace braid::coll
