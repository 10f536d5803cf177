#include "base/file_name.h"

#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <cstring>

namespace braid {

namespace {

std::string host_of_this_process() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "host";
}

}  // namespace

std::string expand_file_name(std::string_view pattern, int rank) {
  std::string name;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char next = pattern[i] == '%' && i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    ++i;
    switch (next) {
      case 'r': name += std::to_string(rank); break;
      case 'h': name += host_of_this_process(); break;
      case 'p': name += std::to_string(::getpid()); break;
      case '%': name += '%'; break;
      default: name += pattern[--i];
    }
  }
  return name;
}

bool tells_processes_apart(std::string_view pattern) {
  return expand_file_name(pattern, 1) != expand_file_name(pattern, 2) ||
         pattern.find("%p") != std::string_view::npos;
}

int launched_rank(int otherwise) {
  for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMI_RANK", "PMIX_RANK",
                           "LWS_WORKER_INDEX", "PET_NODE_RANK"}) {
    // NOLINTNEXTLINE(concurrency-mt-unsafe): braid never changes the environment
    const char* text = std::getenv(name);
    int rank = 0;
    if (text == nullptr) continue;
    const char* end = text + std::strlen(text);
    const auto read = std::from_chars(text, end, rank);
    if (read.ec == std::errc() && read.ptr == end && rank >= 0) return rank;
  }
  return otherwise;
}

}  // namespace braid
