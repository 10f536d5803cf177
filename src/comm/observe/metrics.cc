#include "comm/observe/metrics.h"

#include <iterator>

namespace braid::comm {

namespace {

std::string escaped(const std::string& value) {
  std::string text;
  for (const char c : value) {
    if (c == '\\' || c == '"') text += '\\';
    if (c == '\n')
      text += "\\n";
    else
      text += c;
  }
  return text;
}

const char* where(size_t on_gpu) { return on_gpu != 0 ? "gpu" : "host"; }

class MetricsWriter {
 public:
  explicit MetricsWriter(const std::vector<CommCounts>& comms) : comms_(comms) {}

  std::string run() && {
    family("braid_info", "gauge", "Always 1; what the labels say of a comm.");
    for (const CommCounts& comm : comms_)
      sample("braid_info", comm, 1,
             fmt::format(R"(,version="{}",size="{}",job_rank="{}")", BRAID_VERSION, comm.facts.size,
                         comm.facts.job_rank));
    add_kinds("braid_calls_total", "Calls that were begun.", &KindTally::calls);
    add_kinds("braid_call_bytes_total",
              "Bytes of these calls: the buffer, or all ranks' blocks together.",
              &KindTally::bytes);
    add_times();
    add_links();
    add_failures();
    return std::move(text_);
  }

 private:
  template <typename... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
    text_ += '\n';
  }
  void family(const char* name, const char* type, const char* help) {
    line("# HELP {} {}", name, help);
    line("# TYPE {} {}", name, type);
  }
  template <typename Value>
  void sample(const char* name, const CommCounts& comm, Value value, const std::string& labels) {
    line(R"({}{{comm="{}",rank="{}"{}}} {})", name, escaped(comm.facts.name), comm.facts.rank,
         labels, value);
  }

  /// Calls body(comm, labels, tally) for every kind of call that there was.
  template <typename Body>
  void for_kinds(Body body) {
    for (const CommCounts& comm : comms_)
      for (size_t on_gpu = 0; on_gpu < comm.tally.kinds.size(); ++on_gpu)
        for (size_t kind = 0; kind < Tally::kNumKinds; ++kind) {
          const KindTally& of = comm.tally.kinds[on_gpu][kind];
          if (of.calls > 0)
            body(comm,
                 fmt::format(R"(,op="{}",memory="{}")", Tally::kind_name(kind), where(on_gpu)), of);
        }
  }

  void add_kinds(const char* name, const char* help, uint64_t KindTally::* count) {
    family(name, "counter", help);
    for_kinds([&](const CommCounts& comm, const std::string& labels, const KindTally& of) {
      sample(name, comm, of.*count, labels);
    });
  }

  void add_times() {
    family("braid_call_seconds", "histogram",
           "Times of calls that were done: on the host in the caller's thread, on a GPU on its "
           "stream.");
    for_kinds([&](const CommCounts& comm, const std::string& labels, const KindTally& of) {
      uint64_t up_to = 0;
      for (size_t i = 0; i < kTimeBounds.size(); ++i) {
        up_to += of.within[i];
        sample("braid_call_seconds_bucket", comm, up_to,
               fmt::format(R"({},le="{}")", labels, static_cast<double>(kTimeBounds[i]) / 1e9));
      }
      sample("braid_call_seconds_bucket", comm, of.timed, labels + R"(,le="+Inf")");
      sample("braid_call_seconds_sum", comm,
             fmt::format("{:.9f}", static_cast<double>(of.time_ns) / 1e9), labels);
      sample("braid_call_seconds_count", comm, of.timed, labels);
    });
  }

  /// One number of every link of every comm, or of those that may be given up: the host's.
  template <typename Value>
  void add_link_family(const char* name, const char* type, const char* help, Value value_of,
                       bool of_host_alone = false) {
    family(name, type, help);
    for (const CommCounts& comm : comms_)
      for (size_t i = 0;
           i < (of_host_alone ? comm.facts.num_host_links() : comm.tally.links.size()); ++i)
        sample(name, comm, value_of(comm.tally.links[i]),
               fmt::format(R"(,link="{}")", escaped(comm.facts.links[i])));
  }

  void add_links() {
    add_link_family("braid_link_sent_bytes_total", "counter", "Bytes that this rank sent.",
                    [](const LinkTally& of) { return of.sent_bytes; });
    add_link_family("braid_link_received_bytes_total", "counter",
                    "Bytes that came to this rank and were used; not known of GPU links.",
                    [](const LinkTally& of) { return of.received_bytes; });
    add_link_family(
        "braid_link_share", "gauge",
        "The part of the last call's message that the link carried, 0 to 1.",
        [](const LinkTally& of) { return static_cast<double>(of.parts) / plan::kWhole; });
    add_link_family(
        "braid_link_up", "gauge", "1 when the link is used, 0 when it was given up.",
        [](const LinkTally& of) { return of.is_up ? 1 : 0; }, true);
    add_link_family(
        "braid_link_losses_total", "counter", "How often it was given up.",
        [](const LinkTally& of) { return of.losses; }, true);
  }

  void add_failures() {
    family("braid_call_failures_total", "counter", "Calls that failed, by the code of the error.");
    for (const CommCounts& comm : comms_)
      for (size_t code = 1; code < Tally::kNumCodes; ++code)
        sample("braid_call_failures_total", comm, comm.tally.failures[code],
               fmt::format(R"(,code="{}")", code_name(static_cast<Code>(code))));
  }

  const std::vector<CommCounts>& comms_;
  std::string text_;
};

}  // namespace

std::string metrics_text(const std::vector<CommCounts>& comms) {
  return MetricsWriter(comms).run();
}

}  // namespace braid::comm
