// What every call on GPUs enqueues, held against a record of it (recorded_calls.txt): whoever changes
// the structure of the GPU half, and not what it does, leaves the record as it is; whoever changes
// what it does says so by changing the record, line by line.
//
// A line of the record is one call on all ranks: what it was, the kinds of work that rank 0 enqueued,
// and a hash of all that all ranks did (support/recording_cuda.h). A call that has become another is
// shown in full. To see what it was before, write both versions' calls in full and compare:
//
//   BRAID_RECORD_CALLS=FILE build/release/tests/test_coll --gtest_filter='RecordedCalls.*'
//
// writes FILE, with every line of every rank, and FILE.record, which is the new record.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "base/hash.h"
#include "base/units.h"
#include "coll/device/collectives.h"
#include "coll/device/direct.h"
#include "coll/device/lines.h"
#include "coll/device/packets.h"
#include "coll/device/relay.h"
#include "support/gpu_ranks.h"
#include "support/recording_cuda.h"

namespace braid::coll::device {
namespace {

using test::RecordingCuda;

constexpr uint64_t kMostBytes = 40_MiB;  // of a rank's own block

struct Variation {
  bool is_registered, is_in_place, is_captured;
  double host_share;
};

std::string words_of_variation(const Variation& v) {
  return fmt::format("{}{}{}{}", v.is_registered ? " registered" : "",
                     v.is_in_place ? " in-place" : "", v.is_captured ? " captured" : "",
                     v.host_share > 0 ? " shared" : "");
}

// Small messages know neither registrations nor shares.
std::vector<Variation> variations(uint64_t bytes) {
  std::vector<Variation> all = {{false, false, false, 0}, {false, true, false, 0}};
  if (bytes < 256_KiB) return all;
  for (const bool in_place : {false, true}) all.push_back({true, in_place, false, 0});
  if (bytes < 4_MiB) return all;
  for (const bool registered : {false, true}) all.push_back({registered, false, false, 0.07});
  all.push_back({true, true, true, 0.07});
  return all;
}

/// The calls of one size and variant on one rank.
class RecordedCaller {
 public:
  RecordedCaller(comm::Device& device, RecordingCuda& cuda, sys::DevicePtr send,
                 sys::DevicePtr recv, sys::Stream stream)
      : device_(device), cuda_(cuda), send_(send), recv_(recv), stream_(stream) {}

  void run(uint64_t bytes, const Variation& v, std::map<std::string, std::string>& calls) {
    const uint64_t all = bytes * static_cast<uint64_t>(device_.size());
    const uint64_t count = bytes / dtype_bytes(kDtype), all_count = all / dtype_bytes(kDtype);
    const sys::DevicePtr own = recv_ + static_cast<uint64_t>(device_.rank()) * bytes;
    const sys::DevicePtr from = v.is_in_place ? recv_ : send_;
    for (const plan::Op op : plan::kAllOps)
      device_.links().main().shares().set_tuned(op, v.host_share);
    const auto one = [&](const std::string& name, const std::function<Status()>& call) {
      cuda_.begin_call(stream_, v.is_captured);
      device_.order().expect_call();
      const Status status = call();
      EXPECT_TRUE(status.ok()) << name << ": " << status.to_string();
      std::string text;
      for (const std::string& line : cuda_.lines()) text += line + "\n";
      calls[fmt::format("{} ranks, {}, {}{}", device_.size(), name, bytes, words_of_variation(v))] =
          text;
    };
    one("all_gather", [&] {
      return device::all_gather(device_, v.is_in_place ? own : send_, recv_, count, kDtype,
                                stream_);
    });
    one("all_reduce", [&] {
      return device::all_reduce(device_, from, recv_, all_count, kDtype, RedOp::kSum, stream_);
    });
    one("reduce_scatter", [&] {
      return device::reduce_scatter(device_, from, v.is_in_place ? own : recv_, count, kDtype,
                                    RedOp::kSum, stream_);
    });
    one("all_to_all",
        [&] { return device::all_to_all(device_, from, recv_, count, kDtype, stream_); });
    one("broadcast", [&] {
      return device::broadcast(device_, from, recv_, all_count, kDtype, device_.size() - 1,
                               stream_);
    });
    if (v.is_registered || v.is_in_place) return;
    one("gather", [&] { return device::gather(device_, send_, recv_, count, kDtype, 0, stream_); });
    one("rooted_reduce", [&] {
      return device::rooted_reduce(device_, send_, recv_, count, kDtype, RedOp::kMax, 0, stream_);
    });
    one("uneven all_gather", [&] {
      std::vector<uint64_t> counts(static_cast<size_t>(device_.size()), count);
      counts[0] /= 3;
      return device::all_gather_v(device_, send_, recv_, counts, kDtype, stream_);
    });
  }

