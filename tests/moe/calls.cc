// Random calls of dispatch and combine between processes: shapes, routings, modes, delays and orders
// drawn from a seed, every result beside the reference, every call made twice and equal bit for bit.
//
//   moe_calls WAY RANKS CALLS SEED     prints one JSON object; 1 when anything was wrong
//   ways: shm (one host), tcp (two hosts of RANKS / 2 ranks, or of one and the rest)
//
// A call is a dispatch or a combine of every rank. records/moe_calls.json is of this.
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <random>
#include <thread>

#include "base/units.h"
#include "moe/buffers.h"

namespace braid::moe::test {
namespace {

constexpr int kMaxTokens = 360;  // room for sixty tokens that name an expert six times
constexpr uint64_t kMostRowBytes = 2048;
constexpr int kHungS = 120;  // without a word of a rank that lives

struct Tally {  // of one rank, through a pipe
  uint64_t calls = 0, normal = 0, low_latency = 0, by_node = 0, by_rank = 0, gathered = 0,
           delays = 0;
  uint64_t wrong = 0, unequal = 0, errors = 0;
  int64_t longest_ns = 0;
};

class Rank {
 public:
  Rank(Buffer& buffer, int per_node, uint64_t seed)
      : buffer_(buffer),
        per_node_(per_node),
        seed_(seed),
        own_(seed * 977 + static_cast<uint64_t>(buffer.rank())) {}

  /// Until so many calls are made; `alive` is called now and then.
  Tally run(uint64_t calls, const std::function<void()>& alive) {
    for (uint64_t i = 0; tally_.calls < calls && is_well(); ++i) {
      std::mt19937_64 random(seed_ * 1'000'003 + i);  // of all ranks
      const uint64_t row_bytes = 16 * (1 + random() % (kMostRowBytes / 16));
      const int most = random() % 16 == 0 ? 60 : 10;
      const auto p =
          random_problem(random(), buffer_.size(), random() % 4 == 0 ? row_bytes : 64, most);
      if (random() % 2 == 0)
        normal(p, random());
      else
        low_latency(p, random());
      if (i % 64 == 0) alive();
    }
    return tally_;
  }

 private:
  bool is_well() const { return tally_.wrong + tally_.unequal + tally_.errors == 0; }
  void wait_a_little() {
    if (own_() % 12 != 0) return;
    ++tally_.delays;
    std::this_thread::sleep_for(std::chrono::microseconds(own_() % 400));
  }
  bool check(const Status& status) {
    if (status.ok()) return true;
    if (tally_.errors++ == 0)
      fmt::print(stderr, "rank {}: {}\n", buffer_.rank(), status.to_string());
    return false;
  }
  template <typename T>
  void compare(uint64_t& what, const T& found, const T& expected, const char* words) {
    if (found == expected) return;
    if (what++ == 0)
      fmt::print(stderr, "rank {}: {}, call {}\n", buffer_.rank(), words, tally_.calls);
  }
  template <typename Call>
  auto timed(Call&& call) {
    wait_a_little();
    const int64_t begin_ns = now_ns();
    auto result = call();
    tally_.longest_ns = std::max(tally_.longest_ns, now_ns() - begin_ns);
    ++tally_.calls;
    return result;
  }

  std::vector<Bytes> experts(const reference::Problem& p, uint64_t seed) const {
    std::vector<Bytes> y;
    for (int r = 0; r < p.num_ranks(); ++r)
      y.push_back(made_rows(seed, r, reference::by_source(p, r, 1).rows.size()));
    return y;
  }

  void normal(const reference::Problem& p, uint64_t draw) {
    const int rank = buffer_.rank();
    const auto expected = reference::by_source(p, rank, 1);
    const auto y = experts(p, draw);
    const bool by_node = draw % 3 == 0;
    const Bytes wanted =
        by_node ? reference::combine_by_node(p, rank, Dtype::kBfloat16, y, {}, per_node_)
                : reference::combine(p, rank, Dtype::kBfloat16, y, {});
    Bytes before;
    for (int repeat = 0; repeat < 2; ++repeat) {
      Normal call(p, rank);
      if (!check(timed([&] { return call.run(buffer_); }))) return;
      tally_.gathered += buffer_.has_gathered() ? 1 : 0;
      compare(tally_.wrong, call.x, expected.rows, "rows");
      compare(tally_.wrong, call.ids, expected.ids, "ids");
      compare(tally_.wrong, call.weights, expected.weights, "weights");
      compare(tally_.wrong, call.source_token, expected.source_token, "tokens");
      Bytes out;
      std::vector<float> weights;
      Combine combine = call.combine(y[static_cast<size_t>(rank)], out, weights);
      combine.sums_by_node = by_node;
      if (!check(timed([&] { return buffer_.combine(combine); }))) return;
      compare(tally_.wrong, out, wanted, by_node ? "sums by node" : "sums");
      if (repeat == 1) compare(tally_.unequal, out, before, "sums of the same call again");
      before = std::move(out);
      tally_.normal += 2;
      tally_.by_node += by_node ? 1 : 0;
    }
  }

