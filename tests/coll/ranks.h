// Comms of several ranks in one process, a thread each: what the tests of the collectives run on.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/comm.h"
#include "support/thread_group.h"

namespace braid::test {

using Options = std::map<std::string, std::string>;

inline Config make_config(const Options& options) {
  Options all = {{"BRAID_TIMEOUT", "10s"}, {"BRAID_TUNE", "off"}};
  for (const auto& [name, value] : options) all[name] = value;
  auto config = Config::from_pairs(all);
  EXPECT_TRUE(config.ok()) << config.status().to_string();
  return config.ok() ? std::move(config).value() : Config();
}

/// Runs `body` on `size` ranks that share comms over the links in `options`.
inline void run_comms(int size, const Options& options,
                      const std::function<void(comm::Comm&)>& body) {
  auto hub = std::make_shared<ThreadHub>(size);
  const Config config = make_config(options);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      auto comm = comm::Comm::create(std::make_unique<ThreadGroup>(hub, rank), config);
      ASSERT_TRUE(comm.ok()) << "rank " << rank << ": " << comm.status().to_string();
      body(*comm.value());
      EXPECT_TRUE(comm.value()->close().ok());
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace braid::test
