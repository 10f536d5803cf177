#include "comm/observe/trace.h"

#include <algorithm>
#include <ctime>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/clock.h"

namespace braid::comm {

namespace {

// Tracks of a comm: its calls, its host links, its GPU.
constexpr int kTracks = 100, kCallTrack = 1, kLinkTrack = 2, kGpuTrack = kTracks - 1;

double us_of(int64_t ns) { return static_cast<double>(ns) / 1e3; }

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

/// Bytes that cross a rank's link in the busier direction, by the buffer's bytes.
double bus_factor(const CallShape& shape, int size) {
  if (shape.op == plan::Op::kBroadcast || size < 2) return 1;
  const double part = (size - 1.0) / size;
  return shape.op == plan::Op::kAllReduce ? 2 * part : part;
}

const char* state_name(CallState state) {
  switch (state) {
    case CallState::kScheduled: return "scheduled";
    case CallState::kStarted: return "started";
    case CallState::kCompleted: return "completed";
    case CallState::kFailed: break;
  }
  return "failed";
}

/// Writes the events of one process.
class TraceWriter {
 public:
  explicit TraceWriter(int64_t now_ns) : now_ns_(now_ns) {}

  void add_process(int pid, const std::string& name) {
    event(R"({{"name":"process_name","ph":"M","pid":{},"tid":0,"args":{{"name":{}}}}})", pid,
          quoted(name));
    event(R"({{"name":"process_sort_index","ph":"M","pid":{},"tid":0,"args":{{"sort_index":{}}}}})",
          pid, pid);
  }

  void add_comm(const JournalPages& pages, int index) {
    const CommFacts& facts = pages.facts;
    pid_ = facts.job_rank;
    first_track_ = index * kTracks;
    name_track(kCallTrack, facts.name + " calls");
    bool has_gpu = false;
    for (const CallNote& note : pages.notes) has_gpu = has_gpu || note.on_gpu;
    for (size_t link = 0; link < facts.num_host_links(); ++link)
      name_track(kLinkTrack + static_cast<int>(link), facts.name + " " + facts.links[link]);
    if (has_gpu) name_track(kGpuTrack, facts.name + " gpu");
    for (const CallNote& note : pages.notes) add_call(note, facts);
  }

  std::string take() && { return std::move(text_); }

 private:
  template <typename... Args>
  void event(fmt::format_string<Args...> format, Args&&... args) {
    text_ += text_.empty() ? "\n" : ",\n";
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
  }
  int tid(int track) const { return first_track_ + track; }
  void name_track(int track, const std::string& name) {
    event(R"({{"name":"thread_name","ph":"M","pid":{},"tid":{},"args":{{"name":{}}}}})", pid_,
          tid(track), quoted(name));
    event(R"({{"name":"thread_sort_index","ph":"M","pid":{},"tid":{},"args":{{"sort_index":{}}}}})",
          pid_, tid(track), tid(track));
  }

  void add_call(const CallNote& note, const CommFacts& facts) {
    const int64_t end_ns = note.end_ns != 0 ? note.end_ns : std::max(now_ns_, note.begin_ns);
    const std::string args = args_of(note, facts);
    slice(name_of(note.shape), note.on_gpu ? "enqueue" : "host", kCallTrack, note.begin_ns, end_ns,
          args);
    if (note.gpu_begin_ns != 0) add_gpu(note, args);
    if (note.on_gpu) return;
    for (const LinkNote& link : note.links)
      if (link.finish_ns > 0) add_link(note, link);
  }

  void add_gpu(const CallNote& note, const std::string& args) {
    const int64_t end_ns =
        note.gpu_end_ns != 0 ? note.gpu_end_ns : std::max(now_ns_, note.gpu_begin_ns);
    slice(name_of(note.shape), "gpu", kGpuTrack, note.gpu_begin_ns, end_ns, args);
    const auto arrow = [&](const char* end, int track, int64_t at_ns) {
      event(R"({{"name":"enqueued","cat":"enqueue","ph":{},"id":"{}.{}.{}","pid":{},"tid":{},)"
            R"("ts":{:.3f}}})",
            end, pid_, first_track_, note.number, pid_, tid(track), us_of(at_ns));
    };
    arrow(R"("s")", kCallTrack, note.begin_ns);
    arrow(R"("f","bp":"e")", kGpuTrack, note.gpu_begin_ns);
  }

