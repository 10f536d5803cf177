#include "fabric/json_read.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/text.h"

namespace braid::fabric {

namespace {
// Messages quote what was read: cut to this and made fit for one line of a log.
constexpr size_t kMaxWhyChars = 240;

// Deeper than anything braid writes. Deeper values are dropped while parsing, so that a megabyte of
// '[' costs no memory.
constexpr int kMaxDepth = 16;

nlohmann::json parse_bounded(std::string_view text) {
  return nlohmann::json::parse(text, [](int depth, nlohmann::json::parse_event_t,
                                        const nlohmann::json&) { return depth <= kMaxDepth; });
}
}  // namespace

JsonReader JsonReader::parse(std::string_view text, std::string name, size_t max_bytes) {
  auto document = std::make_shared<Document>();
  document->name = std::move(name);
  const nlohmann::json* root = nullptr;
  if (text.size() > max_bytes) {
    document->failure = invalid_argument("{}: {} bytes of text, more than {}", document->name,
                                         text.size(), max_bytes);
  } else {
    try {
      document->root = std::make_shared<const nlohmann::json>(parse_bounded(text));
      root = document->root.get();
    } catch (const nlohmann::json::exception& e) {
      document->failure =
          invalid_argument("{}: not JSON: {}", document->name, printable(e.what(), kMaxWhyChars));
    }
  }
  return {std::move(document), root, ""};
}

void JsonReader::fail(std::string_view why) const {
  if (!ok()) return;
  const std::string where = path_.empty() ? "" : path_ + ": ";
  document_->failure =
      invalid_argument("{}: {}{}", document_->name, where, printable(why, kMaxWhyChars));
}

bool JsonReader::has(const char* key) const {
  return value_ != nullptr && value_->is_object() && value_->contains(key);
}

JsonReader JsonReader::child(const char* key) const {
  const std::string path = path_.empty() ? key : path_ + "." + key;
  if (!ok() || value_ == nullptr) return {document_, nullptr, path};
  if (!has(key)) {
    fail(fmt::format("'{}' is missing", key));
    return {document_, nullptr, path};
  }
  return {document_, &(*value_)[key], path};
}

size_t JsonReader::size(size_t most) const {
  if (!ok() || value_ == nullptr) return 0;
  if (!value_->is_array()) {
    fail("expected a list");
    return 0;
  }
  if (value_->size() <= most) return value_->size();
  fail(fmt::format("{} elements, at most {} are allowed", value_->size(), most));
  return 0;
}

JsonReader JsonReader::at(size_t i) const {
  const std::string path = fmt::format("{}[{}]", path_, i);
  if (!ok() || value_ == nullptr || !value_->is_array() || i >= value_->size()) {
    fail(fmt::format("element {} is missing", i));
    return {document_, nullptr, path};
  }
  return {document_, &(*value_)[i], path};
}

uint64_t JsonReader::integer(uint64_t least, uint64_t most) const {
  if (!ok() || value_ == nullptr) return least;
  if (!value_->is_number_unsigned()) {
    fail("expected a whole number of 0 or more");
    return least;
  }
  const auto value = value_->get<uint64_t>();
  if (value >= least && value <= most) return value;
  fail(fmt::format("{} is not in {} to {}", value, least, most));
  return least;
}

int64_t JsonReader::signed_integer(int64_t least, int64_t most) const {
  if (!ok() || value_ == nullptr) return least;
  // An unsigned value above INT64_MAX would wrap in get<int64_t>.
  const bool is_huge =
      value_->is_number_unsigned() && value_->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  if (!value_->is_number_integer() || is_huge) {
    fail("expected a whole number");
    return least;
  }
  const auto value = value_->get<int64_t>();
  if (value >= least && value <= most) return value;
  fail(fmt::format("{} is not in {} to {}", value, least, most));
  return least;
}

double JsonReader::number(double least, double most) const {
  if (!ok() || value_ == nullptr) return least;
  if (!value_->is_number()) {
    fail("expected a number");
    return least;
  }
  const auto value = value_->get<double>();
  if (std::isfinite(value) && value >= least && value <= most) return value;
  fail(fmt::format("{} is not in {} to {}", value, least, most));
  return least;
}

bool JsonReader::boolean() const {
  if (!ok() || value_ == nullptr) return false;
  if (!value_->is_boolean()) fail("expected true or false");
  return value_->is_boolean() && value_->get<bool>();
}

std::string JsonReader::text(size_t max_bytes) const {
  if (!ok() || value_ == nullptr) return {};
  if (!value_->is_string()) {
    fail("expected a text");
    return {};
  }
  const auto& text = value_->get_ref<const std::string&>();
  if (text.size() <= max_bytes) return text;
  fail(fmt::format("a text of {} bytes, at most {} are allowed", text.size(), max_bytes));
  return {};
}

}  // namespace braid::fabric
