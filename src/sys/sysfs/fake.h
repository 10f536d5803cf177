// A machine in memory: paths with texts, links, and files that fail.
#pragma once

#include <map>
#include <string>

#include "sys/sysfs/api.h"

namespace braid::sys {

/// Fill it, then share it.
class FakeSysfs : public Sysfs {
 public:
  FakeSysfs() = default;
  /// Path -> text. Directories exist by what is in them.
  explicit FakeSysfs(std::map<std::string, std::string> files) : files_(std::move(files)) {}

  void write(std::string path, std::string text) { files_[std::move(path)] = std::move(text); }
  /// `path` becomes a link to the absolute path `target`, which may be a directory.
  void link(std::string path, std::string target) { links_[std::move(path)] = std::move(target); }
  /// The file is listed, but reading it fails, as an interface's speed does while it is down.
  void fail_reading(std::string path) { unreadable_[std::move(path)] = true; }

  Result<std::string> read(std::string_view path) const override;
  std::vector<std::string> list(std::string_view path) const override;
  Result<std::string> resolve(std::string_view path) const override;

 private:
  std::string follow(std::string_view path) const;
  bool exists(const std::string& path) const;
  std::map<std::string, std::string> files_;
  std::map<std::string, std::string> links_;
  std::map<std::string, bool> unreadable_;
};

}  // namespace braid::sys