  void add_link(const CallNote& note, const LinkNote& link) {
    const auto moved = static_cast<double>(std::max(link.sent_bytes, link.received_bytes));
    slice(name_of(note.shape), "link", kLinkTrack + link.link, note.begin_ns,
          note.begin_ns + link.finish_ns,
          fmt::format(R"({{"call":{},"share":{:.4f},"sent_bytes":{},"received_bytes":{},)"
                      R"("gbps":{:.4g}}})",
                      note.number, static_cast<double>(link.parts) / plan::kWhole, link.sent_bytes,
                      link.received_bytes, moved / static_cast<double>(link.finish_ns)));
  }

  void slice(const char* name, const char* category, int track, int64_t begin_ns, int64_t end_ns,
             const std::string& args) {
    event(R"({{"name":"{}","cat":"{}","ph":"X","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},)"
          R"("args":{}}})",
          name, category, pid_, tid(track), us_of(begin_ns), us_of(end_ns - begin_ns), args);
  }

  static std::string args_of(const CallNote& note, const CommFacts& facts) {
    const CallShape& shape = note.shape;
    std::string args = fmt::format(
        R"({{"comm":{},"call":{},"state":"{}","path":"{}","dtype":"{}","count":{},"bytes":{})",
        quoted(facts.name), note.number, state_name(note.state), note.path, dtype_name(shape.dtype),
        shape.count, shape.bytes);
    if (note.code != Code::kOk) args += fmt::format(R"(,"error":"{}")", code_name(note.code));
    if (is_reduction(shape)) args += fmt::format(R"(,"redop":"{}")", redop_name(shape.redop));
    if (shape.op == plan::Op::kBroadcast && !shape.is_barrier)
      args += fmt::format(R"(,"root":{})", shape.root);
    if (note.on_gpu)
      args += fmt::format(R"(,"stream":"{:#x}","captured":{})", note.stream, note.is_captured);
    if (const int64_t took_ns = note.duration_ns(); took_ns > 0 && shape.bytes > 0) {
      const double algbw = static_cast<double>(shape.bytes) / static_cast<double>(took_ns);
      args += fmt::format(R"(,"algbw_gbps":{:.4g},"busbw_gbps":{:.4g})", algbw,
                          algbw * bus_factor(shape, facts.size));
    }
    return args + links_of(note, facts) + "}";
  }

  static std::string links_of(const CallNote& note, const CommFacts& facts) {
    std::string text;
    for (const LinkNote& link : note.links)
      text += fmt::format(
          R"({}{}:{{"share":{:.4f},"sent_bytes":{},"received_bytes":{}}})", text.empty() ? "" : ",",
          quoted(facts.links[static_cast<size_t>(link.link)]),
          static_cast<double>(link.parts) / plan::kWhole, link.sent_bytes, link.received_bytes);
    return text.empty() ? text : fmt::format(R"(,"links":{{{}}})", text);
  }

  const int64_t now_ns_;
  std::string text_;
  int pid_ = 0;
  int first_track_ = 0;
};

}  // namespace

JournalPages pages_of(const Journal& journal) {
  JournalPages pages{journal.facts(), journal.notes(), 0};
  pages.num_calls = std::max<uint64_t>(journal.num_calls(), pages.notes.size());
  return pages;
}

Clocks clocks_now() {
  timespec real{};
  clock_gettime(CLOCK_REALTIME, &real);
  return {now_ns(), static_cast<int64_t>(real.tv_sec) * 1'000'000'000 + real.tv_nsec};
}

std::string trace_json(const std::vector<JournalPages>& comms, const std::string& host,
                       const Clocks& clocks) {
  TraceWriter writer(clocks.monotonic_ns);
  uint64_t num_calls = 0, num_kept = 0;
  const int rank = comms.empty() ? 0 : comms.front().facts.job_rank;
  writer.add_process(rank, fmt::format("rank {}", rank));
  for (size_t i = 0; i < comms.size(); ++i) {
    writer.add_comm(comms[i], static_cast<int>(i));
    num_calls += comms[i].num_calls;
    num_kept += comms[i].notes.size();
  }
  return fmt::format(
      R"({{"displayTimeUnit":"ns","otherData":{{"braid":"{}","rank":{},"host":{},)"
      R"("monotonic_ns":{},"realtime_ns":{},"calls":{},"calls_left_out":{}}},"traceEvents":[{}]}})"
      "\n",
      BRAID_VERSION, rank, quoted(host), clocks.monotonic_ns, clocks.realtime_ns, num_calls,
      num_calls - num_kept, std::move(writer).take());
}

}  // namespace braid::comm
