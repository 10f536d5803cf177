// Ranks as threads: run_ranks(4, fn) joins four threads to one group on a loopback port of their
// own and calls fn(group) on each. A Status or an exception from any of them fails the test with
// the rank's number.
//
//   run_ranks(4, [](group::Group& group) {
//     EXPECT_EQ(group.size(), 4);
//     return group.barrier("done", soon());   // returning nothing works too
//   });
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "base/config.h"
#include "base/units.h"
#include "group/group.h"
#include "sys/host/api.h"

namespace braid::test {

/// Long enough for a loaded machine under a sanitizer, short enough that a hang fails the test.
inline Deadline soon() { return Deadline::after_ns(20_s); }

/// The first of a block of eight ports below the kernel's ephemeral range. Two tests that draw the
/// same block do no harm: their tokens differ, and each finds its own store among the candidates.
inline uint16_t draw_port() {
  uint16_t bits = 0;
  if (!sys::random_bytes(std::as_writable_bytes(std::span(&bits, 1))).ok()) return 20'000;
  return static_cast<uint16_t>(20'000 + 8 * (bits % 1'500));
}

/// A job of `size` ranks that no other test can join; set rank before joining.
inline group::Identity draw_job(int size) {
  group::Identity identity;
  identity.size = size;
  identity.store_port = draw_port();
  uint64_t secret[2] = {};
  EXPECT_TRUE(sys::random_bytes(std::as_writable_bytes(std::span(secret))).ok());
  identity.job_token = fmt::format("test {:x}{:x}", secret[0], secret[1]);
  return identity;
}

inline group::Identity as_rank(group::Identity job, int rank) {
  job.rank = rank;
  job.local_rank = rank;
  return job;
}

/// Calls `body(rank)` on `size` threads at once and joins them; exceptions become failures that
/// name the rank.
template <typename Body>
void run_threads(int size, Body body) {
  std::vector<std::string> thrown(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const std::exception& e) {
        thrown[static_cast<size_t>(rank)] = e.what();
      }
    });
  for (auto& thread : threads) thread.join();
  for (int rank = 0; rank < size; ++rank)
    if (!thrown[static_cast<size_t>(rank)].empty())
      ADD_FAILURE() << "rank " << rank << " threw: " << thrown[static_cast<size_t>(rank)];
}

/// The same with a group each; `config` is every rank's.
template <typename Fn>
void run_ranks(int size, const Config& config, Fn fn) {
  const group::Identity job = draw_job(size);
  run_threads(size, [&](int rank) {
    auto joined = group::Group::join(as_rank(job, rank), config, soon());
    if (!joined.ok()) {
      ADD_FAILURE() << "rank " << rank << " could not join: " << joined.status().to_string();
      return;
    }
    group::Group& group = **joined;
    if constexpr (std::is_same_v<std::invoke_result_t<Fn, group::Group&>, Status>) {
      if (const Status end = fn(group); !end.ok())
        ADD_FAILURE() << "rank " << rank << ": " << end.to_string();
    } else {
      fn(group);
    }
  });
}

template <typename Fn>
void run_ranks(int size, Fn fn) {
  run_ranks(size, Config(), std::move(fn));
}

}  // namespace braid::test
