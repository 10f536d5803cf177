// Checks the kernels of dispatch and combine on GPUs against moe/reference.h, byte by byte: 1 to 8
// and 16 ranks, random shapes, types, routings and numbers of blocks, ranks that come late, two results at a
// time, graphs that are replayed, deadlines, the host's word, ranks that mean different calls and ids
// that are none; then prints each kernel's own time. With fewer GPUs than ranks, several ranks are
// streams of one GPU. scripts/device_checks compiles and runs it.
//
//   moe_check FATBINS...           all of it
//   moe_check --quick FATBINS...   without the times
//   moe_check --times FATBINS...   the times alone
//   moe_check --small N FATBINS... two shapes of each kind, of 1 to N ranks, without the times: under
//                                  compute-sanitizer, where a kernel takes long and waits are longer
#include <unistd.h>

#include <memory>
#include <random>

#include "device/moe_low_latency.h"
#include "device/moe_normal.h"
#include "device/moe_times.h"
#include "moe/routings.h"

namespace braid::test {
namespace {

constexpr int kMostRanks = 8;
constexpr Dtype kTypes[] = {Dtype::kBfloat16, Dtype::kFloat16, Dtype::kFloat32};

void CUDART_CB sleep_us(void* us) {
  usleep(static_cast<useconds_t>(reinterpret_cast<uintptr_t>(us)));
}

/// Some ranks come late: the others' kernels wait for them.
void delay(MoeRanks& ranks, int r, uint64_t us) {
  ranks.use(r);
  CHECK_CUDA(cudaLaunchHostFunc(ranks[r].stream, sleep_us, reinterpret_cast<void*>(us)));
}

/// An expert that tokens name twice may need more room than there are tokens.
int room_of(const moe::reference::Problem& p) {
  std::vector<int> rows(static_cast<size_t>(p.num_experts));
  int most = std::max(1, moe::test::most_tokens(p));
  for (const moe::reference::Tokens& each : p.ranks)
    for (const int64_t id : each.ids)
      if (id >= 0)
        most =
            std::max(most, (++rows[static_cast<size_t>(id)] + p.num_ranks() - 1) / p.num_ranks());
  return most;
}

LowLatencyCase random_low_latency(uint64_t seed, int num_ranks) {
  std::mt19937_64 random(seed * 7 + 1);
  LowLatencyCase c;
  c.form = static_cast<moe::ScaleForm>(random() % 4);
  c.dtype = kTypes[random() % 3];
  const bool is_cast = c.form != moe::ScaleForm::kNone;
  const uint64_t unit = c.form == moe::ScaleForm::kUe8m0 ? 512 : is_cast ? 128 : 8;
  const uint64_t hidden = unit * (1 + random() % (is_cast ? 5 : 130));
  c.p = moe::test::random_problem(seed, num_ranks, hidden * dtype_bytes(c.dtype), 30);
  for (int r = 0; r < num_ranks; ++r) {
    moe::reference::Tokens& own = c.p.ranks[static_cast<size_t>(r)];
    own.rows = random_rows(c.dtype, own.rows.size(), seed * 100 + static_cast<uint64_t>(r), true);
  }
  c.max_tokens = room_of(c.p);
  c.sums_by_rank = seed % 2 == 1;
  return c;
}

NormalCase random_normal(uint64_t seed, int num_ranks) {
  std::mt19937_64 random(seed * 11 + 3);
  NormalCase c;
  c.dtype = kTypes[random() % 3];
  c.p = moe::test::random_problem(seed + 1000, num_ranks, 16 * (1 + random() % 130), 40);
  for (int r = 0; r < num_ranks; ++r) {
    moe::reference::Tokens& own = c.p.ranks[static_cast<size_t>(r)];
    own.rows = random_rows(c.dtype, own.rows.size(), seed * 200 + static_cast<uint64_t>(r), true);
  }
  c.side_bytes = 4 * (random() % 20);
  c.has_weights = random() % 2 == 0;
  c.num_biases = static_cast<int>(random() % 3);
  c.spare_rows = static_cast<int>(random() % 2 * 5);
  if (random() % 2 == 0) return c;
  c.oddities = 1 + random() % 1000;
  c.side_bytes = 16 * (random() % 5);  // those go along with rows, but for where they lie
  return c;
}

int random_blocks(const MoeRanks& ranks, uint64_t seed) {
  return 1 + static_cast<int>(random_bits(seed, 9) % static_cast<uint64_t>(ranks.most_blocks()));
}

uint64_t half_bytes_of(const LowLatencyCase& c) {
  const moe::Slot slot(c.p.num_topk, c.row_bytes(), c.scale_bytes(), c.sums_by_rank);
  const auto m = static_cast<uint64_t>(c.max_tokens), n = static_cast<uint64_t>(c.p.num_ranks());
  const uint64_t back = c.sums_by_rank ? n * round_up(m * c.p.row_bytes, moe::kRowAlignment)
                                       : m * static_cast<uint64_t>(c.p.num_topk) * c.p.row_bytes;
  return std::max(n * round_up(m * slot.bytes, moe::kLineBytes), back);
}

void check_low_latency(MoeRanks& ranks, const Kernels& kernels, uint64_t seed) {
  const LowLatencyCase c = random_low_latency(seed, ranks.size());
  if (half_bytes_of(c) > ranks.layout().half_bytes) return;
  LowLatencyRun run(ranks, kernels, c, random_blocks(ranks, seed));
  bool right = true;
  for (int call = 0; call < 3; ++call) {
    run.poison();
    for (int r = 0; r < ranks.size(); ++r) {
      if (random_bits(seed, static_cast<uint64_t>(10 * call + r)) % 3 == 0) delay(ranks, r, 300);
      run.all(r);
    }
    right = run.is_right() && right;
    if (!right) break;
  }
  report("low latency, " + c.name() + ", seed " + std::to_string(seed), right);
  if (!right) ranks.clear();
}

/// So many copies to every rank that scales go by columns.
void check_many(MoeRanks& ranks, const Kernels& kernels, uint64_t seed) {
  constexpr int kTokens = 8000, kTopk = 6;
  const int n = ranks.size();
  LowLatencyCase c;
  c.form = moe::ScaleForm::kFloat;
  c.p = {8 * n, kTopk, 512, {}};
  for (int r = 0; r < n; ++r) {
    moe::reference::Tokens own;
    own.count = kTokens / n;
    own.rows = random_rows(c.dtype, static_cast<uint64_t>(own.count) * 512,
                           seed + static_cast<uint64_t>(r), false);
    for (int i = 0; i < own.count * kTopk; ++i) {
      own.ids.push_back(static_cast<int64_t>(
          random_bits(seed + static_cast<uint64_t>(100 + r), static_cast<uint64_t>(i)) %
          static_cast<uint64_t>(8 * n)));
      own.weights.push_back(static_cast<float>(1 + i % 16) / 16.0F);
    }
    c.p.ranks.push_back(std::move(own));
  }
  c.max_tokens = room_of(c.p);
  c.sums_by_rank = seed % 2 == 0;
  LowLatencyRun run(ranks, kernels, c, random_blocks(ranks, seed));
  bool right = half_bytes_of(c) <= ranks.layout().half_bytes;
  for (int call = 0; call < 3 && right; ++call) {
    run.poison();
    for (int r = 0; r < n; ++r) run.all(r);
    right = run.is_right();
  }
  report("many copies, " + c.name(), right);
  if (!right) ranks.clear();
}

/// Two dispatches are alive, then two combines.
void check_two_alive(MoeRanks& ranks, const Kernels& kernels, uint64_t seed) {
  const LowLatencyCase a = random_low_latency(seed, ranks.size());
  const LowLatencyCase b = random_low_latency(seed + 1, ranks.size());
  if (std::max(half_bytes_of(a), half_bytes_of(b)) > ranks.layout().half_bytes) return;
  LowLatencyRun first(ranks, kernels, a, random_blocks(ranks, seed));
  LowLatencyRun second(ranks, kernels, b, random_blocks(ranks, seed + 1));
  first.poison();
  second.poison();
  for (int r = 0; r < ranks.size(); ++r) {
    if (random_bits(seed, static_cast<uint64_t>(r)) % 2 == 0) delay(ranks, r, 200);
    first.send(r), second.send(r);
    second.fan_out(r), first.fan_out(r);
    second.give_back(r), first.give_back(r);
    first.sum(r), second.sum(r);
  }
  const bool right = first.is_right() && second.is_right();
  report("two results alive, " + std::to_string(ranks.size()) + " ranks", right);
  if (!right) ranks.clear();
}

void check_normal(MoeRanks& ranks, const Kernels& kernels, uint64_t seed) {
  const NormalCase c = random_normal(seed, ranks.size());
  NormalRun run(ranks, kernels, c, random_blocks(ranks, seed + 5));
  if (!run.fits()) return;
  bool right = true;
  for (int call = 0; call < 3 && right; ++call) {
    run.poison();
    for (int r = 0; r < ranks.size(); ++r) {
      if (random_bits(seed, static_cast<uint64_t>(10 * call + r)) % 3 == 0) delay(ranks, r, 300);
      run.all(r);
    }
    right = run.is_right();
  }
  report("normal, " + c.name() + ", " + std::to_string(run.num_rounds()) + " rounds, seed " +
             std::to_string(seed),
         right);
  if (!right) ranks.clear();
}

/// A trial that finds too little room does nothing, and all goes on behind it.
void check_trials_in_vain(MoeRanks& ranks, const Kernels& kernels, uint64_t seed) {
  const NormalCase c = random_normal(seed, ranks.size());
  NormalRun run(ranks, kernels, c, random_blocks(ranks, seed + 5));
  if (!run.fits()) return;
  run.poison();
  for (int r = 0; r < ranks.size(); ++r) {
    run.layout(r);
    run.begin(r);
    run.finish_in_too_little(r, true);
  }
  ranks.wait();
  bool right = !ranks.has_fault();
  for (int r = 0; r < ranks.size(); ++r) right = run.is_untouched(r) && right;
  for (int r = 0; r < ranks.size(); ++r) {
    run.finish(r);
    run.combine(r);
  }
  right = run.is_right() && right;
  report("trials in vain, " + c.name(), right);
  if (!right) ranks.clear();
}

template <typename Run>
void check_replays(MoeRanks& ranks, Run& run, const std::string& name) {
  std::vector<cudaGraphExec_t> graphs;
  for (int r = 0; r < ranks.size(); ++r) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    ranks.use(r);
    CHECK_CUDA(cudaStreamBeginCapture(ranks[r].stream, cudaStreamCaptureModeThreadLocal));
    run.all(r);
    CHECK_CUDA(cudaStreamEndCapture(ranks[r].stream, &graph));
    CHECK_CUDA(cudaGraphInstantiate(&exec, graph, 0));
    CHECK_CUDA(cudaGraphUpload(exec, ranks[r].stream));
    CHECK_CUDA(cudaGraphDestroy(graph));
    graphs.push_back(exec);
  }
  ranks.wait();
  bool right = true;
  for (int replay = 0; replay < 5 && right; ++replay) {
    run.poison();
    for (int times = 0; times <= replay; ++times)
      for (int r = 0; r < ranks.size(); ++r) {
        ranks.use(r);
        CHECK_CUDA(cudaGraphLaunch(graphs[static_cast<size_t>(r)], ranks[r].stream));
      }
    right = run.is_right();
  }
  for (const cudaGraphExec_t graph : graphs) CHECK_CUDA(cudaGraphExecDestroy(graph));
  report("graph replayed, " + name, right);
  if (!right) ranks.clear();
}

void check_graphs(MoeRanks& ranks, const Kernels& kernels, uint64_t seed) {
  const LowLatencyCase c = random_low_latency(seed, ranks.size());
  if (half_bytes_of(c) <= ranks.layout().half_bytes) {
    LowLatencyRun run(ranks, kernels, c, random_blocks(ranks, seed));
    check_replays(ranks, run, c.name());
  }
  const NormalCase n = random_normal(seed, ranks.size());
  NormalRun run(ranks, kernels, n, random_blocks(ranks, seed));
  if (run.fits()) check_replays(ranks, run, n.name());
}

// ---- what must end in a fault ----

/// `act` enqueues; then rank `rank` must have given up on `wait`.
template <typename Act>
void check_fault(MoeRanks& ranks, const std::string& name, int rank, device::Wait wait, Act act) {
  ranks.clear();
  const int64_t timeout_ns = ranks.timeout_ns;
  ranks.timeout_ns = 30'000'000;
  act();
  ranks.wait();
  ranks.timeout_ns = timeout_ns;
  const device::Fault& fault = *ranks[rank].fault;
  const bool right = fault.code == 2 && fault.wait == wait;
  if (!right)
    std::printf("     rank %d: expected wait %u, seen code %u, wait %u\n", rank,
                static_cast<unsigned>(wait), fault.code, static_cast<unsigned>(fault.wait));
  report(name, right);
  ranks.clear();
}

void check_faults(MoeRanks& ranks, const Kernels& kernels) {
  LowLatencyCase c;
  c.p = moe::test::random_problem(3, ranks.size(), 256, 40);
  c.max_tokens = room_of(c.p);
  c.sums_by_rank = true;
  LowLatencyRun run(ranks, kernels, c, ranks.most_blocks());
  run.poison();
  check_fault(ranks, "a rank that does not come", 0, device::Wait::kSlotFull, [&] {
    run.send(0);
    run.fan_out(0);
  });
  report("a rank that does not come, told of no row", run.names_no_row(0));
  check_fault(ranks, "a half that is not given back", 0, device::Wait::kSlotFree, [&] {
    for (int call = 0; call < 3; ++call)
      for (int r = 0; r < ranks.size(); ++r) run.send(r);
  });
  run.poison();
  check_fault(ranks, "the host's word", 0, device::Wait::kSlotFull, [&] {
    *ranks[0].must_abort = 1;
    run.send(0);
    run.fan_out(0);
  });
  report("the host's word, told of no row", run.names_no_row(0));
  LowLatencyCase other = c;
  ++other.max_tokens;
  LowLatencyRun different(ranks, kernels, other, ranks.most_blocks());
  for (const int seer : {0, 1}) {
    run.poison();
    different.poison();
    check_fault(ranks, "ranks that mean different calls", seer, device::Wait::kAgreement, [&] {
      for (int r = 0; r < ranks.size(); ++r) (r == 1 ? different : run).send(r);
      for (int r = 0; r < ranks.size(); ++r) (r == 1 ? different : run).fan_out(r);
    });
    report("ranks that mean different calls, told of no row",
           (seer == 1 ? different : run).names_no_row(seer));
  }
  LowLatencyCase bad = c;
  for (moe::reference::Tokens& each : bad.p.ranks)
    if (each.count == 0) {
      each.count = 1;
      each.rows.resize(bad.p.row_bytes);
      each.ids.assign(static_cast<size_t>(bad.p.num_topk), 0);
      each.weights.assign(static_cast<size_t>(bad.p.num_topk), 1.0F);
    }
  LowLatencyRun with_bad(ranks, kernels, bad, ranks.most_blocks());
  with_bad.spoil_id(0);
  check_fault(ranks, "an id that is none", 0, device::Wait::kArgument, [&] {
    for (int r = 0; r < ranks.size(); ++r) with_bad.send(r);
  });
  run.poison();
  for (int r = 0; r < ranks.size(); ++r) run.all(r);
  report("after faults, " + c.name(), run.is_right());
}

/// A rank whose combine is told that more of its own tokens came to it than did.
void check_own_rows_that_are_not(MoeRanks& ranks, const Kernels& kernels) {
  for (uint64_t seed = 1; seed < 500; ++seed) {
    NormalCase n = random_normal(seed, ranks.size());
    n.has_weights = true;
    NormalRun run(ranks, kernels, n, ranks.most_blocks());
    if (!run.fits() || !run.goes_elsewhere(0)) continue;
    run.poison();
    for (int r = 0; r < ranks.size(); ++r) run.all(r);
    bool right = run.is_right();
    check_fault(ranks, "own rows that are not", 0, device::Wait::kAgreement, [&] {
      run.spoil_is_in(0);
      for (int r = 0; r < ranks.size(); ++r) run.combine(r);
    });
    run.poison();
    for (int r = 0; r < ranks.size(); ++r) run.all(r);
    right = run.is_right() && right;
    report("own rows that are not, before and after", right);
    return;
  }
  report("a case of tokens that go elsewhere", false);
}

/// Ranks whose halves are so small that a dispatch takes rounds.
void check_normal_faults(MoeRanks& ranks, const Kernels& kernels) {
  for (uint64_t seed = 1; seed < 500; ++seed) {
    const NormalCase n = random_normal(seed, ranks.size());
    NormalRun run(ranks, kernels, n, ranks.most_blocks());
    // Of two: a third one would wait for acks of the first, which do not come either.
    if (!run.fits() || run.num_rounds() != 2 || run.all_rows_but_one(0) < 1) continue;
    const auto begin_all = [&] {
      run.poison();
      for (int r = 0; r < ranks.size(); ++r) run.layout(r);
      for (int r = 0; r < ranks.size(); ++r) run.begin(r);
    };
    check_fault(ranks, "a round that does not come", 0, device::Wait::kSlotFull, [&] {
      begin_all();
      run.finish(0);
    });
    report("a round that does not come, told of nobody", run.names_nobody(0, run.room_rows(0)));
    check_fault(ranks, "room for too few rows", 0, device::Wait::kArgument, [&] {
      begin_all();
      run.finish_in_too_little(0);
    });
    report("room for too few rows, told of nobody", run.names_nobody(0, run.all_rows_but_one(0)));
    run.poison();
    for (int r = 0; r < ranks.size(); ++r) run.all(r);
    report("after faults, " + n.name(), run.is_right());
    return;
  }
  report("a case of two rounds", false);
}

void check_small(const Kernels& kernels, int num_ranks) {
  MoeRanks ranks(num_ranks, uint64_t{24} << 20);
  MoeRanks rounds(num_ranks, static_cast<uint64_t>(num_ranks) * (16 << 10));
  for (MoeRanks* each : {&ranks, &rounds}) each->timeout_ns = 30'000'000'000;
  for (uint64_t seed = 1; seed < 3; ++seed) {
    check_low_latency(ranks, kernels, 100 * static_cast<uint64_t>(num_ranks) + seed);
    check_normal(ranks, kernels, 100 * static_cast<uint64_t>(num_ranks) + seed);
    check_normal(rounds, kernels, 5000 + 100 * static_cast<uint64_t>(num_ranks) + seed);
  }
  check_two_alive(ranks, kernels, 31 + static_cast<uint64_t>(num_ranks));
  std::printf("%d ranks: %d passed, %d failed so far\n", num_ranks, passed, failed);
  std::fflush(stdout);
}

void check_ranks(const Kernels& kernels, int num_ranks, int num_seeds) {
  {
    MoeRanks ranks(num_ranks, uint64_t{24} << 20);
    for (int i = 0; i < num_seeds; ++i) {
      const auto seed = static_cast<uint64_t>(100 * num_ranks + i);
      check_low_latency(ranks, kernels, seed);
      check_normal(ranks, kernels, seed);
    }
    for (uint64_t seed = 1; seed < 3; ++seed)
      check_many(ranks, kernels, 71 * seed + static_cast<uint64_t>(num_ranks));
    for (uint64_t seed = 1; seed < 4; ++seed)
      check_two_alive(ranks, kernels, 31 * seed + static_cast<uint64_t>(num_ranks));
    for (uint64_t seed = 1; seed < 4; ++seed)
      check_graphs(ranks, kernels, 57 * seed + static_cast<uint64_t>(num_ranks));
    for (uint64_t seed = 1; seed < 4; ++seed)
      check_trials_in_vain(ranks, kernels, 83 * seed + static_cast<uint64_t>(num_ranks));
    if (num_ranks == 2 || num_ranks == 5) {
      check_faults(ranks, kernels);
      check_own_rows_that_are_not(ranks, kernels);
    }
  }
  // Halves so small that a call takes many rounds.
  MoeRanks small(num_ranks, static_cast<uint64_t>(num_ranks) * (16 << 10));
  for (int i = 0; i < num_seeds; ++i)
    check_normal(small, kernels, static_cast<uint64_t>(5000 + 100 * num_ranks + i));
  for (uint64_t seed = 1; seed < 4; ++seed)
    check_trials_in_vain(small, kernels, 5083 * seed + static_cast<uint64_t>(num_ranks));
  if (num_ranks == 2 || num_ranks == 5) check_normal_faults(small, kernels);
}

void enable_peers() {
  int devices = 0;
  CHECK_CUDA(cudaGetDeviceCount(&devices));
  for (int a = 0; a < devices; ++a)
    for (int b = 0; b < devices; ++b) {
      if (a == b) continue;
      CHECK_CUDA(cudaSetDevice(a));
      CHECK_CUDA(cudaDeviceEnablePeerAccess(b, 0));
    }
  std::printf("%d GPUs\n", devices);
}

}  // namespace
}  // namespace braid::test

int main(int argc, char** argv) {
  using namespace braid::test;
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);  // a queue for each rank's stream
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  const bool is_quick = argc > 1 && std::string(argv[1]) == "--quick";
  const bool is_small = argc > 2 && std::string(argv[1]) == "--small";
  const bool is_timed = argc > 1 && std::string(argv[1]) == "--times";
  const int first = is_small ? 3 : is_quick || is_timed ? 2 : 1;
  enable_peers();
  const Kernels kernels(argc - first, argv + first);
  for (int num_ranks = 1; is_small && num_ranks <= std::atoi(argv[2]); ++num_ranks)
    check_small(kernels, num_ranks);
  for (int num_ranks = 1; !is_small && !is_timed && num_ranks <= kMostRanks; ++num_ranks)
    check_ranks(kernels, num_ranks, is_quick ? 6 : 12);
  if (!is_small && !is_timed) check_ranks(kernels, braid::moe::gpu::kMostRanks, is_quick ? 3 : 6);
  std::printf("moe: %d passed, %d failed\n", passed, failed);
  std::fflush(stdout);
  if (!is_quick && !is_small) print_times(kernels);
  return failed == 0 ? 0 : 1;
}
