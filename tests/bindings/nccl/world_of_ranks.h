// The world itself: see nodes_world.h.
#pragma once

#include <barrier>
#include <functional>
#include <optional>
#include <vector>

#include "bindings/nccl/nodes_world.h"

namespace braid::nccl::programs {

/// What one rank, the last, is or has unlike the others: its world's communicators are NCCL's.
enum class Odd { kNothing, kSettings, kWithoutBraid, kUnmarkedIds };

struct WorldTerms {
  std::vector<int> node_of_rank = {0, 0, 1, 1};
  uint64_t seed = 0;
  Odd odd = Odd::kNothing;
  int64_t most_idle_ns = 30_s;  // the watchdog's patience with calls that do not end
  int64_t watch_every_ns = 2_ms;
  /// What a rank's thread takes to ask for errors, once the library has failed.
  int64_t asking_ns = 0;
};

struct Tally {
  uint64_t num_calls = 0, num_groups = 0, num_graphs = 0, num_children = 0;  // of one rank
  uint64_t taken = 0, handed_on = 0;                                         // of one rank
  uint64_t wrong = 0;      // results, of all ranks
  uint64_t disagreed = 0;  // calls that ranks sent different ways
  int ranks_with_error = 0, ranks_hung = 0;
  bool has_failed = false;  // the library, at a call
  int64_t first_to_last_error_ns = 0;
  std::string first_error;
  std::string first_wrong;  // one rank's, and when each rank had its error
};

class World {
 public:
  explicit World(WorldTerms terms) : terms_(std::move(terms)) {
    const int num_nodes =
        1 + *std::max_element(terms_.node_of_rank.begin(), terms_.node_of_rank.end());
    std::vector<int> num_on(static_cast<size_t>(num_nodes));
    std::vector<NcclOfThreads::Gpu> gpus;
    for (int node = 0; node < num_nodes; ++node)
      machines_.push_back(machine_of(static_cast<int>(
          std::count(terms_.node_of_rank.begin(), terms_.node_of_rank.end(), node))));
    for (const int node : terms_.node_of_rank)
      gpus.push_back(
          {machines_[static_cast<size_t>(node)].get(), num_on[static_cast<size_t>(node)]++});
    library_ = std::make_unique<NcclOfThreads>(gpus);
    for (int rank = 0; rank < size(); ++rank)
      ranks_.push_back(make_rank(rank, gpus[static_cast<size_t>(rank)]));
  }

  NcclOfThreads& library() { return *library_; }
  int size() const { return static_cast<int>(terms_.node_of_rank.size()); }

  /// All ranks run all programs, or come to an error.
  Tally run(const std::vector<Program>& programs, const std::vector<Family>& families) {
    the_library = library_.get();
    families_ = &families;
    num_masks_ = 0;
    for (const Program& program : programs)
      for (const Step& step : program)
        for (const PlannedCall& call : step.calls)
          num_masks_ = std::max(num_masks_, call.number + 1);
    masks_ = std::make_unique<std::atomic<unsigned>[]>(num_masks_);
    for (uint64_t i = 0; i < num_masks_; ++i) masks_[i] = 3;
    std::vector<std::thread> threads;
    for (auto& rank : ranks_) {
      threads.emplace_back([&, r = rank.get()] { live(*r, programs); });
      threads.emplace_back([&, r = rank.get()] { watch_over(*r); });
    }
    watch();
    for (std::thread& thread : threads) thread.join();
    Tally all = tally();
    end();
    return all;
  }

 private:
  struct Rank {
    int number = 0, device = 0;
    RankPlace place;
    std::unique_ptr<Shim> shim;
    std::array<sys::Stream, 2> streams;
    std::mutex mutex;             // of the next
    std::vector<NcclComm> comms;  // by family; null: none
    std::mutex asking;  // held by who asks for errors beside the watchdog, until it has heard
    std::atomic<uint64_t> progress{0};
    std::atomic<bool> has_error{false}, has_ended{false}, is_aborted{false};
    int64_t error_at_ns = 0;
    std::string error;
    uint64_t wrong = 0;
    int64_t asked_at_ns = 0;  // for errors, without one, before the first wrong result
    std::string first_wrong;
    std::vector<std::pair<uint64_t, uint64_t>> routes;  // taken, handed on; of steps of all ranks
    Tally tally;
  };

