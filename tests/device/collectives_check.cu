// Checks packets, lines and direct kernels on GPUs, 2, 4 and 8 ranks, every op, of no byte up to
// 16 MiB, misaligned and in place. With --times: whole messages of 4 KiB to 16 MiB, and what a call
// of them takes, a line of JSON each. With fewer GPUs than ranks, several ranks are streams of one.
//
// Blocks wait for those of other ranks, so a kernel has no more than all find a place, as in the
// library. Direct kernels go twice: by the threads' stores and, as between GPUs, by bulk copies.
// What must arrive is computed on the GPU, element by element in rank order.
// scripts/device_checks compiles and runs it.
#include <cstring>

#include "coll/direct/direct.h"
#include "coll/lines/lines.h"
#include "coll/packets/packets.h"
#include "coll/reduce/elements.cuh"
#include "device/gpu.h"
#include "device/graphs.h"
#include "device/ranks.h"

namespace braid::test {
namespace {

using plan::Op;

constexpr uint64_t kMostMessageBytes = 16 << 20;
constexpr uint64_t kMostPacketMessageBytes = 1 << 20;
constexpr uint64_t kMessages[] = {4 << 10, 64 << 10, 1 << 20, kMostMessageBytes};
constexpr uint64_t kOddBytes[] = {0, 4, 1008, (300 << 10) + 4, 400'000};
constexpr uint8_t kUntouched = 0xee;
constexpr int kMostRanks = 8;

enum class Way { kPackets, kLines, kDirect, kDirectInBulk };
constexpr Way kWays[] = {Way::kPackets, Way::kLines, Way::kDirect, Way::kDirectInBulk};
const char* const kWayNames[] = {"packets", "lines", "direct", "direct in bulk"};
const char* const kKernelNames[] = {"braid_packets_", "braid_lines_", "braid_direct_",
                                    "braid_direct_"};

/// As plan::Op numbers them.
const char* const kOpNames[] = {"all_gather", "all_reduce", "reduce_scatter", "all_to_all",
                                "broadcast"};
static_assert(static_cast<int>(Op::kAllGather) == 0 && static_cast<int>(Op::kAllReduce) == 1 &&
              static_cast<int>(Op::kReduceScatter) == 2 && static_cast<int>(Op::kAllToAll) == 3 &&
              static_cast<int>(Op::kBroadcast) == 4);

bool is_summed(Op op) { return op == Op::kAllReduce || op == Op::kReduceScatter; }

/// What every rank sends.
struct Sent {
  const uint8_t* of[kMostRanks];
  int count;
};

/// Floats of alike sizes and both signs, whose sums round; single bytes are as random.
__global__ void fill(uint8_t* to, uint64_t bytes, int rank, uint32_t element_bytes) {
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < bytes; i += stride) {
    auto byte = static_cast<uint8_t>(random_bits(static_cast<uint64_t>(rank), i / 8) >> i % 8 * 8);
    const bool is_top = element_bytes > 1 && i % element_bytes == element_bytes - 1;
    to[i] = is_top ? static_cast<uint8_t>((byte & 0x81) | 0x3e) : byte;
  }
}

/// want[i] is byte `begin + i` of all ranks' arrays, cut into `bytes` of each.
__global__ void want_copies(Sent sent, uint64_t begin, uint64_t bytes, uint8_t* want,
                            uint64_t want_bytes) {
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < want_bytes; i += stride)
    want[i] = sent.of[i / bytes][begin + i % bytes];
}

template <typename F>
__global__ void want_sums(Sent sent, uint64_t begin, uint8_t* want, uint64_t elements) {
  using R = coll::device::Reduction<F, coll::device::Op::kSum>;
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < elements; i += stride) {
    typename R::Acc acc{};
    for (int r = 0; r < sent.count; ++r) {
      typename R::Bits bits = 0;
      for (int b = 0; b < R::kBytes; ++b)
        bits |= static_cast<typename R::Bits>(sent.of[r][begin + i * R::kBytes + b]) << 8 * b;
      acc = r == 0 ? R::load(bits) : R::apply(acc, R::load(bits));
    }
    const typename R::Bits bits = R::store(acc, sent.count);
    for (int b = 0; b < R::kBytes; ++b)
      want[i * R::kBytes + b] = static_cast<uint8_t>(bits >> 8 * b);
  }
}

