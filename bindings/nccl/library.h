// The real NCCL: where it is, and the way in.
//
// We carry its SONAME, so asking the loader for `libnccl.so.2` would give us ourselves: it is
// opened by absolute path only, and whatever turns out to be this library, or a copy of it, is
// passed over. Not with RTLD_DEEPBIND, which would give NCCL the C library's free() for memory of a
// preloaded malloc; so NCCL's calls of its own public names may come back to us, and hooks expect
// that.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace braid::nccl {

class Library {
 public:
  /// `named` is BRAID_NCCL_REAL: when not empty, that and nothing else. Else, in this order: the
  /// file that was moved aside (libnccl.so.2.real beside us), one that the process has loaded
  /// already, the wheel beside Python packages that are loaded or in the active environment, the
  /// loader's paths. unavailable when none opens; the message has all that was tried.
  static Result<Library> open(const std::string& named);

  /// Null when this release has no such name.
  void* find(const char* symbol) const;
  const std::string& path() const { return path_; }

 private:
  Library(void* handle, std::string path) : handle_(handle), path_(std::move(path)) {}
  void* handle_;  // never closed: NCCL's threads would lose their code
  std::string path_;
};

/// Absolute paths at which it may be, best first.
std::vector<std::string> likely_paths();
/// Those of them that /etc/ld.so.cache (its bytes are given) knows.
std::vector<std::string> paths_in_loader_cache(std::string_view cache);

}  // namespace braid::nccl
