// JsonReader: reads untrusted JSON into values, and remembers the first thing that was wrong and
// where.
//
// Every read names its bounds and always returns something in them, so that a reading function is a
// straight list of reads with one look at status() at its end. After a failure all reads return
// their lower bound; nothing throws.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace braid::fabric {

class JsonReader {
 public:
  /// Parses `text` (at most `max_bytes`); `name` begins every message: "tuning table:
  /// entries[3].shares: ...".
  static JsonReader parse(std::string_view text, std::string name, size_t max_bytes);

  /// The first failure anywhere below the same root.
  const Status& status() const { return document_->failure; }
  bool ok() const { return status().ok(); }
  /// Makes `why` the failure of this place, unless there is one already.
  void fail(std::string_view why) const;

  /// A member of an object; missing is a failure. has() asks first.
  JsonReader child(const char* key) const;
  bool has(const char* key) const;
  /// Elements of an array, 0 after a failure; more than `most` is a failure.
  size_t size(size_t most) const;
  JsonReader at(size_t i) const;

  uint64_t integer(uint64_t least, uint64_t most) const;
  int64_t signed_integer(int64_t least, int64_t most) const;
  double number(double least, double most) const;
  bool boolean() const;
  std::string text(size_t max_bytes) const;

 private:
  struct Document;
  JsonReader(std::shared_ptr<Document> document, const nlohmann::json* value, std::string path)
      : document_(std::move(document)), value_(value), path_(std::move(path)) {}

  std::shared_ptr<Document> document_;
  const nlohmann::json* value_;  // null after a failure
  std::string path_;

  struct Document {
    std::string name;
    std::shared_ptr<const nlohmann::json> root;
    Status failure;
  };
};

}  // namespace braid::fabric