struct Element {
  const char* name;
  uint32_t bytes;
  void (*want)(Sent, uint64_t, uint8_t*, uint64_t);  // sums
};
const Element kFloats[] = {{"float32", 4, want_sums<coll::device::Fp32>},
                           {"bfloat16", 2, want_sums<coll::device::Bf16>}};
const Element kByte{"uint8", 1, nullptr};

/// A call of `bytes` as PacketArgs counts them.
struct Case {
  Way way;
  Op op;
  Element element;
  uint64_t bytes;
  uint64_t offset_bytes = 0;
  bool is_in_place = false;
  int root = 0;

  bool sends_blocks() const { return op == Op::kReduceScatter || op == Op::kAllToAll; }
  bool receives_blocks() const { return op == Op::kAllGather || op == Op::kAllToAll; }
  uint64_t sent_bytes(int ranks) const {
    return sends_blocks() ? bytes * static_cast<uint64_t>(ranks) : bytes;
  }
  uint64_t received_bytes(int ranks) const {
    return receives_blocks() ? bytes * static_cast<uint64_t>(ranks) : bytes;
  }
  bool is_packets() const { return way == Way::kPackets || way == Way::kLines; }
  bool in_bulk() const { return way == Way::kDirectInBulk; }
  std::string kernel() const {
    const std::string name = kKernelNames[static_cast<int>(way)];
    if (is_summed(op)) return name + "reduce_" + element.name + "_sum";
    return name + kOpNames[static_cast<int>(op)];
  }
  std::string name(int ranks) const {
    std::string text = std::string(kWayNames[static_cast<int>(way)]) + " " +
                       kOpNames[static_cast<int>(op)] + ", " + std::to_string(ranks) + " ranks, " +
                       std::to_string(bytes) + " bytes, " + element.name;
    if (offset_bytes != 0) text += ", misaligned";
    if (is_in_place) text += ", in place";
    return text;
  }
};

/// The larger buffer, as all ranks' blocks, is the message.
uint64_t bytes_of(Op op, uint64_t message_bytes, int ranks) {
  return plan::is_one_buffer(op) ? message_bytes : message_bytes / static_cast<uint64_t>(ranks);
}

uint64_t call_bytes(const Case& c, int ranks) {
  switch (c.way) {
    case Way::kPackets: return coll::packet_call_bytes(c.op, c.bytes, ranks);
    case Way::kLines: return coll::line_call_bytes(c.op, c.bytes, ranks);
    case Way::kDirect:
    case Way::kDirectInBulk: break;
  }
  return coll::direct_call_bytes(c.op, c.bytes, ranks);
}

/// A case on the ranks' GPUs, with what they send and must receive there.
class Run {
 public:
  Run(Ranks& ranks, const Kernels& kernels, const Case& c, uint32_t shared_blocks)
      : ranks_(ranks), c_(c), kernel_(kernels.find(c.kernel())), shared_blocks_(shared_blocks) {
    wide_kernel_ = kernel_;
    if (c.way == Way::kLines && !is_summed(c.op)) wide_kernel_ = kernels.find(c.kernel() + "_wide");
    for (int r = 0; c.in_bulk() && r < ranks.size(); ++r) {
      at(r);
      allow_shared_bytes(kernel_, coll::kBulkSharedBytes);
    }
    for (int r = 0; r < ranks.size(); ++r) fill_in(r);
    ranks.wait();
    for (int r = 0; r < ranks.size(); ++r) want(r);
    ranks.wait();
  }

  /// What a rank's stream does: the buffer as new, the call, the comparison.
  void enqueue(int r) {
    Rank& rank = at(r);
    CHECK_CUDA(cudaMemsetAsync(rank.recv, kUntouched, ranks_.buffer_bytes(), rank.stream));
    if (c_.is_in_place)
      CHECK_CUDA(cudaMemcpyAsync(const_cast<uint8_t*>(send_of(r)), rank.send + c_.offset_bytes,
                                 c_.sent_bytes(ranks_.size()), cudaMemcpyDefault, rank.stream));
    call(r);
    compare(r);
  }

