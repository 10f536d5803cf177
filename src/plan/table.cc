#include "plan/table.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/check.h"
#include "fabric/json_read.h"

namespace braid::plan {

namespace {

using fabric::JsonReader;

constexpr const char* kFormat = "braid-tuning";
constexpr uint64_t kVersion = 1;

// Bounds of what a file may claim. Generous for any machine, small enough that a hostile file costs
// milliseconds.
constexpr size_t kMaxTextBytes = 1 << 20;
constexpr size_t kMaxNameBytes = 256;
constexpr size_t kMaxLinks = 64;
constexpr size_t kMaxEntries = 4096;
constexpr size_t kMaxCurves = 4096;
constexpr size_t kMaxPoints = 1024;
constexpr uint64_t kMaxRanks = 65536;
constexpr uint64_t kMaxBytes = uint64_t{1} << 50;
constexpr uint64_t kMaxCellBytes = uint64_t{1} << 30;
constexpr double kMinNs = 1e-3;
constexpr double kMaxNs = 1e15;  // eleven days

Op read_op(const JsonReader& value) {
  const std::string name = value.text(kMaxNameBytes);
  const Result<Op> op = parse_op(name);
  if (!op.ok()) value.fail(op.status().message());
  return op.ok() ? op.value() : Op::kAllGather;
}

Shares read_shares(const JsonReader& value, size_t num_links) {
  const size_t size = value.size(kMaxLinks);
  if (size != num_links) value.fail(fmt::format("{} shares for {} links", size, num_links));
  Shares shares;
  for (size_t i = 0; i < size; ++i)
    shares.push_back(static_cast<uint32_t>(value.at(i).integer(0, kWhole)));
  const uint64_t sum = std::accumulate(shares.begin(), shares.end(), uint64_t{0});
  if (sum != kWhole) value.fail(fmt::format("shares sum to {}, not {}", sum, kWhole));
  return shares;
}

TuningEntry read_entry(const JsonReader& value, size_t num_links) {
  TuningEntry entry;
  entry.op = read_op(value.child("op"));
  entry.num_ranks = static_cast<int>(value.child("num_ranks").integer(1, kMaxRanks));
  entry.bytes = value.child("bytes").integer(1, kMaxBytes);
  entry.shares = read_shares(value.child("shares"), num_links);
  const JsonReader cell = value.child("cell_bytes");
  entry.cell_bytes = static_cast<uint32_t>(cell.integer(0, kMaxCellBytes));
  if (entry.cell_bytes % 64 != 0)
    cell.fail(fmt::format("{} is not a multiple of 64", entry.cell_bytes));
  entry.measured_ns = value.child("measured_ns").number(kMinNs, kMaxNs);
  entry.best_link = static_cast<int>(value.child("best_link").integer(0, num_links - 1));
  entry.best_single_ns = value.child("best_single_ns").number(0, kMaxNs);
  return entry;
}

void read_curve(const JsonReader& value, size_t num_links, RateTable& rates) {
  const Op op = read_op(value.child("op"));
  const auto num_ranks = static_cast<int>(value.child("num_ranks").integer(1, kMaxRanks));
  const size_t link = value.child("link").integer(0, num_links - 1);
  const JsonReader points = value.child("points");
  const size_t size = points.size(kMaxPoints);
  for (size_t i = 0; i < size && value.ok(); ++i) {
    const JsonReader point = points.at(i);
    if (point.size(2) != 2) point.fail("expected [bytes, ns]");
    const RatePoint read{point.at(0).integer(1, kMaxBytes), point.at(1).number(kMinNs, kMaxNs)};
    if (value.ok()) rates.add(op, num_ranks, link, read);
  }
}

std::vector<std::string> read_links(const JsonReader& value) {
  const size_t size = value.size(kMaxLinks);
  if (size == 0) value.fail("there must be a link");
  std::vector<std::string> links;
  for (size_t i = 0; i < size; ++i) links.push_back(value.at(i).text(kMaxNameBytes));
  return links;
}

void check_head(const JsonReader& root, std::string_view expected_fabric_hash) {
  const std::string format = root.child("format").text(kMaxNameBytes);
  if (format != kFormat) root.fail(fmt::format("format is '{}', not '{}'", format, kFormat));
  const uint64_t version = root.child("version").integer(0, UINT64_MAX);
  if (version != kVersion)
    root.fail(fmt::format("version is {}, this build reads {}", version, kVersion));
  const std::string hash = root.child("fabric_hash").text(kMaxNameBytes);
  if (hash != expected_fabric_hash)
    root.fail(fmt::format("is of fabric '{}', this one is '{}'", hash, expected_fabric_hash));
}

nlohmann::ordered_json entry_json(const TuningEntry& entry) {
  return {{"op", op_name(entry.op)},        {"num_ranks", entry.num_ranks},
          {"bytes", entry.bytes},           {"shares", entry.shares},
          {"cell_bytes", entry.cell_bytes}, {"measured_ns", entry.measured_ns},
          {"best_link", entry.best_link},   {"best_single_ns", entry.best_single_ns}};
}

nlohmann::ordered_json curve_json(const RateTable::Key& key, size_t link, const RateCurve& curve) {
  nlohmann::ordered_json points = nlohmann::ordered_json::array();
  for (const RatePoint& p : curve.points())
    points.push_back(nlohmann::ordered_json::array({p.bytes, p.ns}));
  return {{"op", op_name(key.first)},
          {"num_ranks", key.second},
          {"link", link},
          {"points", std::move(points)}};
}

}  // namespace

void TuningTable::put(TuningEntry entry) {
  const uint64_t sum = std::accumulate(entry.shares.begin(), entry.shares.end(), uint64_t{0});
  BRAID_CHECK(entry.shares.size() == links_.size() && sum == kWhole,
              "{} shares for {} links, sum {}", entry.shares.size(), links_.size(), sum);
  const Key key{entry.op, entry.num_ranks, size_class(entry.bytes)};
  entries_.insert_or_assign(key, std::move(entry));
}

const TuningEntry* TuningTable::find(Op op, int num_ranks, int size_class) const {
  const auto found = entries_.find({op, num_ranks, size_class});
  return found == entries_.end() ? nullptr : &found->second;
}

const TuningEntry* TuningTable::nearest(Op op, int num_ranks, int size_class) const {
  const TuningEntry* best = nullptr;
  int best_distance = 0;
  for (const auto& [key, entry] : entries_) {
    const auto& [entry_op, entry_ranks, entry_class] = key;
    if (entry_op != op || entry_ranks != num_ranks) continue;
    const int distance = std::abs(entry_class - size_class);
    // Classes come in rising order: <= prefers the larger of two at one distance.
    if (best != nullptr && distance > best_distance) continue;
    best = &entry;
    best_distance = distance;
  }
  return best;
}

std::string TuningTable::to_json() const {
  nlohmann::ordered_json json;
  json["format"] = kFormat;
  json["version"] = kVersion;
  json["fabric_hash"] = fabric_hash_;
  json["links"] = links_;
  if (cut_off_ns_ != 0) json["cut_off_ns"] = cut_off_ns_;
  json["entries"] = nlohmann::ordered_json::array();
  for (const auto& [key, entry] : entries_) json["entries"].push_back(entry_json(entry));
  json["rates"] = nlohmann::ordered_json::array();
  for (const auto& [key, curves] : rates_.curves())
    for (size_t i = 0; i < curves.size(); ++i)
      if (!curves[i].empty()) json["rates"].push_back(curve_json(key, i, curves[i]));
  return json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

Result<TuningTable> TuningTable::parse(std::string_view text,
                                       std::string_view expected_fabric_hash) {
  const JsonReader root = JsonReader::parse(text, "tuning table", kMaxTextBytes);
  check_head(root, expected_fabric_hash);
  std::vector<std::string> links = read_links(root.child("links"));
  if (!root.ok()) return root.status();
  const size_t num_links = links.size();
  TuningTable table(std::string(expected_fabric_hash), std::move(links));
  if (root.has("cut_off_ns"))
    table.cut_off_ns_ = root.child("cut_off_ns").signed_integer(0, INT64_MAX);
  const JsonReader entries = root.child("entries");
  const size_t num_entries = entries.size(kMaxEntries);
  for (size_t i = 0; i < num_entries && root.ok(); ++i) {
    TuningEntry entry = read_entry(entries.at(i), num_links);
    if (root.ok()) table.put(std::move(entry));
  }
  const JsonReader rates = root.child("rates");
  const size_t num_curves = rates.size(kMaxCurves);
  for (size_t i = 0; i < num_curves && root.ok(); ++i)
    read_curve(rates.at(i), num_links, table.rates_);
  if (!root.ok()) return root.status();
  return table;
}

}  // namespace braid::plan
