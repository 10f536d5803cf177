#include "bindings/nccl/core/hold_race.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "base/log.h"
#include "base/units.h"
#include "bindings/nccl/core/race_cache.h"
#include "coll/device/call_timer.h"
#include "coll/tuning_cache.h"
#include "group/agree.h"

namespace braid::nccl {

namespace {

// Beyond the time: a call of NCCL's that has not ended then never will, or nobody wants to wait.
constexpr int64_t kPatience = 10_s;
// As tuning does (coll/device/tune.h): what a GPU may run of others, and how long to wait for them.
constexpr int64_t kMostPause_ns = 100'000;
constexpr int kMostLooks = 6;
constexpr std::chrono::milliseconds kBetweenLooks{100};
// Ranks that take turns on a GPU come to a barrier's end one turn after the other.
constexpr Agreement kAgreement;
constexpr Agreement kAgreementOfTurns{4, 50'000};

const char* name_of(braid_nccl_op op) {
  constexpr const char* kNames[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast",
                                    "all_to_all"};
  static_assert(std::size(kNames) == BRAID_NCCL_NUM_OPS);
  return kNames[op];
}

const char* where(const Entrants& for_) { return for_.in_windows ? " in windows" : ""; }

Result<std::string> agreed_key(const Entrants& for_, const RaceTerms& terms) {
  sys::Cuda& cuda = for_.device.cuda();
  BRAID_ASSIGN_OR_RETURN(const sys::DeviceFacts facts, cuda.device(for_.device.ordinal()));
  BRAID_ASSIGN_OR_RETURN(const int driver, cuda.driver_version());
  const std::string own = own_facts(facts.name + " " + facts.pci_address, driver);
  BRAID_ASSIGN_OR_RETURN(auto ranks, for_.group.exchange("nccl race of", own, terms.deadline));
  return race_key({for_.op, for_.sizes, for_.real.version, for_.real.config, std::move(ranks),
                   for_.nodes != nullptr ? for_.nodes->map : "", for_.in_windows},
                  terms.config);
}

/// Rank 0's word, for all: what is kept of this race.
Result<KeptRace> find_kept(const Entrants& for_, const RaceTerms& terms, const std::string& path,
                           const std::string& key) {
  const auto holds = [&](const std::string& text) { return parse_race(text, key).status(); };
  const std::string own = coll::find_tuning(terms.config, for_.group.rank(), path, holds);
  BRAID_ASSIGN_OR_RETURN(const auto texts,
                         for_.group.exchange("nccl race kept", own, terms.deadline));
  return texts.front().empty() ? KeptRace{} : parse_race(texts.front(), {});
}

/// What is left to be run: of a race that ended by the clock, where there is a good deal more time.
SizeRange left_of(SizeRange sizes, const KeptRace& kept, int64_t time_ns) {
  while (sizes.num() > 0 && (kept.choice.measured >> sizes.begin & 1U) != 0) ++sizes.begin;
  if (2 * time_ns < 3 * kept.time_ns) sizes.end = sizes.begin;
  return sizes;
}

/// Whether ranks take turns on a GPU anywhere. A device knows of its own node's.
Result<bool> take_turns(const Entrants& for_, const RaceTerms& terms) {
  const bool own = for_.device.gpus().are_shared;
  if (for_.nodes == nullptr) return own;
  const int64_t told = own ? 1 : 0;
  BRAID_ASSIGN_OR_RETURN(const auto all, group::exchange_numbers(for_.group, "nccl race turns",
                                                                 {&told, 1}, terms.deadline));
  return std::ranges::any_of(all, [](const auto& of_rank) { return of_rank[0] != 0; });
}

/// Whether nobody else's kernels run on these GPUs, after a while if need be. Where ranks share a
/// GPU they see each other's, and cannot tell.
Result<bool> is_calm(const Entrants& for_, const RaceTerms& terms, bool takes_turns,
                     int num_looks) {
  if (takes_turns) return true;
  coll::device::CallTimer timer(for_.device, for_.group, terms.deadline, 4096);
  BRAID_RETURN_IF_ERROR(
      group::agree(for_.group, "nccl race looks", timer.prepare(), "", terms.deadline).status());
  for (int look = 0; look < num_looks; ++look) {
    if (look > 0) std::this_thread::sleep_for(kBetweenLooks);
    BRAID_ASSIGN_OR_RETURN(const int64_t pause_ns, timer.longest_pause_ns());
    if (pause_ns <= kMostPause_ns) return true;
  }
  return false;
}

void tell_disturbed(const Entrants& for_) {
  if (for_.group.rank() == 0)
    log::warn("nccl",
              "{}{} among {} ranks is left to NCCL: other work on these GPUs, beside which nobody "
              "can tell who is faster; nothing is kept",
              name_of(for_.op), where(for_), for_.group.size());
}

void tell(const Entrants& for_, const Outcome& outcome) {
  if (for_.group.rank() != 0) return;
  for (size_t i = 0; i < outcome.sizes.size(); ++i) {
    const RacedSize& size = outcome.sizes[i];
    log::info("nccl", "race: {} of {}{} among {}: NCCL {:.1f} us, braid {:.1f} us, {:.3f}x: {}",
              name_of(for_.op), format_bytes(kRacedBytes[for_.sizes.begin + i]), where(for_),
              for_.group.size(), size.nccl_us, size.braid_us, size.ratio,
              size.is_won ? "braid" : "NCCL");
  }
  log::info("nccl", "race: {}{} among {}, {} messages, took {}{}", name_of(for_.op), where(for_),
            for_.group.size(), for_.sizes.begin < kNumSmall ? "small" : "large",
            format_ns(outcome.elapsed_ns),
            outcome.is_over_time ? ", all the time there was: larger ones are NCCL's" : "");
}

/// `outcome` with what was known before.
void keep(const Entrants& for_, const RaceTerms& terms, const std::string& path,
          const std::string& key, const Outcome& outcome) {
  const bool are_all = outcome.sizes.size() == for_.sizes.num() || outcome.is_over_time;
  if (for_.group.rank() != 0 || !are_all) return;  // a rank had too little memory for some
  const KeptRace kept{outcome.choice,
                      outcome.is_over_time ? std::max<int64_t>(terms.time_ns, 1) : 0};
  const std::string text = race_to_json(key, kept);
  constexpr const char* kWhat = "who is faster";
  if (kept.time_ns == 0) return coll::keep_tuning(path, text, kWhat);
  coll::keep_cut_off_tuning(path, text, kWhat, [&](const std::string& other) {
    const auto before = parse_race(other, key);
    return before.ok() && (before->time_ns == 0 || before->time_ns > kept.time_ns);
  });
}

struct Ran {
  Outcome outcome;
  bool counts = false;  // else others work on these GPUs, or NCCL has no such call
};

Result<Ran> run_if_calm(const Entrants& for_, const RaceTerms& terms) {
  Ran ran;
  BRAID_ASSIGN_OR_RETURN(const bool takes_turns, take_turns(for_, terms));
  BRAID_ASSIGN_OR_RETURN(ran.counts, is_calm(for_, terms, takes_turns, kMostLooks));
  if (ran.counts) {
    RaceTrack track(for_, terms.deadline, terms.time_ns + kPatience);
    BRAID_RETURN_IF_ERROR(track.prepare());
    Result<Outcome> raced =
        race(track, terms.time_ns, takes_turns ? kAgreementOfTurns : kAgreement);
    const bool is_refused = raced.status().code() == Code::kUnsupported;
    if (raced.ok() || is_refused) BRAID_RETURN_IF_ERROR(track.finish());
    if (is_refused) {
      log::info("nccl", "{}{} is left to NCCL: {}", name_of(for_.op), where(for_),
                raced.status().message());
      return Ran{};
    }
    BRAID_ASSIGN_OR_RETURN(ran.outcome, std::move(raced));
    BRAID_ASSIGN_OR_RETURN(ran.counts, is_calm(for_, terms, takes_turns, 1));
  }
  if (!ran.counts) tell_disturbed(for_);
  return ran;
}

}  // namespace

Result<Held> hold_race(const Entrants& entrants, const RaceTerms& terms) {
  BRAID_ASSIGN_OR_RETURN(const std::string key, agreed_key(entrants, terms));
  const std::string path = coll::tuning_path(terms.config, "nccl-" + key);
  BRAID_ASSIGN_OR_RETURN(const KeptRace kept, find_kept(entrants, terms, path, key));
  Entrants for_ = entrants;
  for_.sizes = left_of(entrants.sizes, kept, terms.time_ns);
  if (for_.sizes.num() == 0) return Held{kept.choice, 0};
  BRAID_ASSIGN_OR_RETURN(const bool has_room, terms.make_room());
  if (!has_room) return Held{};
  BRAID_ASSIGN_OR_RETURN(Ran ran, run_if_calm(for_, terms));
  Outcome& outcome = ran.outcome;
  if (!ran.counts) return Held{kept.choice, outcome.elapsed_ns};
  tell(for_, outcome);
  outcome.choice.measured |= kept.choice.measured;
  outcome.choice.won |= kept.choice.won;
  keep(for_, terms, path, key, outcome);
  return Held{outcome.choice, outcome.elapsed_ns};
}

}  // namespace braid::nccl