  void call(int r) { c_.is_packets() ? call_packets(r) : call_direct(r); }

  void compare(int r) {
    Rank& rank = at(r);
    const uint64_t bytes = c_.received_bytes(ranks_.size());
    const uint8_t* const want = rank.want + c_.offset_bytes;
    count_differences<<<64, 256, 0, rank.stream>>>(recv_of(r), want, bytes, rank.differences);
    // In place, a reduce-scatter's other blocks are its input.
    if (c_.is_in_place && c_.op == Op::kReduceScatter) return;
    count_differences<<<1, 256, 0, rank.stream>>>(recv_of(r) + bytes, want + bytes, kGuardBytes,
                                                  rank.differences);
  }

  uint32_t num_blocks() const { return num_blocks_; }  // of the last call

 private:
  Rank& at(int r) {
    CHECK_CUDA(cudaSetDevice(ranks_[r].device));
    return ranks_[r];
  }
  const uint8_t* send_of(int r) {
    Rank& rank = ranks_[r];
    const uint64_t block = c_.op == Op::kAllGather ? static_cast<uint64_t>(r) * c_.bytes : 0;
    return (c_.is_in_place ? rank.recv + block : rank.send) + c_.offset_bytes;
  }
  uint8_t* recv_of(int r) {
    const bool is_block = c_.is_in_place && c_.op == Op::kReduceScatter;
    return ranks_[r].recv + c_.offset_bytes + (is_block ? static_cast<uint64_t>(r) * c_.bytes : 0);
  }

  void fill_in(int r) {
    Rank& rank = at(r);
    fill<<<256, 256, 0, rank.stream>>>(rank.send + c_.offset_bytes, c_.sent_bytes(ranks_.size()), r,
                                       c_.element.bytes);
    CHECK_CUDA(cudaMemsetAsync(rank.want, kUntouched, ranks_.buffer_bytes(), rank.stream));
    CHECK_CUDA(cudaMemsetAsync(rank.recv, kUntouched, ranks_.buffer_bytes(), rank.stream));
  }

  void want(int r) {
    Rank& rank = at(r);
    if (c_.bytes == 0) return;
    Sent sent{};
    for (; sent.count < ranks_.size(); ++sent.count)
      sent.of[sent.count] = ranks_[sent.count].send + c_.offset_bytes;
    uint64_t begin = c_.sends_blocks() ? static_cast<uint64_t>(r) * c_.bytes : 0;
    uint8_t* const want = rank.want + c_.offset_bytes;
    if (is_summed(c_.op)) {
      c_.element.want<<<256, 256, 0, rank.stream>>>(sent, begin, want, c_.bytes / c_.element.bytes);
    } else {
      if (c_.op == Op::kBroadcast) sent.of[0] = sent.of[c_.root];
      want_copies<<<256, 256, 0, rank.stream>>>(sent, begin, c_.bytes, want,
                                                c_.received_bytes(ranks_.size()));
    }
    CHECK_CUDA(cudaGetLastError());
  }

  void call_packets(int r) {
    Rank& rank = at(r);
    const bool is_lines = c_.way == Way::kLines;
    coll::PacketShape shape =
        is_lines ? coll::lines_shape(c_.op, c_.bytes, ranks_.size(), shared_blocks_)
                 : coll::packets_shape(c_.op, c_.bytes, ranks_.size());
    if (!is_lines) shape.num_blocks = std::min(shape.num_blocks, 2 * shared_blocks_);
    coll::PacketArgs args = ranks_.args_of(r);
    args.send = send_of(r);
    args.recv = recv_of(r);
    args.bytes = c_.bytes;
    args.path = shape.path;
    args.root = c_.root;
    num_blocks_ = shape.num_blocks;
    launch(coll::is_wide(ranks_.size()) ? wide_kernel_ : kernel_, shape.num_blocks,
           shape.num_threads, args, rank.stream);
  }

