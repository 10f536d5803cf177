#include "comm/observe/observer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "base/file_name.h"
#include "base/log.h"
#include "comm/observe/flight.h"
#include "comm/observe/outputs.h"
#include "comm/observe/trace.h"
#include "sys/host/api.h"
#include "sys/nvtx/api.h"

namespace braid::comm {

namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kTracedCalls = 65'536, kRecordedCalls = 2'000, kCountedCalls = 1'024;
constexpr int64_t kMostCalls = 1 << 22;  // a gigabyte of notes, which a call is not to run out of

/// Calls that are kept; 0: none is asked for.
size_t calls_to_keep(const Config& config) {
  const int64_t wanted = config.integer("BRAID_TRACE_CALLS");
  if (wanted > kMostCalls)
    log::warn("comm", "BRAID_TRACE_CALLS: asked for {}, the most is {}", wanted, kMostCalls);
  if (wanted > 0) return static_cast<size_t>(std::min(wanted, kMostCalls));
  if (!config.text("BRAID_TRACE").empty()) return kTracedCalls;
  return config.text("BRAID_FLIGHT_RECORD").empty() ? 0 : kRecordedCalls;
}

std::vector<int> distinct_or_own(const std::vector<int>& job_ranks, int size) {
  if (std::set<int>(job_ranks.begin(), job_ranks.end()).size() == static_cast<size_t>(size))
    return job_ranks;
  std::vector<int> own(static_cast<size_t>(size));
  std::iota(own.begin(), own.end(), 0);
  return own;
}

/// "out/trace.json" is one file: rank 3 of a job gets "out/trace.3.json".
std::string trace_path(const std::string& pattern, int rank, int size) {
  const bool is_alone = size == 1 && rank_in_job() < 0;
  if (is_alone || tells_processes_apart(pattern)) return expand_file_name(pattern, rank);
  constexpr std::string_view kEnd = ".json";
  const bool has_end = pattern.ends_with(kEnd);
  const std::string stem = has_end ? pattern.substr(0, pattern.size() - kEnd.size()) : pattern;
  return expand_file_name(fmt::format("{}.%r{}", stem, has_end ? kEnd : ""), rank);
}

std::string host_of(const Config& config) {
  auto id = sys::host_id(config.text("BRAID_HOST_ID"));
  return id.ok() ? std::move(id).value() : "unknown";
}

/// Readers of flight records take what follows a common beginning for the rank.
std::string flight_path(const std::string& pattern, int rank) {
  return expand_file_name(tells_processes_apart(pattern) ? pattern : pattern + "%r", rank);
}

}  // namespace

Observer::Observer(const Config& config)
    : timeout_ns_(config.duration_ns("BRAID_TIMEOUT")), host_(host_of(config)) {}

std::unique_ptr<Observer> Observer::create(const Config& config, int rank, int size,
                                           const std::vector<std::string>& links,
                                           const Members& members) {
  const size_t kept = calls_to_keep(config);
  const bool is_counted = config.integer("BRAID_METRICS_PORT") != 0;
  if (kept == 0 && !is_counted && !config.flag("BRAID_NVTX")) return nullptr;
  std::unique_ptr<Observer> observer(new Observer(config));
  CommFacts facts;
  facts.rank = rank;
  facts.size = size;
  const int known = rank_in_job();
  facts.job_rank = known < 0 ? rank : known;
  facts.ranks = distinct_or_own(members.job_ranks, size);
  facts.name = members.name;
  facts.links = links;
  facts.links.insert(facts.links.end(), kGpuLinkNames.begin(), kGpuLinkNames.end());
  observer->keeps_calls_ = kept > 0;
  observer->wants_times_ = kept > 0 || is_counted;
  observer->journal_ = std::make_shared<Journal>(facts, kept > 0     ? kept
                                                        : is_counted ? kCountedCalls
                                                                     : 1);
  observer->open_outputs(config, facts.job_rank);
  return observer;
}

void Observer::open_outputs(const Config& config, int job_rank) {
  const int size = journal_->facts().size;
  if (const std::string& pattern = config.text("BRAID_TRACE"); !pattern.empty()) {
    trace_ = TraceFile::at(trace_path(pattern, job_rank, size), host_);
    trace_->shelf.add(journal_);
  }
  if (const std::string& pattern = config.text("BRAID_FLIGHT_RECORD"); !pattern.empty()) {
    flight_ = FlightFile::at(flight_path(pattern, job_rank));
    flight_->shelf.add(journal_);
  }
  if (const int64_t base = config.integer("BRAID_METRICS_PORT"); base != 0) {
    constexpr int64_t kLastPort = 65'535;
    if (base + job_rank > kLastPort)
      log::warn("comm", "BRAID_METRICS_PORT: asked for {} plus rank {}, the last port is {}", base,
                job_rank, kLastPort);
    else
      metrics_ = MetricsPort::at(static_cast<uint16_t>(base + job_rank));
    if (metrics_ != nullptr) metrics_->shelf.add(journal_);
  }
  if (!config.flag("BRAID_NVTX")) return;
  const auto tool = sys::real_nvtx();
  if (tool.ok())
    nvtx_ = tool.value();
  else
    log::info("comm", "BRAID_NVTX: {}", tool.status().message());
}

Observer::~Observer() { close(); }

uint64_t Observer::begin(const CallNote& what) {
  if (nvtx_ != nullptr) nvtx_->push(words_of(what.shape).c_str(), what.shape.bytes);
  return journal_->begin(what);
}

void Observer::end(uint64_t number, CallState state, Code code, const char* path,
                   const std::vector<LinkNote>& links) {
  journal_->end(number, state, code, path, links);
  if (nvtx_ != nullptr) nvtx_->pop();
}

void Observer::failed(const Status& why) {
  journal_->note_failure(why.code());
  if (why.code() != Code::kInvalidArgument) broken(why);  // of which the comm stays usable
}

void Observer::broken(const Status& why) {
  if (has_failed_.exchange(true)) return;
  log::debug("comm", "what was observed is written: {}", why.message());
  if (flight_ != nullptr) flight_->write(timeout_ns_);
  if (trace_ != nullptr) trace_->write();  // the program may not live to close the comm
}

std::string Observer::trace() const {
  return trace_json({pages_of(*journal_)}, host_, clocks_now());
}

std::string Observer::flight_record() const {
  const Json record = comm::flight_record({pages_of(*journal_)}, clocks_now(), timeout_ns_);
  return record.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void Observer::close() {
  if (is_closed_.exchange(true)) return;
  if (metrics_ != nullptr) metrics_->shelf.remove(journal_.get());
  if (flight_ != nullptr && has_failed_) flight_->shelf.retire(journal_.get());
  if (flight_ != nullptr && !has_failed_) flight_->shelf.remove(journal_.get());
  if (trace_ == nullptr) return;
  trace_->shelf.retire(journal_.get());
  trace_->write();
}

}  // namespace braid::comm
