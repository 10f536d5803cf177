#include <gtest/gtest.h>

#include "sys/cuda/api.h"

namespace braid::sys {
namespace {

// One call of each method; none of them may need a driver to say that there is none.
std::vector<Status> every_call(Cuda& cuda) {
  int host = 0;
  std::byte fatbin[1] = {};
  return {
      cuda.ready(),
      cuda.driver_version().status(),
      cuda.num_devices().status(),
      cuda.device(0).status(),
      cuda.use_device(0),
      cuda.current_context().status(),
      cuda.set_current_context({}),
      cuda.current_device().status(),
      cuda.retain_primary_context(0).status(),
      cuda.release_primary_context(0),
      cuda.enable_peer_access(1),
      cuda.alloc(1).status(),
      cuda.free(1),
      cuda.pointer_facts(1).status(),
      cuda.address_range(1).status(),
      cuda.register_host(&host, sizeof host).status(),
      cuda.unregister_host(&host),
      cuda.copy(1, 2, 3, {}),
      cuda.copy_on_device(1, 2, 3, {}),
      cuda.fill(1, 2, 3, {}),
      cuda.allocation_granularity(0).status(),
      cuda.create_allocation({}).status(),
      cuda.retain_allocation(1).status(),
      cuda.release_allocation({}),
      cuda.export_allocation({}).status(),
      cuda.import_allocation(0).status(),
      cuda.reserve_addresses(1, 0).status(),
      cuda.free_addresses(1, 1),
      cuda.map(1, 1, {}),
      cuda.unmap(1, 1),
      cuda.allow_access(1, 1, 0),
      cuda.export_ipc(1).status(),
      cuda.open_ipc({}).status(),
      cuda.close_ipc(1),
      cuda.create_stream(StreamPriority::kNormal).status(),
      cuda.destroy_stream({}),
      cuda.is_done(Stream{}).status(),
      cuda.synchronize({}),
      cuda.synchronize_device(),
      cuda.capture_state({}).status(),
      cuda.capture_id({}).status(),
      cuda.exchange_capture_mode(CaptureMode::kRelaxed).status(),
      cuda.create_event(EventTiming::kOff).status(),
      cuda.destroy_event({}),
      cuda.record({}, {}),
      cuda.wait_event({}, {}),
      cuda.is_done(Event{}).status(),
      cuda.elapsed_ns({}, {}).status(),
      cuda.load_module(fatbin).status(),
      cuda.unload_module({}),
      cuda.kernel({}, "none").status(),
      cuda.allow_shared_bytes({}, 1),
      cuda.launch_kernel({}, {}, {}, {}),
  };
}

TEST(RealCuda, SaysThatThereIsNoDriver) {
  if (real_cuda().ready().ok()) GTEST_SKIP() << "skipped: there is a driver";
  const std::string why = real_cuda().ready().message();
  EXPECT_TRUE(why.find("libcuda.so.1") != std::string::npos || why.starts_with("cuda: cuInit"))
      << why;
  for (const Status& status : every_call(real_cuda())) {
    EXPECT_EQ(status.code(), Code::kUnavailable);
    EXPECT_EQ(status.message(), why);
  }
}

}  // namespace
}  // namespace braid::sys