  void call_direct(int r) {
    Rank& rank = at(r);
    coll::DirectArgs args = ranks_.direct_args_of(r);
    args.send = send_of(r);
    args.recv = recv_of(r);
    args.bytes = args.stride_bytes = c_.bytes;
    args.root = c_.root;
    args.is_in_place = c_.op == Op::kAllToAll && c_.is_in_place ? 1 : 0;
    args.uses_bulk = c_.in_bulk() ? 1 : 0;
    args.shape = coll::with_fewer_blocks(
        coll::direct_shape(c_.op, c_.bytes, ranks_.size(), c_.in_bulk()), shared_blocks_);
    if (c_.op == Op::kBroadcast) args.shape = coll::for_root(args.shape, r == c_.root);
    const uint32_t shared_bytes = c_.in_bulk() ? coll::kBulkSharedBytes : 0;
    num_blocks_ = args.shape.num_blocks();
    launch(kernel_, num_blocks_, coll::kDirectThreads, args, rank.stream, shared_bytes);
  }

  Ranks& ranks_;
  const Case c_;
  cudaKernel_t kernel_;
  cudaKernel_t wide_kernel_;  // for many ranks, where it is another one
  uint32_t shared_blocks_;
  uint32_t num_blocks_ = 0;
};

/// All ranks of one number and one way; the areas' epochs go on from case to case.
class Checks {
 public:
  Checks(const Kernels& kernels, Way way, int num_ranks)
      : kernels_(kernels), way_(way), ranks_(num_ranks, block_bytes(num_ranks), area_bytes()) {
    ranks_.timeout_ns = 3'000'000'000;
    int num_sms = 0;
    CHECK_CUDA(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, 0));
    shared_blocks_ = static_cast<uint32_t>(std::max(num_sms / num_ranks, 1));
    if (way == Way::kLines)
      shared_blocks_ = std::min(shared_blocks_, coll::most_line_blocks(num_sms));
  }

  void check(const Case& c) {
    Run run(ranks_, kernels_, c, shared_blocks_);
    for (int k = 0; k < 3; ++k)
      for (int r = 0; r < ranks_.size(); ++r) run.enqueue(r);
    note(c, ranks_.take_differences());
  }

  void check_odd(Op op, const Element& element) {
    for (const uint64_t bytes : kOddBytes)
      for (const uint64_t offset : {uint64_t{0}, uint64_t{element.bytes}})
        for (const bool is_in_place : {false, true}) {
          const int root = static_cast<int>(bytes / 4) % ranks_.size();
          const Case c{way_, op, element, bytes, offset, is_in_place, root};
          if (op == Op::kAllToAll && is_in_place && c.is_packets()) continue;
          if (op == Op::kBroadcast && !is_in_place) continue;
          if (c.in_bulk() && !can_be_in_bulk(c)) continue;
          check(c);
        }
  }

  Case whole(Op op, const Element& element, uint64_t message_bytes) const {
    return {way_, op, element, bytes_of(op, message_bytes, ranks_.size()), 0, op == Op::kBroadcast};
  }

  /// Microseconds of a call, out of graphs of many that begin together.
  void time(const Case& c, uint64_t message_bytes) {
    const int calls = message_bytes <= 64 << 10 ? 100 : message_bytes <= 1 << 20 ? 50 : 8;
    Run run(ranks_, kernels_, c, shared_blocks_);
    for (int r = 0; r < ranks_.size(); ++r) run.enqueue(r);
    if (const unsigned differences = ranks_.take_differences(); differences != 0)
      return note(c, differences);
    Graphs graphs(ranks_, [&](int r) {
      for (int k = 0; k < calls; ++k) run.call(r);
    });
    std::printf(
        "{\"way\":\"%s\",\"op\":\"%s\",\"dtype\":\"%s\",\"ranks\":%d,\"message_bytes\":%lu,"
        "\"blocks\":%u,\"calls\":%d,\"us\":[",
        kWayNames[static_cast<int>(way_)], kOpNames[static_cast<int>(c.op)], c.element.name,
        ranks_.size(), static_cast<unsigned long>(message_bytes), run.num_blocks(), calls);
    for (int k = 0; k < kSamples; ++k)
      std::printf("%s%.3f", k == 0 ? "" : ",", 1000.0 * graphs.milliseconds() / calls);
    std::printf("]}\n");
    for (int r = 0; r < ranks_.size(); ++r) run.compare(r);
    note(c, ranks_.take_differences());
  }

  bool has_failed() const { return failed_ != 0; }
  void print() const {
    std::printf("%s, %d ranks: %d cases right, %d wrong\n", kWayNames[static_cast<int>(way_)],
                ranks_.size(), passed_, failed_);
    std::fflush(stdout);
  }

 private:
  static constexpr int kSamples = 5;

  static uint64_t block_bytes(int num_ranks) {
    return kMostMessageBytes / static_cast<uint64_t>(num_ranks);
  }
  uint64_t area_bytes() const {
    uint64_t most = 0;
    for (int op = 0; op < 5; ++op)
      for (const int ranks : {2, 4, 8}) {
        Case c{way_, static_cast<Op>(op), kByte, 0};
        for (const uint64_t bytes : kOddBytes) {
          c.bytes = bytes;
          if (way_ != Way::kPackets) most = std::max(most, call_bytes(c, ranks));
        }
        for (const uint64_t message : kMessages) {
          if (way_ == Way::kPackets && message > kMostPacketMessageBytes) continue;
          c.bytes = bytes_of(c.op, message, ranks);
          most = std::max(most, call_bytes(c, ranks));
        }
      }
    return (most + 255) / 256 * 256;
  }

  /// As the library asks it: whole vectors between whole vectors.
  static bool can_be_in_bulk(const Case& c) {
    return c.offset_bytes % 16 == 0 && (!c.sends_blocks() || c.bytes % 16 == 0) &&
           (c.op != Op::kAllGather || !c.is_in_place || c.bytes % 16 == 0);
  }

  void note(const Case& c, unsigned differences) {
    ++(differences == 0 ? passed_ : failed_);
    if (differences == 0) return;
    std::printf("FAIL %s: %u differences\n", c.name(ranks_.size()).c_str(), differences);
    std::fflush(stdout);
    ranks_.clear();
  }

  const Kernels& kernels_;
  const Way way_;
  Ranks ranks_;
  uint32_t shared_blocks_;
  int passed_ = 0;
  int failed_ = 0;
};

