// Asking whether a stream is captured, on threads with and without a context.
#include "bindings/nccl/core/capture.h"

#include <gtest/gtest.h>

#include <thread>

#include "sys/cuda/fake.h"

namespace braid::nccl {
namespace {

class CaptureTest : public testing::Test {
 protected:
  /// A stream of device 1, and no context in this thread.
  sys::Stream stream() {
    EXPECT_TRUE(cuda_.use_device(1).ok());
    auto made = cuda_.create_stream(sys::StreamPriority::kNormal);
    // Handles 1 and 2 are CUDA's names for default streams, and the fake gives them out first.
    for (int i = 0; i < 2; ++i) made = cuda_.create_stream(sys::StreamPriority::kNormal);
    EXPECT_TRUE(made.ok());
    EXPECT_TRUE(cuda_.set_current_context({}).ok());
    return made.value();
  }
  bool has_context() { return cuda_.current_context().value().handle != nullptr; }
  sys::FakeCuda cuda_{2};
};

TEST_F(CaptureTest, TheNullStreamIsNeverCapturedWhoeverAsks) {
  for (const uintptr_t legacy : {0, 1}) {
    cuda_.fail("capture_state", 0, driver_error("nobody asks"));
    EXPECT_FALSE(is_capturing(cuda_, 1, {reinterpret_cast<void*>(legacy)}));  // NOLINT
    EXPECT_FALSE(has_context()) << "it makes none";
  }
}

TEST_F(CaptureTest, AThreadWithoutAContextCanAsk) {
  EXPECT_FALSE(is_capturing(cuda_, 1, stream()));
  EXPECT_FALSE(has_context()) << "as it was before";
}

TEST_F(CaptureTest, AThreadsDeviceStaysAsItWas) {
  const sys::Stream asked = stream();
  ASSERT_TRUE(cuda_.use_device(0).ok());
  EXPECT_FALSE(is_capturing(cuda_, 1, asked));
  EXPECT_EQ(cuda_.current_device().value(), 0);
}

TEST_F(CaptureTest, OneThatCannotBeAskedCountsAsCaptured) {
  const sys::Stream asked = stream();
  cuda_.fail("capture_state", 0, driver_error("broken"));
  EXPECT_TRUE(is_capturing(cuda_, 1, asked));
  cuda_.fail("current_context", 0, driver_error("broken"));
  EXPECT_TRUE(is_capturing(cuda_, 1, asked));
}

}  // namespace
}  // namespace braid::nccl