  // Two at a time, whose receive halves come in either order.
  void low_latency(const reference::Problem& p, uint64_t draw) {
    const int rank = buffer_.rank();
    const bool by_rank = draw % 3 == 0;
    LowLatency first(p, rank, kMaxTokens, ScaleForm::kNone, by_rank);
    LowLatency second(p, rank, kMaxTokens, ScaleForm::kNone, by_rank);
    const auto a = timed([&] { return buffer_.send(first.dispatch); });
    if (!check(a.status())) return;
    const auto b = timed([&] { return buffer_.send(second.dispatch); });
    if (!check(b.status())) return;
    for (const bool is_first : {draw % 2 == 0, draw % 2 != 0}) {
      wait_a_little();
      LowLatency& call = is_first ? first : second;
      if (!check(buffer_.receive(is_first ? a.value() : b.value(), call.dispatch, call.rows)))
        return;
    }
    const auto rows = reference::by_expert(p, rank);
    Bytes expected;
    for (const reference::Row& row : rows) {
      const Bytes& x = p.ranks[static_cast<size_t>(row.source)].rows;
      const auto from = x.begin() + row.token * static_cast<int64_t>(p.row_bytes);
      expected.insert(expected.end(), from, from + static_cast<int64_t>(p.row_bytes));
    }
    compare(tally_.wrong, first.packed(), expected, "low-latency rows");
    compare(tally_.unequal, second.packed(), expected, "low-latency rows of the same call again");
    std::vector<Bytes> packed;
    for (int r = 0; r < p.num_ranks(); ++r)
      packed.push_back(made_rows(draw, r, reference::by_expert(p, r).size() * p.row_bytes));
    const Bytes wanted =
        (by_rank ? reference::combine_low_latency_by_rank : reference::combine_low_latency)(
            p, rank, Dtype::kBfloat16, packed, first.own.weights);
    for (LowLatency* call : {&first, &second}) {
      fill(*call, packed[static_cast<size_t>(rank)]);
      const uint64_t phase = (call == &first ? a : b).value().phase;
      const auto combine =
          by_rank ? call->combine_by_rank(phase) : call->combine(phase, call->own.weights);
      const auto sent = timed([&] { return buffer_.send(combine); });
      if (!check(sent.status())) return;
      wait_a_little();
      Bytes out(static_cast<uint64_t>(call->own.count) * p.row_bytes);
      if (!check(buffer_.receive(sent.value(), combine, out.data(), nullptr))) return;
      compare(call == &first ? tally_.wrong : tally_.unequal, out, wanted, "low-latency sums");
    }
    tally_.low_latency += 4;
    tally_.by_rank += by_rank ? 2 : 0;
  }
  /// What experts have made of the rows, in place of them.
  static void fill(LowLatency& call, const Bytes& packed) {
    uint64_t at = 0;
    for (size_t e = 0; e < call.l; ++e) {
      const uint64_t bytes = static_cast<uint64_t>(call.count[e]) * call.p.row_bytes;
      std::copy_n(packed.begin() + static_cast<int64_t>(at), bytes,
                  call.x.begin() + static_cast<int64_t>(e * call.per_expert * call.p.row_bytes));
      at += bytes;
    }
  }