  static std::unique_ptr<test::GraphCuda> machine_of(int num_gpus) {
    auto machine = std::make_unique<test::GraphCuda>(num_gpus);
    test::define_all_kernels(*machine);
    test::define_team_kernels(*machine);
    test::define_sums(*machine);
    test::define_direct(*machine, [](const coll::DirectArgs&) {});
    return machine;
  }

  std::unique_ptr<Rank> make_rank(int number, const NcclOfThreads::Gpu& gpu) {
    auto rank = std::make_unique<Rank>();
    rank->number = number;
    rank->device = gpu.device;
    rank->place = {
        gpu.machine,
        "programs-node-" + std::to_string(terms_.node_of_rank[static_cast<size_t>(number)])};
    Settings settings;
    settings.chosen_by = ChosenBy::kNothing;
    settings.nodes = Nodes::kOn;
    const bool is_odd = number == size() - 1;
    if (is_odd && terms_.odd == Odd::kSettings) settings.least_bytes = 1;
    if (is_odd && terms_.odd == Odd::kWithoutBraid) settings.is_on = false;
    rank->shim = std::make_unique<Shim>(real_of(number), settings, core_of_seats);
    return rank;
  }

  // ---- a rank's life ----

  void live(Rank& rank, const std::vector<Program>& programs) {
    the_place = &rank.place;
    const auto scope = sys::CurrentDevice::use(*rank.place.machine, rank.device);
    for (sys::Stream& stream : rank.streams) stream = new_stream(*rank.place.machine);
    if (make_wholes(rank))
      for (const Program& program : programs)
        if (!run_program(rank, program)) break;
    rank.has_ended = true;
    // What others do is seen, and told, before anybody says goodbye.
    while (!may_leave_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (!has_trouble_) part(rank);
    for (const sys::Stream stream : rank.streams) (void)rank.place.machine->destroy_stream(stream);
  }

  /// The first numbers that a fake GPU gives are the names of default streams.
  static sys::Stream new_stream(test::GraphCuda& machine) {
    constexpr uintptr_t kDefaultStreams = 2;
    while (true) {
      const sys::Stream stream = machine.create_stream(sys::StreamPriority::kNormal).value();
      if (reinterpret_cast<uintptr_t>(stream.handle) > kDefaultStreams) return stream;
      (void)machine.destroy_stream(stream);
    }
  }
  void fail(Rank& rank, const std::string& why) {
    const std::lock_guard lock(rank.mutex);
    if (rank.has_error) return;
    rank.error = why;
    rank.error_at_ns = now_ns();
    rank.has_error = true;
  }
  bool is_good_here(Rank& rank, NcclResult result, const char* what) {
    ++rank.progress;
    if (result == NcclResult::kSuccess) return !rank.is_aborted;
    fail(rank, std::string(what) + " answered " + std::to_string(static_cast<int>(result)));
    return false;
  }

  /// Two communicators of all ranks, whose ids rank 0 makes.
  bool make_wholes(Rank& rank) {
    for (size_t whole = 0; whole < 2; ++whole) {
      if (rank.number == 0) {
        rank.shim->sign_for_more(terms_.odd != Odd::kUnmarkedIds);
        id_results_[whole] = rank.shim->make_id(&ids_[whole]);
        rank.shim->sign_for_more(true);
      }
      all_.arrive_and_wait();
      if (!is_good_here(rank, id_results_[whole], "ncclGetUniqueId")) return false;
      NcclComm comm = nullptr;
      const UniqueId& id = ids_[whole];
      const NcclResult made =
          rank.shim->create(std::string(id.bytes, sizeof id.bytes), size(), &comm, [&] {
            return real_of(rank.number).init_rank_config(&comm, size(), id, rank.number, nullptr);
          });
      if (!is_good_here(rank, made, "ncclCommInitRank")) return all_.arrive_and_drop(), false;
      const std::lock_guard lock(rank.mutex);
      rank.comms.push_back(comm);
    }
    return true;
  }

  bool run_program(Rank& rank, const Program& program) {
    return std::all_of(program.begin(), program.end(), [&](const Step& step) {
      const uint64_t taken = sum(rank.shim->counts().taken);
      const uint64_t handed_on = sum(rank.shim->counts().handed_on);
      const bool is_good = run_step(rank, step);
      const bool are_all_one =
          std::all_of(step.calls.begin(), step.calls.end(),
                      [&](const PlannedCall& call) { return (*families_)[call.family].is_one(); });
      if (is_good && are_all_one)
        rank.routes.emplace_back(sum(rank.shim->counts().taken) - taken,
                                 sum(rank.shim->counts().handed_on) - handed_on);
      return is_good;
    });
  }
  static uint64_t sum(const std::array<std::atomic<uint64_t>, kNumOps>& counts) {
    uint64_t all = 0;
    for (const auto& count : counts) all += count.load();
    return all;
  }

  bool run_step(Rank& rank, const Step& step) {
    if (step.kind == Step::Kind::kSplit) return split(rank, step);
    if (step.kind == Step::Kind::kDrop) return drop(rank, step.family);
    std::vector<RankCall> calls;
    for (const PlannedCall& call : step.calls)
      calls.emplace_back(call, (*families_)[call.family], rank.number, *rank.place.machine);
    rank.tally.num_calls += calls.size();
    if (step.kind == Step::Kind::kGraph) return run_graph(rank, step, calls);
    for (RankCall& call : calls) call.fill(0);
    const bool is_group = step.kind == Step::Kind::kGroup;
    rank.tally.num_groups += is_group ? 1 : 0;
    return submit(rank, step, calls, is_group) && check(rank, step, calls, 0);
  }

  bool submit(Rank& rank, const Step& step, std::vector<RankCall>& calls, bool is_group) {
    if (is_group && !is_good_here(rank, rank.shim->group_start(), "ncclGroupStart")) return false;
    bool is_good = true;
    for (size_t i = 0; i < calls.size(); ++i) {
      const PlannedCall& planned = step.calls[i];
      const Call call =
          calls[i].as_call(rank.comms[planned.family], rank.streams[planned.stream].handle);
      is_good = is_good_here(rank, rank.shim->submit(call), op_name(call.op)) && is_good;
      if (!is_good && !is_group) return false;
    }
    if (!is_group) return is_good;
    return is_good_here(rank, rank.shim->group_end(), "ncclGroupEnd") && is_good;
  }

  bool run_graph(Rank& rank, const Step& step, std::vector<RankCall>& calls) {
    test::GraphCuda& machine = *rank.place.machine;
    for (RankCall& call : calls) call.fill(0);
    machine.begin_capture(rank.streams[0]);
    const bool is_captured = submit(rank, step, calls, step.is_grouped);
    const test::Graph graph = machine.end_capture(rank.streams[0]);
    ++rank.tally.num_graphs;
    for (int turn = 0; turn < step.num_replays && is_captured; ++turn) {
      for (RankCall& call : calls) call.fill(turn);
      ++rank.progress;
      // What a communicator's calls use goes with it, also where a watchdog has aborted it meanwhile.
      const Status replayed = machine.run(graph, [&] { return rank.is_aborted.load(); });
      if (rank.is_aborted) return false;
      if (!replayed.ok()) return fail(rank, "a replay: " + replayed.message()), false;
      if (!check(rank, step, calls, turn)) return false;
    }
    return is_captured;
  }

  /// The streams are through: a result that is wrong is told of by the communicator by now, as whoever
  /// waits for a stream asks it then and never again. Another watcher asks it at the same time.
  bool check(Rank& rank, const Step& step, const std::vector<RankCall>& calls, int turn) {
    for (size_t i = 0; i < calls.size(); ++i) {
      const bool is_told = is_troubled(rank);
      const int64_t asked_at_ns = now_ns();
      const unsigned seen = calls[i].look(turn, terms_.node_of_rank);
      if (is_told) return false;
      masks_[step.calls[i].number] &= seen != 0 ? seen : 3U;
      if (seen == 0) note_wrong(rank, asked_at_ns, step.calls[i], calls[i], turn);
    }
    return true;
  }
  void note_wrong(Rank& rank, int64_t asked_at_ns, const PlannedCall& planned, const RankCall& call,
                  int turn) {
    if (rank.wrong++ > 0) return;
    rank.asked_at_ns = asked_at_ns;
    rank.first_wrong = fmt::format("rank {}, {} on communicator {}, call {}, turn {}: {}",
                                   rank.number, op_name(planned.op), planned.family, planned.number,
                                   turn, call.what_differs(turn, terms_.node_of_rank));
  }
  /// Of a communicator that its own watchdog aborts nothing is known any more, nor may it be asked.
  bool is_troubled(Rank& rank) {
    NcclResult error = NcclResult::kSuccess;
    {
      const std::lock_guard nobody_aborts(rank.asking);
      if (rank.is_aborted || rank.has_error) return true;
      if (library_->has_failed())
        std::this_thread::sleep_for(std::chrono::nanoseconds(terms_.asking_ns));
      for (const NcclComm comm : rank.comms)
        if (comm != nullptr && error == NcclResult::kSuccess)
          (void)rank.shim->get_async_error(comm, &error);
    }
    if (error == NcclResult::kSuccess) return false;
    fail(rank, "an async error, " + std::to_string(static_cast<int>(error)));
    return true;
  }

  bool split(Rank& rank, const Step& step) {
    const auto r = static_cast<size_t>(rank.number);
    NcclComm child = nullptr;
    const NcclResult made = rank.shim->split(rank.comms[step.family], step.child.color[r],
                                             step.child.key[r], &child, nullptr);
    ++rank.tally.num_children;
    const std::lock_guard lock(rank.mutex);
    rank.comms.push_back(child);
    ++rank.progress;
    if (made == NcclResult::kSuccess) return !rank.is_aborted;
    if (!rank.has_error) rank.error = "ncclCommSplit", rank.error_at_ns = now_ns();
    rank.has_error = true;
    return false;
  }
  /// Its watchdog, which may still look, does not ask after it any more.
  static NcclComm take(Rank& rank, size_t family) {
    const std::lock_guard lock(rank.mutex);
    return std::exchange(rank.comms[family], nullptr);
  }
  bool drop(Rank& rank, size_t family) {
    return is_good_here(rank, rank.shim->destroy(take(rank, family)), "ncclCommDestroy");
  }
  void part(Rank& rank) {
    for (size_t family = 0; family < rank.comms.size(); ++family)
      if (const NcclComm comm = take(rank, family)) (void)rank.shim->destroy(comm);
  }

  // ---- watchdogs ----

  /// A rank's own.
  void watch_over(Rank& rank) {
    while (!may_leave_) {
      {
        const std::lock_guard lock(rank.mutex);
        look_at(rank);
      }
      std::this_thread::sleep_for(std::chrono::nanoseconds(terms_.watch_every_ns));
    }
  }

  /// Ends when all ranks have ended well, or each has an error.
  void watch() {
    uint64_t last = 0;
    int64_t moved_at_ns = now_ns();
    while (true) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      uint64_t progress = 0;
      int num_ended = 0, num_errors = 0;
      for (auto& rank : ranks_) {
        progress += rank->progress + (rank->has_ended ? 1 : 0) + (rank->has_error ? 1 : 0);
        num_ended += rank->has_ended ? 1 : 0;
        num_errors += rank->has_error ? 1 : 0;
      }
      if (progress != std::exchange(last, progress)) moved_at_ns = now_ns();
      const bool is_idle = now_ns() - moved_at_ns > terms_.most_idle_ns;
      if (num_ended == size() && (num_errors == 0 || num_errors == size() || is_idle)) break;
      if (is_idle) give_up_on_all();
    }
    for (auto& rank : ranks_) has_trouble_ = has_trouble_ || rank->has_error || rank->is_aborted;
    may_leave_ = true;
  }
  /// Under the rank's mutex.
  void look_at(Rank& rank) {
    for (const NcclComm comm : rank.comms) {
      NcclResult error = NcclResult::kSuccess;
      if (rank.has_error) break;
      if (comm != nullptr) (void)rank.shim->get_async_error(comm, &error);
      if (error == NcclResult::kSuccess) continue;
      rank.error = "an async error, " + std::to_string(static_cast<int>(error));
      rank.error_at_ns = now_ns();
      rank.has_error = true;
    }
    if (rank.has_error && !rank.is_aborted) abort(rank);
  }
  /// In a group, as PyTorch does: the work of one communicator may lie behind that of another.
  void abort(Rank& rank) {
    {
      const std::lock_guard nobody_asks(rank.asking);
      rank.is_aborted = true;
    }
    (void)rank.shim->group_start();
    for (NcclComm& comm : rank.comms)
      if (comm != nullptr) (void)rank.shim->abort(comm);
    (void)rank.shim->group_end();
  }
  /// What PyTorch does when nothing has moved for its timeout.
  void give_up_on_all() {
    for (auto& rank : ranks_) {
      const std::unique_lock lock(rank->mutex);
      if (!rank->has_ended && !rank->is_aborted) ++num_hung_;
      if (!rank->is_aborted) abort(*rank);
    }
  }

