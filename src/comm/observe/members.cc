#include "comm/observe/members.h"

#include <fmt/core.h>

#include <charconv>
#include <map>
#include <mutex>
#include <set>

#include "base/file_name.h"
#include "comm/observe/outputs.h"
#include "sys/host/api.h"

namespace braid::comm {

namespace {

struct Introduction {
  int job_rank = -1, num_before = -1;
  std::string mark;
};

Introduction read(const std::string& told) {
  Introduction read;
  const char* const end = told.data() + told.size();
  const auto rank = std::from_chars(told.data(), end, read.job_rank);
  if (rank.ptr == end) return read;
  const auto count = std::from_chars(rank.ptr + 1, end, read.num_before);
  if (count.ptr != end) read.mark.assign(count.ptr + 1, end);
  return read;
}

std::string own_mark() {
  std::string text;
  const auto mark = sys::process_mark();
  if (!mark.ok()) return text;
  for (const std::byte byte : mark.value())
    text += fmt::format("{:02x}", std::to_integer<int>(byte));
  return text;
}

/// By process: a fork is another one, and settles anew.
class SettledRanks {
 public:
  int of_this_process() {
    const std::lock_guard lock(mutex_);
    const auto found = ranks_.find(sys::process_id());
    return found == ranks_.end() ? -1 : found->second;
  }
  void set(int rank) {
    const std::lock_guard lock(mutex_);
    ranks_[sys::process_id()] = rank;
  }

 private:
  std::mutex mutex_;
  std::map<int, int> ranks_;
};

SettledRanks& settled_ranks() {
  static auto* const kThe = new SettledRanks;
  return *kThe;
}

}  // namespace

int rank_in_job() { return launched_rank(settled_ranks().of_this_process()); }

std::string introduction(int rank) {
  const int known = rank_in_job(), job_rank = known < 0 ? rank : known;
  return fmt::format("{} {} {}", job_rank, next_comm_index(job_rank), own_mark());
}

bool is_to_settle(const std::vector<std::string>& told, int known) {
  std::set<int> ranks;
  std::set<std::string> marks;
  for (const std::string& text : told) {
    ranks.insert(read(text).job_rank);
    marks.insert(read(text).mark);
  }
  if (told.size() < 2 || marks.size() < told.size()) return false;  // threads of one process
  return known < 0 || ranks.size() < told.size();
}

void settle(const std::vector<std::string>& told, int rank) {
  if (is_to_settle(told, rank_in_job())) settled_ranks().set(rank);
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
