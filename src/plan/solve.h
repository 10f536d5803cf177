// The split: which part of a message each link carries so that all of them finish together.
//
// Link i needs T_i = a_i + S_i / b_i for its part S_i (b_i: request bytes per ns, see wire.h).
// Equal finish gives the closed form
//     T* = (S + sum a_i b_i) / sum b_i,    S_i = b_i (T* - a_i).
// A link whose part comes out below the minimum is dropped and the rest solved again; dropping a
// link with a_i > T* only lowers T*, so the order among hopeless links does not matter. At most one
// round per link.
//
// Links of one resource (a GPU's PCIe x16 under the host path and the NIC) do not add up: link i at
// full speed takes the part `load` of its resource, and the resource is filled by the link that
// moves most bytes per load first. With a load of 1 each, the resource has as many modes as links,
// and the best one gets it all.
//
// Pure: equal inputs give equal bits, so ranks with the same facts decide the same.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace braid::plan {

/// What a part of a message costs on one link.
struct LinkCost {
  double latency_ns = 0;
  double algbw_gbps = 0;  // request bytes per ns; 0 = the link cannot be used
  int resource = -1;      // index of the shared resource; -1: its own
  double load = 1;        // part of the resource it takes at full speed, (0, 1]
};

struct SolveOptions {
  double min_part_bytes = 4096;  // a smaller part costs more than it carries: the link is left out
  double min_gain = 0.02;  // less predicted gain than this over the best link: the best link alone
};

struct Split {
  Shares shares;            // sum kWhole
  double predicted_ns = 0;  // of the split that `shares` says
  int best_link = 0;        // the fastest link alone, and its time
  double best_ns = 0;
  std::string why;         // one sentence
  bool is_single() const;  // one link carries all
};

/// The parts of all links at equal finish, dropped links with 0. `links` must have one with a rate.
struct Parts {
  std::vector<double> bytes;
  std::vector<double>
      speed;  // part of its own rate that a link has beside the others of its resource, 0 to 1
  double finish_ns = 0;
};
Parts equal_finish(double bytes, std::span<const LinkCost> links, double min_part_bytes);

/// The 2 % rule: `parts` against the best link alone (which takes best_ns), whichever is to be
/// used.
Split choose_split(const Parts& parts, int best_link, double best_ns, double min_gain);

/// Splits `bytes` over `links` (at least one). When no link has a rate, link 0 carries all and
/// predicted_ns is 0.
Split solve(double bytes, std::span<const LinkCost> links, const SolveOptions& options = {});

/// The size from which on `slow` (more latency) is worth using beside `fast`: b_fast (a_slow -
/// a_fast), never negative.
double break_even_bytes(const LinkCost& fast, const LinkCost& slow) noexcept;

/// Non-negative weights to fixed point: sum kWhole exactly, largest remainder, lower index first
/// among equals. A weight that is not finite or not above 0 counts as 0; when none is left, the
/// first link gets all.
Shares to_shares(std::span<const double> weights);
/// All to one link.
Shares single_share(size_t num_links, size_t link);

/// Costs of `links` for `request` by their facts alone (rate, latency, shared resources).
std::vector<LinkCost> costs_from_facts(const Request& request, std::span<const fabric::Link> links);

}  // namespace braid::plan
