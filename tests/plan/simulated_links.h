// Links that exist only as a formula: time = (latency + bytes / rate) * noise. For search and
// balance tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace braid::plan::testing {

struct SimulatedLink {
  std::string name;
  double rate_gbps = 1;
  double latency_ns = 0;
  bool is_dead = false;
};

class SimulatedLinks {
 public:
  SimulatedLinks(std::vector<SimulatedLink> all, double bytes, double noise = 0, uint64_t seed = 1)
      : links(std::move(all)), bytes_(bytes), noise_(noise), rng_(seed) {}

  /// One call with `shares`: each link's finish, -1 when it is dead and had a part.
  std::vector<int64_t> run(const Shares& shares) {
    std::normal_distribution<double> scatter(1, noise_);
    std::vector<int64_t> finish;
    for (size_t i = 0; i < links.size(); ++i) {
      const double part = bytes_ * shares[i] / kWhole;
      const double ns = (links[i].latency_ns + part / links[i].rate_gbps) *
                        std::max(0.1, noise_ > 0 ? scatter(rng_) : 1);
      finish.push_back(shares[i] == 0 ? 0 : links[i].is_dead ? -1 : static_cast<int64_t>(ns));
    }
    return finish;
  }
  /// Time of a call without noise.
  double call_ns(const Shares& shares) const {
    double worst = 0;
    for (size_t i = 0; i < links.size(); ++i)
      if (shares[i] > 0)
        worst =
            std::max(worst, links[i].latency_ns + bytes_ * shares[i] / kWhole / links[i].rate_gbps);
    return worst;
  }
  /// Time of a call that wastes nothing, when no link has latency.
  double ideal_ns() const {
    double sum = 0;
    for (const SimulatedLink& link : links) sum += link.is_dead ? 0 : link.rate_gbps;
    return bytes_ / sum;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const SimulatedLink& link : links) names.push_back(link.name);
    return names;
  }
  double bytes() const { return bytes_; }

  std::vector<SimulatedLink> links;

 private:
  double bytes_;
  double noise_;
  std::mt19937_64 rng_;
};

}  // namespace braid::plan::testing