  Buffer& buffer_;
  const int per_node_;
  const uint64_t seed_;
  std::mt19937_64 own_;
  Tally tally_;
};

/// What a rank's process does; false: it could not begin.
bool run_rank(const std::string& way, group::Identity job, int rank, uint64_t calls, uint64_t seed,
              int pipe_end) {
  const int n = job.size, per_node = n % 2 == 0 && n > 2 ? n / 2 : n;
  Config config =
      config_of({{"BRAID_LINKS", way == "shm" ? "shm" : "rdma:tcp"}, {"BRAID_TIMEOUT", "60s"}});
  if (way != "shm") {
    const int node = n % 2 == 0 ? rank / (n / 2) : (rank == 0 ? 0 : 1);
    if (!config.set("BRAID_HOST_ID", fmt::format("node{}", node)).ok()) return false;
  }
  auto comm = comm::Comm::create(braid::test::as_rank(std::move(job), rank), config);
  if (!comm.ok()) return false;
  auto buffer =
      Buffer::create(**comm, {low_latency_half_bytes(kMaxTokens, kMostRowBytes, n, 64), false});
  if (!buffer.ok()) return false;
  (*buffer)->set_may_gather(true);
  const auto say = [&](const Tally& tally) {
    return ::write(pipe_end, &tally, sizeof tally) == static_cast<ssize_t>(sizeof tally);
  };
  // By node where there are rails; where there are none all ranks are one node.
  const Tally tally =
      Rank(**buffer, way == "shm" ? n : per_node, seed).run(calls, [&] { say({}); });
  buffer->reset();
  return say(tally);
}

/// The tallies of a rank until its process ends; false: it hung.
bool listen(int pipe_end, Tally& last) {
  for (;;) {
    pollfd waiting{pipe_end, POLLIN, 0};
    if (::poll(&waiting, 1, kHungS * 1000) <= 0) return false;
    Tally tally;
    const ssize_t got = ::read(pipe_end, &tally, sizeof tally);
    if (got <= 0) return true;
    if (tally.calls != 0) last = tally;
  }
}

int run(const std::string& way, int n, uint64_t calls, uint64_t seed) {
  const group::Identity job = braid::test::draw_job(n);
  struct Child {
    pid_t pid;
    int pipe_end;
  };
  std::vector<Child> children;
  const int64_t begin_ns = now_ns();
  for (int rank = 0; rank < n; ++rank) {
    int ends[2];
    if (::pipe(ends) != 0) return 2;
    const pid_t pid = ::fork();  // before there are threads
    if (pid == 0) {
      ::close(ends[0]);
      const bool is_well = run_rank(way, job, rank, calls, seed, ends[1]);
      ::_exit(is_well ? 0 : 3);
    }
    ::close(ends[1]);
    children.push_back({pid, ends[0]});
  }
  Tally sum;
  uint64_t hung = 0, died = 0;
  for (const Child& child : children) {
    Tally tally;
    if (!listen(child.pipe_end, tally)) {
      ++hung;
      ::kill(child.pid, SIGKILL);
    }
    int status = 0;
    ::waitpid(child.pid, &status, 0);
    died += status != 0 ? 1 : 0;
    sum.calls = std::max(sum.calls, tally.calls);
    sum.normal = std::max(sum.normal, tally.normal);
    sum.low_latency = std::max(sum.low_latency, tally.low_latency);
    sum.by_node = std::max(sum.by_node, tally.by_node);
    sum.by_rank = std::max(sum.by_rank, tally.by_rank);
    sum.gathered = std::max(sum.gathered, tally.gathered);
    sum.delays += tally.delays;
    sum.wrong += tally.wrong;
    sum.unequal += tally.unequal;
    sum.errors += tally.errors;
    sum.longest_ns = std::max(sum.longest_ns, tally.longest_ns);
  }
  fmt::print(
      R"({{"way": "{}", "ranks": {}, "seed": {}, "calls": {}, "normal": {}, "low_latency": {}, )"
      R"("by_node": {}, "by_rank": {}, "gathered": {}, "delays": {}, "wrong": {}, "unequal": {}, "errors": {}, )"
      R"("hung": {}, "died": {}, "longest_ms": {:.1f}, "seconds": {:.1f}}})"
      "\n",
      way, n, seed, sum.calls, sum.normal, sum.low_latency, sum.by_node, sum.by_rank, sum.gathered,
      sum.delays, sum.wrong, sum.unequal, sum.errors, hung, died,
      static_cast<double>(sum.longest_ns) / 1e6, static_cast<double>(now_ns() - begin_ns) / 1e9);
  return sum.wrong + sum.unequal + sum.errors + hung + died == 0 && sum.calls >= calls ? 0 : 1;
}

}  // namespace
}  // namespace braid::moe::test

int main(int argc, char** argv) {
  const std::string way = argc > 1 ? argv[1] : "";
  const int ranks = argc > 2 ? std::atoi(argv[2]) : 0;
  if (argc != 5 || (way != "shm" && way != "tcp") || ranks < 2 || ranks > 8) {
    fmt::print(stderr, "moe_calls shm|tcp RANKS CALLS SEED\n");
    return 2;
  }
  return braid::moe::test::run(way, ranks, std::strtoull(argv[3], nullptr, 10),
                               std::strtoull(argv[4], nullptr, 10));
}