 private:
  static constexpr Dtype kDtype = Dtype::kBfloat16;
  comm::Device& device_;
  RecordingCuda& cuda_;
  const sys::DevicePtr send_, recv_;
  const sys::Stream stream_;
};

/// Names what peers' bytes may land in, as this rank addresses it.
void name_memory(RecordingCuda& cuda, comm::Device& device) {
  for (int r = 0; r < device.size(); ++r) {
    cuda.name(device.arena().scratch().at(r), device.arena().scratch_bytes(),
              fmt::format("scratch[{}]", r));
    for (const std::string_view name : {kPacketArea, kLineArea, kDirectArea}) {
      const comm::Area area = device.arena().area(name);
      cuda.name(area.at(r), area.bytes, fmt::format("{}[{}]", name, r));
    }
  }
  cuda.name(device.arena().spare(), device.arena().spare_bytes(), "spare");
}

void name_registered(RecordingCuda& cuda, comm::Device& device, sys::DevicePtr memory,
                     uint64_t bytes) {
  const Result<comm::SymmetricAddress> landing = device.registrations().find(memory, bytes);
  ASSERT_TRUE(landing.ok() && landing.value().window != nullptr);
  for (int r = 0; r < device.size(); ++r)
    if (r != device.rank()) cuda.name(landing.value().at(r), bytes, fmt::format("recv[{}]", r));
}

/// Text by call of all sizes and variants among `size` ranks; [rank].
std::vector<std::map<std::string, std::string>> calls_among(int size) {
  RecordingCuda cuda(size);
  std::vector<std::map<std::string, std::string>> calls(static_cast<size_t>(size));
  test::run_gpu_comms(size, {}, [&](comm::Comm& comm, std::barrier<>& all) {
    Config& config = comm.state().config;
    config = test::make_config({{"BRAID_LINKS", "shm"},
                                {"BRAID_LOG", "off"},
                                {"BRAID_GPU_SCRATCH", "48MiB"},
                                {"BRAID_GPU_SAMPLE", "0"}});
    const comm::ArenaRequest arena{0,
                                   {packet_area(config, size), line_area(config, size),
                                    relay_area(size), direct_area(config, size)}};
    auto made = comm::Device::create(comm.state(), cuda, {comm.rank(), arena});
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    comm.state().device = std::move(made).value();
    comm::Device& device = *comm.state().device;
    const auto scope = sys::CurrentDevice::use(cuda, comm.rank());
    name_memory(cuda, device);
    const uint64_t bytes = kMostBytes * static_cast<uint64_t>(size);
    const auto send = sys::own<sys::DeviceMemory>(cuda, cuda.alloc(bytes)).value();
    const auto recv = sys::own<sys::DeviceMemory>(cuda, cuda.alloc(bytes)).value();
    const auto stream =
        sys::own<sys::OwnedStream>(cuda, cuda.create_stream(sys::StreamPriority::kNormal)).value();
    cuda.name(send.get(), bytes, "send");
    cuda.name(recv.get(), bytes, "recv");
    RecordedCaller caller(device, cuda, send.get(), recv.get(), stream.get());
    // What is captured comes last: a comm with graphs waits where others need not.
    for (const bool registered : {false, true}) {
      if (registered) {
        ASSERT_TRUE(device.registrations().add(recv.get(), bytes).ok());
        name_registered(cuda, device, recv.get(), bytes);
      }
      for (const bool captured : {false, true})
        for (const uint64_t each : {1_KiB, 48_KiB, 256_KiB, 1_MiB, 5_MiB + 48, kMostBytes})
          for (const Variation& v : variations(each))
            if (v.is_registered == registered && v.is_captured == captured)
              caller.run(each, v, calls[static_cast<size_t>(comm.rank())]);
    }
    all.arrive_and_wait();
    cuda.begin_call(stream.get(), false);  // the captures have ended
    EXPECT_TRUE(device.registrations().remove(recv.get()).ok());
  });
  return calls;
}

/// "2 copy, 1 braid_barrier": what rank 0 enqueued.
std::string kinds(const std::string& text) {
  std::map<std::string, int> counts;
  std::istringstream lines(text);
  for (std::string line, stream, kind; std::getline(lines, line);) {
    std::istringstream(line) >> stream >> kind;
    ++counts[kind];
  }
  std::string told;
  for (const auto& [kind, count] : counts) told += fmt::format(" {} {},", count, kind);
  return told.substr(0, told.size() - (told.empty() ? 0 : 1));
}

struct RecordedCall {
  std::string record, in_full;
};

/// By call.
std::map<std::string, RecordedCall> recorded(int size) {
  const auto calls = calls_among(size);
  std::map<std::string, RecordedCall> all;
  for (const auto& [call, text] : calls[0]) {
    RecordedCall& each = all[call];
    for (size_t rank = 0; rank < calls.size(); ++rank)
      each.in_full += fmt::format("{}: rank {}\n{}", call, rank, calls[rank].at(call));
    each.record = fmt::format("{}:{} = {:016x}", call, kinds(text), fnv1a(each.in_full));
  }
  return all;
}

/// The record's lines, by call.
std::map<std::string, std::string> read_record() {
  std::map<std::string, std::string> lines;
  std::ifstream file(BRAID_RECORDED_CALLS);
  for (std::string line; std::getline(file, line);) lines[line.substr(0, line.find(':'))] = line;
  return lines;
}

void write(const char* path, const std::map<std::string, RecordedCall>& calls) {
  std::ofstream full(path, std::ios::app), record(std::string(path) + ".record", std::ios::app);
  for (const auto& [call, each] : calls) {
    full << each.in_full;
    record << each.record << "\n";
  }
}

TEST(RecordedCalls, EnqueueWhatTheyDid) {
  std::map<std::string, std::string> before = read_record();
  const char* const path = std::getenv("BRAID_RECORD_CALLS");
  int differing = 0;
  for (const int size : {2, 3, 4, 5, 8}) {
    const std::map<std::string, RecordedCall> calls = recorded(size);
    if (path != nullptr) write(path, calls);
    for (const auto& [call, each] : calls) {
      const std::string was = before[call];
      before.erase(call);
      if (was == each.record || ++differing > 3) continue;  // three in full are enough to read
      ADD_FAILURE() << "was: " << was << "\nis:  " << each.record << "\n" << each.in_full;
    }
  }
  EXPECT_EQ(differing, 0);
  EXPECT_TRUE(before.empty()) << "no longer called: " << before.begin()->second;
}

// Two runs of one version differ in nothing: what the record tells is the code's, not the day's.
TEST(RecordedCalls, AreTheSameTwice) {
  const std::map<std::string, RecordedCall> once = recorded(3), again = recorded(3);
  ASSERT_EQ(once.size(), again.size());
  for (const auto& [call, each] : once) EXPECT_EQ(each.in_full, again.at(call).in_full);
}

}  // namespace
}  // namespace braid::coll::device
