#include "coll/device/share_text.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "fabric/json_read.h"

namespace braid::coll::device {

namespace {

constexpr uint64_t kVersion = 2;
constexpr size_t kMostTextBytes = 64 << 10;
constexpr size_t kMostNameBytes = 256;
constexpr uint64_t kMostBytes = uint64_t{1} << 50;
constexpr uint64_t kMostNs = uint64_t{1} << 62;

uint64_t in_parts(double share) { return static_cast<uint64_t>(std::lround(share * plan::kWhole)); }

double read_share(const fabric::JsonReader& value) {
  return static_cast<double>(value.integer(0, plan::kWhole)) / plan::kWhole;
}

comm::TunedShare read_tuned_share(const fabric::JsonReader& value, plan::Op op) {
  const std::string name = value.child("op").text(kMostNameBytes);
  if (name != plan::op_name(op))
    value.fail(fmt::format("op is '{}', expected '{}'", name, plan::op_name(op)));
  comm::TunedShare share;
  share.short_bytes = value.child("short_bytes").integer(0, kMostBytes);
  share.long_bytes = value.child("long_bytes").integer(share.short_bytes, kMostBytes);
  share.short_share = read_share(value.child("short_parts"));
  share.long_share = read_share(value.child("long_parts"));
  return share;
}

}  // namespace

std::string shares_to_json(const std::string& key, const LinkShares& shares) {
  nlohmann::ordered_json json{{"format", kSharesFormat},
                              {"version", kVersion},
                              {"key", key},
                              {"ended_ns", shares.ended_ns}};
  for (const plan::Op op : plan::kAllOps) {
    const comm::TunedShare& share = shares.of_op[static_cast<size_t>(op)];
    json["shares"].push_back({{"op", plan::op_name(op)},
                              {"short_bytes", share.short_bytes},
                              {"long_bytes", share.long_bytes},
                              {"short_parts", in_parts(share.short_share)},
                              {"long_parts", in_parts(share.long_share)}});
  }
  return json.dump(1) + "\n";
}

Result<LinkShares> parse_shares(std::string_view text, const std::string& key) {
  const auto root = fabric::JsonReader::parse(text, "gpu tuning", kMostTextBytes);
  const std::string format = root.child("format").text(kMostNameBytes);
  if (format != kSharesFormat)
    root.fail(fmt::format("format is '{}', not '{}'", format, kSharesFormat));
  (void)root.child("version").integer(kVersion, kVersion);
  const std::string found = root.child("key").text(kMostNameBytes);
  if (!key.empty() && found != key)
    root.fail(fmt::format("is of key '{}', expected '{}'", found, key));
  const fabric::JsonReader list = root.child("shares");
  const size_t size = list.size(plan::kNumOps);
  if (size != plan::kNumOps)
    list.fail(fmt::format("{} operations, expected {}", size, plan::kNumOps));
  LinkShares shares;
  shares.ended_ns = static_cast<int64_t>(root.child("ended_ns").integer(0, kMostNs));
  for (size_t i = 0; i < size && root.ok(); ++i)
    shares.of_op[static_cast<size_t>(plan::kAllOps[i])] =
        read_tuned_share(list.at(i), plan::kAllOps[i]);
  if (!root.ok()) return root.status();
  return shares;
}

}  // namespace braid::coll::device
