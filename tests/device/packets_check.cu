// Checks the packet kernels on GPUs: every op, 2 to 8 ranks, many sizes, misaligned and in place,
// repeated and mixed calls, graph replay, the deadline and the host's word; then prints latencies.
// With fewer GPUs than ranks, several ranks are streams of one GPU.
// scripts/device_checks compiles and runs it.
#include <chrono>
#include <cstring>
#include <thread>

#include "coll/packets/packets.h"
#include "coll/reduce/elements.cuh"
#include "device/gpu.h"
#include "device/graphs.h"
#include "device/ranks.h"

namespace braid::test {
namespace {

using coll::PacketPath;
using Bytes = std::vector<uint8_t>;

constexpr uint64_t kMostBytes = 1 << 20;
constexpr uint64_t kSizes[] = {0, 1, 3, 16, 1000, 4096 + 4, 64 << 10, kMostBytes};
constexpr uint8_t kUntouched = 0xee;
constexpr int kMostRanks = 8;

int passed = 0;
int failed = 0;
void report(const std::string& name, bool is_right) {
  ++(is_right ? passed : failed);
  std::printf("%s %s\n", is_right ? "ok  " : "FAIL", name.c_str());
  std::fflush(stdout);
}

// How an element of each dtype is summed on the host: by the code that elements_test proves.
template <typename F>
Bytes sum_of(const std::vector<Bytes>& operands) {
  using R = coll::device::Reduction<F, coll::device::Op::kSum>;
  Bytes out(operands[0].size());
  for (size_t i = 0; i + R::kBytes <= out.size(); i += R::kBytes) {
    typename R::Acc acc{};
    for (size_t r = 0; r < operands.size(); ++r) {
      typename R::Bits bits = 0;
      std::memcpy(&bits, &operands[r][i], R::kBytes);
      acc = r == 0 ? R::load(bits) : R::apply(acc, R::load(bits));
    }
    const typename R::Bits bits = R::store(acc, static_cast<int>(operands.size()));
    std::memcpy(&out[i], &bits, R::kBytes);
  }
  return out;
}

struct Element {
  const char* name;
  uint64_t bytes;
  Bytes (*sum)(const std::vector<Bytes>&);
};
const Element kElements[] = {{"float32", 4, sum_of<coll::device::Fp32>},
                             {"bfloat16", 2, sum_of<coll::device::Bf16>},
                             {"uint8", 1, sum_of<coll::device::Whole<uint8_t>>}};

/// As plan::Op numbers them.
const char* const kOpNames[] = {"all_gather", "all_reduce", "reduce_scatter", "all_to_all",
                                "broadcast"};
static_assert(static_cast<int>(plan::Op::kAllGather) == 0 &&
              static_cast<int>(plan::Op::kAllReduce) == 1 &&
              static_cast<int>(plan::Op::kReduceScatter) == 2 &&
              static_cast<int>(plan::Op::kAllToAll) == 3 &&
              static_cast<int>(plan::Op::kBroadcast) == 4);
const char* const kPathNames[] = {"", " one shot", " two shots", ""};

bool is_reducing(plan::Op op) {
  return op == plan::Op::kAllReduce || op == plan::Op::kReduceScatter;
}

/// One kind of call, with the bytes that every rank sends and must receive.
struct Case {
  plan::Op op;
  PacketPath path;
  Element element;
  uint64_t bytes;
  uint64_t offset_bytes;
  bool is_in_place;
  int root;
  std::vector<Bytes> sent;
  std::vector<Bytes> want;

