// Streams that wait for each other, among captures.
#include "bindings/nccl/core/join.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "sys/cuda/fake.h"

namespace braid::nccl {
namespace {

using testing::IsEmpty;
using testing::Pair;
using testing::UnorderedElementsAre;

/// Writes down which stream waited for which.
class WaitingCuda : public sys::FakeCuda {
 public:
  Result<uint64_t> capture_id(sys::Stream stream) override {
    return captures.contains(stream.handle) ? captures.at(stream.handle) : 0;
  }
  Status record(sys::Event, sys::Stream stream) override {
    recorded_ = stream.handle;
    return {};
  }
  Status wait_event(sys::Stream stream, sys::Event) override {
    waits.emplace(stream.handle, recorded_);
    return {};
  }
  std::map<void*, uint64_t> captures;
  std::set<std::pair<void*, void*>> waits;

 private:
  void* recorded_ = nullptr;
};

class Join : public testing::Test {
 protected:
  Join() { EXPECT_TRUE(cuda_.use_device(0).ok()); }
  static sys::Stream stream(uintptr_t handle) {
    return {reinterpret_cast<void*>(handle)};
  }  // NOLINT
  static auto waited(uintptr_t who, uintptr_t for_whom) {
    return Pair(stream(who).handle, stream(for_whom).handle);
  }
  WaitingCuda cuda_;
};

TEST_F(Join, EveryStreamWaitsForAll) {
  const std::vector<sys::Stream> streams = {stream(3), stream(4), stream(5)};
  EXPECT_TRUE(join_streams(cuda_, streams).ok());
  EXPECT_THAT(cuda_.waits,
              UnorderedElementsAre(waited(3, 4), waited(3, 5), waited(4, 3), waited(5, 3)));
  EXPECT_EQ(cuda_.alive().events, 0U);
}

// What is captured may not wait for an event from without: the capture would end.
TEST_F(Join, OnlyStreamsOfOneCaptureWaitForEachOther) {
  cuda_.captures = {{stream(3).handle, 7}, {stream(4).handle, 8}, {stream(6).handle, 7}};
  const std::vector<sys::Stream> streams = {stream(3), stream(4), stream(5), stream(6), stream(0)};
  EXPECT_TRUE(join_streams(cuda_, streams).ok());
  EXPECT_THAT(cuda_.waits,
              UnorderedElementsAre(waited(3, 6), waited(6, 3), waited(0, 5), waited(5, 0)));
}

TEST_F(Join, OneStreamAloneWaitsForNothing) {
  const std::vector<sys::Stream> streams = {stream(3)};
  EXPECT_TRUE(join_streams(cuda_, streams).ok());
  EXPECT_THAT(cuda_.waits, IsEmpty());
}

}  // namespace
}  // namespace braid::nccl
