#include "comm/observe/members.h"

#include <fmt/core.h>

#include <charconv>

#include "base/file_name.h"
#include "comm/observe/outputs.h"

namespace braid::comm {

namespace {

struct Introduction {
  int job_rank = -1, num_before = -1;
};

Introduction read(const std::string& told) {
  Introduction read;
  const char* const end = told.data() + told.size();
  const auto rank = std::from_chars(told.data(), end, read.job_rank);
  if (rank.ptr != end) (void)std::from_chars(rank.ptr + 1, end, read.num_before);
  return read;
}

}  // namespace

std::string introduction(int rank) {
  const int job_rank = launched_rank(rank);
  return fmt::format("{} {}", job_rank, next_comm_index(job_rank));
}

Members members_of(const std::vector<std::string>& told) {
  Members members;
  for (const std::string& text : told) members.job_ranks.push_back(read(text).job_rank);
  const Introduction first = told.empty() ? Introduction() : read(told.front());
  members.name = first.job_rank == 0 ? fmt::format("comm{}", first.num_before)
                                     : fmt::format("comm{}@{}", first.num_before, first.job_rank);
  return members;
}

}  // namespace braid::comm