  bool sends_blocks() const { return op == plan::Op::kReduceScatter || op == plan::Op::kAllToAll; }
  std::string kernel() const {
    if (!is_reducing(op)) return std::string("braid_packets_") + kOpNames[static_cast<int>(op)];
    return std::string("braid_packets_reduce_") + element.name + "_sum";
  }
  std::string name(int num_ranks) const {
    std::string text = std::string(kOpNames[static_cast<int>(op)]) +
                       kPathNames[static_cast<int>(path)] + ", " + std::to_string(num_ranks) +
                       " ranks, " + std::to_string(bytes) + " bytes";
    if (is_reducing(op)) text += std::string(", ") + element.name;
    if (offset_bytes != 0) text += ", misaligned";
    if (is_in_place) text += ", in place";
    return text;
  }
};

Bytes block_of(const Bytes& all, uint64_t block, uint64_t bytes) {
  const auto begin = all.begin() + static_cast<int64_t>(block * bytes);
  return Bytes(begin, begin + static_cast<int64_t>(bytes));
}

/// Floats of alike sizes and both signs, whose sums round; other bytes are as random.
Bytes random_bytes(const Element& element, uint64_t bytes, int rank) {
  Bytes out(bytes + 8);
  for (uint64_t i = 0; i < bytes; i += 8) {
    const uint64_t bits = random_bits(static_cast<uint64_t>(rank), i);
    std::memcpy(&out[i], &bits, 8);
  }
  out.resize(bytes);
  if (element.bytes == 1) return out;
  for (uint64_t i = element.bytes - 1; i < bytes; i += element.bytes)
    out[i] = static_cast<uint8_t>((out[i] & 0x81) | 0x3e);
  return out;
}

Bytes wanted_by(const Case& c, int rank, int num_ranks) {
  const auto blocks = static_cast<uint64_t>(num_ranks);
  if (c.op == plan::Op::kBroadcast) return c.sent[static_cast<size_t>(c.root)];
  if (c.op == plan::Op::kAllReduce) return c.element.sum(c.sent);
  std::vector<Bytes> parts;
  for (uint64_t r = 0; r < blocks; ++r)
    parts.push_back(c.sends_blocks() ? block_of(c.sent[r], static_cast<uint64_t>(rank), c.bytes)
                                     : c.sent[r]);
  if (c.op == plan::Op::kReduceScatter) return c.element.sum(parts);
  Bytes all;
  for (const Bytes& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

void fill_in(Case& c, int num_ranks) {
  const uint64_t blocks = c.sends_blocks() ? static_cast<uint64_t>(num_ranks) : 1;
  for (int r = 0; r < num_ranks; ++r)
    c.sent.push_back(random_bytes(c.element, c.bytes * blocks, r));
  for (int r = 0; r < num_ranks; ++r) {
    if (c.op == plan::Op::kAllReduce && r > 0) {
      c.want.push_back(c.want[0]);
    } else {
      c.want.push_back(wanted_by(c, r, num_ranks));
    }
  }
}

/// A case on the ranks' GPUs.
class Run {
 public:
  Run(Ranks& ranks, const Kernels& kernels, const Case& c)
      : ranks_(ranks), c_(c), kernel_(kernels.find(c.kernel())) {
    shape_ = coll::packets_shape(c.op, c.bytes, ranks.size());
    for (int r = 0; r < ranks.size(); ++r) upload(r);
  }

  /// What a rank's stream does: the buffer as new, the call, the comparison.
  void enqueue(int r) {
    Rank& rank = ranks_[r];
    CHECK_CUDA(cudaSetDevice(rank.device));
    const uint64_t in_bytes = c_.sent[static_cast<size_t>(r)].size();
    const uint64_t out_bytes = c_.want[static_cast<size_t>(r)].size();
    CHECK_CUDA(cudaMemsetAsync(rank.recv, kUntouched, ranks_.buffer_bytes(), rank.stream));
    if (c_.is_in_place)
      CHECK_CUDA(cudaMemcpyAsync(const_cast<void*>(send_of(r)), rank.send + c_.offset_bytes,
                                 in_bytes, cudaMemcpyDefault, rank.stream));
    call(r);
    count_differences<<<16, 256, 0, rank.stream>>>(recv_of(r), rank.want + c_.offset_bytes,
                                                   out_bytes, rank.differences);
    // In place, a reduce-scatter's other blocks are its input.
    if (c_.is_in_place && c_.op == plan::Op::kReduceScatter) return;
    count_differences<<<1, 256, 0, rank.stream>>>(recv_of(r) + out_bytes,
                                                  rank.want + c_.offset_bytes + out_bytes,
                                                  kGuardBytes, rank.differences);
  }

  void call(int r) {
    coll::PacketArgs args = ranks_.args_of(r);
    args.send = send_of(r);
    args.recv = recv_of(r);
    args.bytes = c_.bytes;
    args.path = c_.path;
    args.root = c_.root;
    launch(kernel_, shape_.num_blocks, shape_.num_threads, args, ranks_[r].stream);
  }

 private:
  const void* send_of(int r) {
    Rank& rank = ranks_[r];
    const uint64_t block = c_.op == plan::Op::kAllGather ? static_cast<uint64_t>(r) * c_.bytes : 0;
    return c_.is_in_place ? rank.recv + c_.offset_bytes + block : rank.send + c_.offset_bytes;
  }
  uint8_t* recv_of(int r) {
    const bool is_block = c_.is_in_place && c_.op == plan::Op::kReduceScatter;
    return ranks_[r].recv + c_.offset_bytes + (is_block ? static_cast<uint64_t>(r) * c_.bytes : 0);
  }
  void upload(int r) {
    Rank& rank = ranks_[r];
    CHECK_CUDA(cudaSetDevice(rank.device));
    const Bytes& sent = c_.sent[static_cast<size_t>(r)];
    const Bytes& want = c_.want[static_cast<size_t>(r)];
    CHECK_CUDA(cudaMemset(rank.want, kUntouched, ranks_.buffer_bytes()));
    CHECK_CUDA(
        cudaMemcpy(rank.send + c_.offset_bytes, sent.data(), sent.size(), cudaMemcpyDefault));
    CHECK_CUDA(
        cudaMemcpy(rank.want + c_.offset_bytes, want.data(), want.size(), cudaMemcpyDefault));
    CHECK_CUDA(cudaDeviceSynchronize());
  }

  Ranks& ranks_;
  const Case& c_;
  cudaKernel_t kernel_;
  coll::PacketShape shape_;
};

void run_case(Ranks& ranks, const Kernels& kernels, Case c, int num_calls) {
  fill_in(c, ranks.size());
  Run run(ranks, kernels, c);
  for (int k = 0; k < num_calls; ++k)
    for (int r = 0; r < ranks.size(); ++r) run.enqueue(r);
  const std::string times = num_calls > 3 ? ", " + std::to_string(num_calls) + " times" : "";
  report(c.name(ranks.size()) + times, ranks.take_differences() == 0);
}

std::vector<PacketPath> paths_of(plan::Op op) {
  if (op == plan::Op::kAllReduce) return {PacketPath::kOneShot, PacketPath::kTwoShot};
  return {op == plan::Op::kReduceScatter ? PacketPath::kReduceScatter : PacketPath::kCopy};
}

constexpr plan::Op kOps[] = {plan::Op::kAllReduce, plan::Op::kAllGather, plan::Op::kReduceScatter,
                             plan::Op::kAllToAll, plan::Op::kBroadcast};

void check_sizes(Ranks& ranks, const Kernels& kernels) {
  for (const plan::Op op : kOps)
    for (const PacketPath path : paths_of(op))
      for (const Element& element : kElements) {
        if (!is_reducing(op) && element.bytes != 1) continue;
        for (const uint64_t size : kSizes)
          for (const uint64_t offset : {uint64_t{0}, element.bytes})
            for (const bool is_in_place : {false, true}) {
              if (is_in_place && op == plan::Op::kAllToAll) continue;
              if (size == kMostBytes && (is_in_place || element.bytes == 1) && offset != 0)
                continue;  // the host's sums take long
              const uint64_t bytes = size / element.bytes * element.bytes;
              if (bytes == 0 && size != 0) continue;
              run_case(ranks, kernels,
                       {op,
                        path,
                        element,
                        bytes,
                        offset,
                        is_in_place,
                        static_cast<int>(size) % ranks.size(),
                        {},
                        {}},
                       2);
            }
      }
}

/// Shapes differ from call to call, so that a half is cut differently each time.
void check_mixed(Ranks& ranks, const Kernels& kernels) {
  std::vector<Case> cases;
  for (const plan::Op op : kOps)
    for (const PacketPath path : paths_of(op))
      cases.push_back({op, path, kElements[1], 1000 + 600 * cases.size(), 0, false, 1, {}, {}});
  for (int round = 0; round < 20; ++round)
    for (Case& c : cases) {
      if (c.sent.empty()) fill_in(c, ranks.size());
      Run run(ranks, kernels, c);
      for (int r = 0; r < ranks.size(); ++r) run.enqueue(r);
      ranks.wait();
    }
  report("mixed calls, " + std::to_string(ranks.size()) + " ranks", ranks.take_differences() == 0);
}

/// A root is through with its broadcast before the others have begun theirs, time and again; roots
/// and sizes change, and now and then a call of another kind comes behind.
void check_root_ahead(Ranks& ranks, const Kernels& kernels) {
  constexpr uint64_t kBytes[] = {0, 8, 5000, 64 << 10};
  Case other{plan::Op::kAllReduce, PacketPath::kOneShot, kElements[0], 3000, 0, false, 0, {}, {}};
  fill_in(other, ranks.size());
  for (int turn = 0; turn < 40; ++turn) {
    const int root = turn / 3 % ranks.size();
    Case c{plan::Op::kBroadcast,
           PacketPath::kCopy,
           kElements[2],
           kBytes[turn % 4],
           0,
           false,
           root,
           {},
           {}};
    fill_in(c, ranks.size());
    Run run(ranks, kernels, c);
    run.enqueue(root);
    CHECK_CUDA(cudaStreamSynchronize(ranks[root].stream));
    for (int r = 0; r < ranks.size(); ++r)
      if (r != root) run.enqueue(r);
    ranks.wait();
    if (turn % 5 != 4) continue;
    Run behind(ranks, kernels, other);
    for (int r = 0; r < ranks.size(); ++r) behind.enqueue(r);
    ranks.wait();
  }
  report("a root ahead of the others, " + std::to_string(ranks.size()) + " ranks",
         ranks.take_differences() == 0);
}

void check_graph(Ranks& ranks, const Kernels& kernels, PacketPath path) {
  Case c{plan::Op::kAllReduce, path, kElements[1], 10'000, 0, false, 0, {}, {}};
  fill_in(c, ranks.size());
  Run run(ranks, kernels, c);
  Graphs graphs(ranks, [&](int r) {
    for (int k = 0; k < 3; ++k) run.enqueue(r);
  });
  for (int k = 0; k < 50; ++k) graphs.launch();
  report(c.name(ranks.size()) + ", graph of 3 calls launched 50 times",
         ranks.take_differences() == 0);
}

/// The last rank never calls: the others give up, by the clock or by the host's word, and their
/// next calls end at once.
void check_giving_up(Ranks& ranks, const Kernels& kernels, bool by_host) {
  Case c{plan::Op::kAllGather, PacketPath::kCopy, kElements[2], 4096, 0, false, 0, {}, {}};
  fill_in(c, ranks.size());
  Run run(ranks, kernels, c);
  const int64_t before_ns = ranks.timeout_ns;
  if (!by_host) ranks.timeout_ns = 200'000'000;
  const int last = ranks.size() - 1;
  for (int call = 0; call < 3; ++call)
    for (int r = 0; r < last; ++r) {
      CHECK_CUDA(cudaSetDevice(ranks[r].device));
      run.call(r);
    }
  if (by_host) std::this_thread::sleep_for(std::chrono::milliseconds(100));  // all wait by then
  if (by_host)
    for (int r = 0; r < last; ++r) *static_cast<volatile uint32_t*>(ranks[r].must_abort) = 1;
  ranks.wait();
  bool is_right = true;
  for (int r = 0; r < last; ++r) {
    const device::Fault& note = *ranks[r].fault;
    is_right = is_right && note.code == 2 && note.wait == nvlink::Wait::kPacket && note.rank == r &&
               note.peer == last && note.aborted == (by_host ? 1U : 0U);
  }
  report(std::string("a rank that never calls, ended by ") + (by_host ? "the host" : "the clock") +
             ", " + std::to_string(ranks.size()) + " ranks",
         is_right);
  ranks.timeout_ns = before_ns;
  ranks.clear();
}

/// Microseconds of a call, out of a graph of many; not a test.
void print_latency(Ranks& ranks, const Kernels& kernels, plan::Op op, uint64_t bytes) {
  constexpr int kCalls = 50;
  constexpr int kLaunches = 5;
  const PacketPath path = coll::packets_shape(op, bytes, ranks.size()).path;
  Case c{op, path, kElements[1], bytes, 0, false, 0, {}, {}};
  fill_in(c, ranks.size());
  Run run(ranks, kernels, c);
  Graphs graphs(ranks, [&](int r) {
    for (int k = 0; k < kCalls; ++k) run.call(r);
  });
  float best_ms = 1e9F;
  for (int k = 0; k < kLaunches; ++k) best_ms = std::min(best_ms, graphs.milliseconds());
  std::printf("%s: %.2f us\n", c.name(ranks.size()).c_str(), 1000.0 * best_ms / kCalls);
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

void check_ranks(const Kernels& kernels, int num_ranks) {
  Ranks ranks(num_ranks, kMostBytes);
  check_sizes(ranks, kernels);
  for (const plan::Op op : kOps)
    run_case(ranks, kernels, {op, paths_of(op).back(), kElements[0], 20'000, 0, false, 0, {}, {}},
             200);
  check_mixed(ranks, kernels);
  check_root_ahead(ranks, kernels);
  check_graph(ranks, kernels, PacketPath::kOneShot);
  check_graph(ranks, kernels, PacketPath::kTwoShot);
  check_giving_up(ranks, kernels, false);
  check_giving_up(ranks, kernels, true);
  run_case(ranks, kernels,
           {plan::Op::kAllReduce, PacketPath::kOneShot, kElements[0], 4096, 0, false, 0, {}, {}},
           2);
  for (const plan::Op op : kOps)
    for (const uint64_t bytes : {8 << 10, 128 << 10, 512 << 10, 1 << 20})
      print_latency(ranks, kernels, op, bytes);
}

}  // namespace
}  // namespace braid::test

int main(int argc, char** argv) {
  using namespace braid::test;
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);  // a queue for each rank's stream
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  enable_peers();
  const Kernels kernels(argc - 1, argv + 1);
  for (int num_ranks = 2; num_ranks <= kMostRanks; ++num_ranks) check_ranks(kernels, num_ranks);
  std::printf("packets: %d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
