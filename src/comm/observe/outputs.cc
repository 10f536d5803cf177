#include "comm/observe/outputs.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/log.h"
#include "comm/observe/flight.h"
#include "comm/observe/metrics.h"
#include "comm/observe/pickle.h"
#include "comm/observe/trace.h"
#include "sys/host/api.h"
#include "sys/host/file.h"

namespace braid::comm {

namespace {

/// What a process has one of per path or port. Never destroyed: threads and the end of the process
/// use it. A fork begins anew, for its parent's comms are not its own.
template <typename Output>
class OnePer {
 public:
  template <typename Key, typename Make>
  std::shared_ptr<Output> at(const Key& key, Make make) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Output>& found = outputs_[{sys::process_id(), fmt::format("{}", key)}];
    if (found == nullptr) found = make();
    return found;
  }
  std::vector<std::shared_ptr<Output>> all() {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<Output>> own;
    for (const auto& [key, output] : outputs_)
      if (key.first == sys::process_id()) own.push_back(output);
    return own;
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<int, std::string>, std::shared_ptr<Output>> outputs_;
};

OnePer<TraceFile>& trace_files() {
  static auto* const the = new OnePer<TraceFile>;
  return *the;
}
OnePer<FlightFile>& flight_files() {
  static auto* const the = new OnePer<FlightFile>;
  return *the;
}

/// Programs seldom close their comms. What a program that ends by itself has not written yet is
/// written here.
void write_at_exit() {
  static const int registered = std::atexit([] {
    for (const auto& file : trace_files().all())
      if (file->shelf.has_open()) file->write();
  });
  (void)registered;
}

std::vector<JournalPages> pages_on(const Shelf& shelf) {
  std::vector<JournalPages> pages;
  for (const auto& journal : shelf.journals()) pages.push_back(pages_of(*journal));
  return pages;
}

}  // namespace

// ---- Shelf ----

void Shelf::add(std::shared_ptr<Journal> journal) {
  const std::lock_guard lock(mutex_);
  places_.push_back({std::move(journal), false});
}

void Shelf::retire(const Journal* journal) {
  constexpr size_t kMostRetired = 64;
  const std::lock_guard lock(mutex_);
  size_t num_retired = 0;
  uint64_t num_notes = 0;
  for (auto place = places_.end(); place != places_.begin();) {
    --place;
    if (place->journal.get() == journal) place->is_retired = true;
    if (!place->is_retired) continue;
    num_notes += place->journal->num_notes();
    if (++num_retired > kMostRetired || (num_notes > most_retired_notes_ && num_retired > 1))
      place = places_.erase(place);
  }
}

void Shelf::remove(const Journal* journal) {
  const std::lock_guard lock(mutex_);
  std::erase_if(places_, [&](const Place& place) { return place.journal.get() == journal; });
}

std::vector<std::shared_ptr<Journal>> Shelf::journals() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Journal>> all;
  for (const Place& place : places_) all.push_back(place.journal);
  return all;
}

bool Shelf::has_open() const {
  const std::lock_guard lock(mutex_);
  return std::any_of(places_.begin(), places_.end(),
                     [](const Place& place) { return !place.is_retired; });
}

// ---- TraceFile ----

TraceFile::TraceFile(std::string path, std::string host)
    : path_(std::move(path)), host_(std::move(host)) {}

std::shared_ptr<TraceFile> TraceFile::at(const std::string& path, const std::string& host) {
  write_at_exit();
  return trace_files().at(path, [&] { return std::make_shared<TraceFile>(path, host); });
}

void TraceFile::write() {
  const std::lock_guard lock(writing_);
  const Status written = sys::write_file(path_, trace_json(pages_on(shelf), host_, clocks_now()));
  if (!written.ok()) log::warn("comm", "BRAID_TRACE: {}", written.message());
}

// ---- FlightFile ----

std::shared_ptr<FlightFile> FlightFile::at(const std::string& path) {
  return flight_files().at(path, [&] { return std::make_shared<FlightFile>(path); });
}

void FlightFile::write(int64_t timeout_ns) {
  const std::lock_guard lock(writing_);
  const auto record = flight_record(pages_on(shelf), clocks_now(), timeout_ns);
  const Status written = sys::write_file(path_, pickled(record));
  if (written.ok())
    log::warn("comm", "the last {} calls are in {}", record["entries"].size(), path_);
  else
    log::warn("comm", "BRAID_FLIGHT_RECORD: {}", written.message());
}

// ---- MetricsPort ----

std::shared_ptr<MetricsPort> MetricsPort::at(uint16_t port) {
  static auto* const mutex = new std::mutex;
  static auto* const served = new std::map<std::pair<int, uint16_t>, std::weak_ptr<MetricsPort>>;
  const std::lock_guard lock(*mutex);
  std::weak_ptr<MetricsPort>& place = (*served)[{sys::process_id(), port}];
  if (auto there = place.lock()) return there;
  auto made = std::make_shared<MetricsPort>(port);
  if (!made->is_served()) return nullptr;
  place = made;
  return made;
}

MetricsPort::MetricsPort(uint16_t port) {
  auto started = MetricsServer::start(port, [this] { return page(); });
  if (started.ok())
    server_ = std::move(started).value();
  else
    log::warn("comm", "BRAID_METRICS_PORT: {}", started.status().message());
}

std::string MetricsPort::page() const {
  std::vector<CommCounts> counts;
  for (const auto& journal : shelf.journals())
    counts.push_back({journal->facts(), journal->tally()});
  return metrics_text(counts);
}

int next_comm_index(int job_rank) {
  static auto* const mutex = new std::mutex;
  static auto* const made = new std::map<std::pair<int, int>, int>;
  const std::lock_guard lock(*mutex);
  return (*made)[{sys::process_id(), job_rank}]++;
}

}  // namespace braid::comm