constexpr Op kOps[] = {Op::kAllReduce, Op::kReduceScatter, Op::kAllGather, Op::kAllToAll,
                       Op::kBroadcast};

/// Every op of every element that it knows.
template <typename Each>
void for_each_op(const Each& each) {
  for (const Op op : kOps) {
    if (!is_summed(op)) each(op, kByte);
    for (const Element& element : kFloats)
      if (is_summed(op)) each(op, element);
  }
}

bool run_all(const Kernels& kernels, Way way, int num_ranks, bool with_times) {
  Checks checks(kernels, way, num_ranks);
  for_each_op([&](Op op, const Element& element) {
    // packets_check has these of packets. After a few that gave up the rest would only take long.
    if (!with_times && way != Way::kPackets && !checks.has_failed()) checks.check_odd(op, element);
    for (const uint64_t message : kMessages) {
      if (way == Way::kPackets && message > kMostPacketMessageBytes) continue;
      const Case c = checks.whole(op, element, message);
      if (checks.has_failed()) continue;
      with_times ? checks.time(c, message) : checks.check(c);
    }
  });
  checks.print();
  return !checks.has_failed();
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
}

}  // namespace
}  // namespace braid::test

int main(int argc, char** argv) {
  using namespace braid::test;
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);  // a queue for each rank's stream
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  const bool with_times = argc > 1 && std::strcmp(argv[1], "--times") == 0;
  const int options = with_times ? 2 : 1;
  enable_peers();
  const Kernels kernels(argc - options, argv + options);
  bool is_right = true;
  for (const int num_ranks : {2, 4, 8})
    for (const Way way : kWays) is_right = run_all(kernels, way, num_ranks, with_times) && is_right;
  return is_right ? 0 : 1;
}