  // ---- what came of it ----

  Tally tally() {
    Tally all = ranks_[0]->tally;
    all.taken = sum(ranks_[0]->shim->counts().taken);
    all.handed_on = sum(ranks_[0]->shim->counts().handed_on);
    all.ranks_hung = num_hung_;
    all.has_failed = library_->has_failed();
    int64_t first = INT64_MAX, last = 0;
    for (const auto& rank : ranks_) {
      all.wrong += rank->wrong;
      if (rank->wrong > 0 && all.first_wrong.empty()) all.first_wrong = story_of(*rank);
      if (!rank->has_error) continue;
      ++all.ranks_with_error;
      if (rank->error_at_ns < first) all.first_error = rank->error;
      first = std::min(first, rank->error_at_ns);
      last = std::max(last, rank->error_at_ns);
    }
    all.first_to_last_error_ns = last > first ? last - first : 0;
    for (uint64_t i = 0; i < num_masks_; ++i) all.disagreed += masks_[i] == 0 ? 1 : 0;
    for (const auto& rank : ranks_) {
      const size_t common = std::min(rank->routes.size(), ranks_[0]->routes.size());
      for (size_t i = 0; i < common; ++i)
        all.disagreed += rank->routes[i] == ranks_[0]->routes[i] ? 0 : 1;
    }
    return all;
  }
  /// An error from before the rank asked was kept from it; one from after was not told in time.
  std::string story_of(const Rank& wrong) const {
    std::string story = wrong.first_wrong;
    for (const auto& rank : ranks_) {
      const int64_t later_ns = rank->error_at_ns - wrong.asked_at_ns;
      story += fmt::format("; rank {}: ", rank->number);
      story += rank->has_error ? fmt::format("{}, {} {} rank {} asked", rank->error,
                                             format_ns(std::abs(later_ns)),
                                             later_ns < 0 ? "before" : "after", wrong.number)
                               : std::string("no error");
    }
    return story;
  }
  /// In peace nothing of braid's is left on any GPU.
  void end() {
    for (auto& rank : ranks_) rank->shim.reset();
    nvlink::await_frees();
    if (has_trouble_) return;
    for (const auto& machine : machines_) EXPECT_EQ(machine->alive(), sys::FakeCudaCounts{});
  }

  const WorldTerms terms_;
  std::vector<std::unique_ptr<test::GraphCuda>> machines_;
  std::unique_ptr<NcclOfThreads> library_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  const std::vector<Family>* families_ = nullptr;
  std::array<UniqueId, 2> ids_{};
  std::array<NcclResult, 2> id_results_{};
  std::barrier<> all_{static_cast<ptrdiff_t>(terms_.node_of_rank.size())};
  uint64_t num_masks_ = 0;
  std::unique_ptr<std::atomic<unsigned>[]> masks_;
  std::atomic<bool> may_leave_{false}, has_trouble_{false};
  int num_hung_ = 0;
};

}  // namespace braid::nccl::programs
