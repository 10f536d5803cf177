// Flags of expectations in memory of a GPU, on a fake one: when they become 1, and what ends then.
#include "engine/flags.h"

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <thread>

#include "fake_gpu.h"

namespace braid::engine::test {
namespace {

/// Two fake GPUs whose copies of flags can be held, and that note who calls them so that a capture of
/// streams would break.
class HeldCuda : public sys::FakeCuda {
 public:
  HeldCuda() : FakeCuda(2) {}

  std::atomic<bool> holds_calls = false;   // copy() does not return
  std::atomic<bool> holds_copies = false;  // what was begun does not end
  std::atomic<bool> notes_modes = false;
  std::atomic<int> num_copies = 0;
  std::atomic<int> num_unsafe = 0, num_safe = 0;

  Status copy(sys::DevicePtr to, sys::DevicePtr from, uint64_t bytes, sys::Stream stream) override {
    note();
    ++num_copies;
    while (holds_calls) std::this_thread::yield();
    return FakeCuda::copy(to, from, bytes, stream);
  }
  using FakeCuda::is_done;
  Result<bool> is_done(sys::Event event) override {
    note();
    if (holds_copies) return false;
    return FakeCuda::is_done(event);
  }
  Result<sys::PointerFacts> pointer_facts(sys::DevicePtr address) override {
    note();
    return FakeCuda::pointer_facts(address);
  }
  Result<sys::Stream> create_stream(sys::StreamPriority priority) override {
    note();
    return FakeCuda::create_stream(priority);
  }
  Result<sys::Event> create_event(sys::EventTiming timing) override {
    note();
    return FakeCuda::create_event(timing);
  }
  Result<sys::CaptureMode> exchange_capture_mode(sys::CaptureMode next) override {
    mode = next;
    return FakeCuda::exchange_capture_mode(next);
  }

  static thread_local sys::CaptureMode mode;

 private:
  void note() {
    if (notes_modes) ++(mode == sys::CaptureMode::kRelaxed ? num_safe : num_unsafe);
  }
};
thread_local sys::CaptureMode HeldCuda::mode = sys::CaptureMode::kGlobal;

class FlagOnGpu : public OfOneGpu<HeldCuda> {
 protected:
  FlagOnGpu() : at(make_flag()) {}
  std::atomic<uint64_t>* make_flag(int device = 0, uint64_t bytes = sizeof(uint64_t)) {
    const auto current = sys::CurrentDevice::use(cuda, device);
    const sys::DevicePtr memory = cuda.alloc(bytes).value();
    std::memset(sys::pointer_to<void>(memory), 0, bytes);
    return sys::pointer_to<std::atomic<uint64_t>>(memory);
  }
  /// So many arrive at b, with no bytes.
  void count_at_b(uint32_t immediate, int count) {
    const std::vector<Address> peers(static_cast<size_t>(count), address_of(*a, *b));
    auto signals = a->signal(peers, immediate);
    ASSERT_TRUE(is_ok(signals));
    for (const TicketPtr& ticket : *signals) ASSERT_TRUE(is_ok(ticket->wait(in_seconds(20))));
  }
  static bool is_true_soon(const std::function<bool()>& is_true) {
    for (const Deadline deadline = in_seconds(20); !deadline.passed(); std::this_thread::yield())
      if (is_true()) return true;
    return false;
  }

  std::atomic<uint64_t>* const at;
};

TEST_F(FlagOnGpu, IsSetWhenTheCountIsThere) {
  std::promise<uint64_t> told;
  auto arrived = b->expect(5, 3, [&](const Status&) { told.set_value(at->load()); }, at);
  count_at_b(5, 2);
  EXPECT_EQ(*at, 0u);
  EXPECT_FALSE((*arrived)->is_done());
  count_at_b(5, 1);
  ASSERT_TRUE(is_ok(wait(arrived)));
  EXPECT_EQ(*at, 1u);
  EXPECT_EQ(told.get_future().get(), 1u);
  EXPECT_EQ(b->count(5), 0u);
  EXPECT_EQ(cuda.num_copies, 1);
}

TEST_F(FlagOnGpu, IsSetWhenTheCountWasThereBefore) {
  count_at_b(5, 4);
  auto arrived = b->expect(5, 3, {}, at);
  ASSERT_TRUE(is_ok(wait(arrived)));
  EXPECT_EQ(*at, 1u);
  EXPECT_EQ(b->count(5), 1u);
}

// The reader is a kernel's stand-in: it waits for the flag alone, and looks at no ticket.
TEST_F(FlagOnGpu, WhoSeesItSeesTheBytes) {
  constexpr size_t kBytes = 100'000;
  OnGpu from(cuda, *a, kBytes, 1), to(cuda, *b, kBytes, 2);
  Memory host(*b, kBytes, 3);
  const RemoteRegion on_gpu = import_from(*a, to.descriptor), on_host = import(*a, host);
  for (int round = 0; round < 50; ++round) {
    std::memset(to.memory(), 0, kBytes);
    std::fill(host.bytes.begin(), host.bytes.end(), std::byte{0});
    *at = 0;
    auto arrived = b->expect(7, 2, {}, at);
    auto looked = std::async(std::launch::async, [&] {
      return is_true_soon([&] { return at->load(std::memory_order_acquire) == 1; }) &&
             std::memcmp(to.memory(), from.memory(), kBytes) == 0 &&
             std::memcmp(host.bytes.data(), from.memory(), kBytes) == 0;
    });
    auto first = a->write({from.region, 0}, {on_gpu, 0}, kBytes, under(7));
    auto second = a->write({from.region, 0}, {on_host, 0}, kBytes, under(7));
    ASSERT_TRUE(looked.get()) << "round " << round;
    ASSERT_TRUE(is_ok(wait(first)) && is_ok(wait(second)) && is_ok(wait(arrived)));
  }
}

TEST_F(FlagOnGpu, ThatIsForgottenStays) {
  auto arrived = b->expect(5, 2, {}, at);
  count_at_b(5, 1);
  b->forget(5);
  EXPECT_TRUE(failed(wait(arrived), Code::kCancelled, "nobody expects it"));
  count_at_b(5, 2);
  EXPECT_EQ(b->count(5), 3u);
  EXPECT_EQ(*at, 0u);
  EXPECT_EQ(cuda.num_copies, 0);
}

TEST_F(FlagOnGpu, ItsTicketEndsBehindItsCopyAndNotSooner) {
  auto* const other = make_flag();
  cuda.holds_copies = true;
  auto first = b->expect(5, 1, {}, at), second = b->expect(6, 1, {}, other);
  count_at_b(5, 1);
  ASSERT_TRUE(is_true_soon([&] { return cuda.num_copies == 1; }));
  b->forget(5);  // too late: what was begun lands
  b->discard(5);
  count_at_b(6, 1);
  EXPECT_TRUE(failed(wait(first, 0), Code::kTimeout, "immediate 5"));
  EXPECT_FALSE((*first)->is_done() || (*second)->is_done());
  EXPECT_EQ(b->count(5), 0u);
  cuda.holds_copies = false;
  EXPECT_TRUE(is_ok(wait(first)));
  EXPECT_TRUE(is_ok(wait(second)));
  EXPECT_EQ(*at + *other, 2u);
}

// A driver's call may take long: other counts go on.
TEST_F(FlagOnGpu, HoldsNoCountsWhileTheDriverIsCalled) {
  auto arrived = b->expect(5, 1, {}, at);
  cuda.holds_calls = true;
  auto signal = a->signal(std::vector{address_of(*a, *b)}, 5);
  ASSERT_TRUE(is_true_soon([&] { return cuda.num_copies == 1; }));
  auto others = std::async(std::launch::async, [&] {
    b->forget(5);
    return b->expect(8, 1).ok() && b->count(5) == 0;
  });
  const bool went_on = others.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
  EXPECT_FALSE((*arrived)->is_done());
  cuda.holds_calls = false;
  EXPECT_TRUE(went_on && others.get());
  EXPECT_TRUE(is_ok(wait(arrived)));
}

TEST_F(FlagOnGpu, ACopyThatFailsEndsTheTicketSo) {
  std::promise<Code> told;
  auto arrived = b->expect(5, 1, [&](const Status& why) { told.set_value(why.code()); }, at);
  cuda.fail("copy", 0, driver_error("no more copies (719)"));
  count_at_b(5, 1);
  const Status why = wait(arrived);
  EXPECT_TRUE(failed(why, Code::kDriver, "no more copies (719)"));
  EXPECT_TRUE(failed(why, Code::kDriver, "1 counts under immediate 5: its flag at"));
  EXPECT_EQ(told.get_future().get(), Code::kDriver);
  EXPECT_EQ(*at, 0u);
  auto next = b->expect(5, 1, {}, at);
  count_at_b(5, 1);
  EXPECT_TRUE(is_ok(wait(next)));
  EXPECT_EQ(*at, 1u);
}

TEST_F(FlagOnGpu, ACopyThatIsNeverSeenToEndEndsTheTicketSo) {
  for (const char* const call : {"record", "is_done"}) {
    auto arrived = b->expect(5, 1, {}, at);
    cuda.fail(call, 0, driver_error("the context is lost"));
    count_at_b(5, 1);
    EXPECT_TRUE(failed(wait(arrived), Code::kDriver, "the context is lost")) << call;
  }
}

// What the first flag needs is made when it is expected, and tried again by the next one.
TEST_F(FlagOnGpu, WithoutItsStreamThereIsNoExpectation) {
  for (const char* const call : {"create_stream", "create_event", "pointer_facts"}) {
    cuda.fail(call, 0, driver_error("none to be had"));
    EXPECT_TRUE(failed(b->expect(5, 1, {}, at).status(), Code::kDriver, "none to be had")) << call;
  }
  auto arrived = b->expect(5, 1, {}, at);
  count_at_b(5, 1);
  EXPECT_TRUE(is_ok(wait(arrived)));
}

TEST_F(FlagOnGpu, MustBe8BytesOfTheHostOrOfItsGpu) {
  const auto refused = [](Engine& engine, std::atomic<uint64_t>* flag, std::string_view words) {
    const bool was_refused = failed(engine.expect(5, 1, {}, flag).status(), Code::kInvalidArgument,
                                    fmt::format("flag at {:#x}: {}", sys::address_of(flag), words));
    engine.forget(5);
    return was_refused;
  };
  const auto moved = [](std::atomic<uint64_t>* flag, size_t bytes) {
    return reinterpret_cast<std::atomic<uint64_t>*>(reinterpret_cast<std::byte*>(flag) + bytes);
  };
  EXPECT_TRUE(refused(*b, moved(at, 4), "it is not aligned"));
  EXPECT_TRUE(refused(*b, make_flag(1), "memory of GPU 1: this engine is of GPU 0"));
  EXPECT_TRUE(refused(*b, moved(make_flag(0, 12), 8), "8 bytes reach over the end"));
  // As a GPU's addresses are to the processor, and those of freed memory to the driver, too.
  void* const page = ::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  auto* const closed = static_cast<std::atomic<uint64_t>*>(page);
  EXPECT_TRUE(refused(*b, closed, "neither memory of the host nor of this engine's GPU (GPU 0)"));
  auto c = make("c", -1);
  EXPECT_TRUE(
      refused(*c, closed, "neither memory of the host nor of this engine's GPU (it has no"));
  ::munmap(page, 4096);
  EXPECT_TRUE(refused(*b, closed, "neither memory of the host"));
}

TEST_F(FlagOnGpu, MayBeTheHostsAllTheSame) {
  std::atomic<uint64_t> plain = 0;
  Memory pinned(*b, 4096, 1);
  auto* const word = reinterpret_cast<std::atomic<uint64_t>*>(pinned.bytes.data());
  *word = 0;
  auto first = b->expect(5, 1, {}, &plain), second = b->expect(6, 1, {}, word);
  count_at_b(5, 1);
  count_at_b(6, 1);
  ASSERT_TRUE(is_ok(wait(first)) && is_ok(wait(second)));
  EXPECT_EQ(plain + *word, 2u);
  EXPECT_EQ(cuda.num_copies, 0);
}

// The thread that expects captures streams, and so may any other one: nobody of ours calls what would
// break that, and the caller's mode is as it was.
TEST_F(FlagOnGpu, NoCaptureIsBroken) {
  OnGpu from(cuda, *a, 1000, 1), to(cuda, *b, 1000, 2);
  const RemoteRegion remote = import_from(*a, to.descriptor);
  cuda.notes_modes = true;
  ASSERT_EQ(cuda.mode, sys::CaptureMode::kGlobal);
  auto arrived = b->expect(5, 1, {}, at);
  ASSERT_TRUE(is_ok(wait(a->write({from.region, 0}, {remote, 0}, 1000, under(5)))));
  ASSERT_TRUE(is_ok(wait(arrived)));
  count_at_b(5, 1);
  ASSERT_TRUE(is_ok(wait(b->expect(5, 1, {}, at))));
  EXPECT_EQ(cuda.mode, sys::CaptureMode::kGlobal);
  EXPECT_EQ(cuda.num_unsafe, 0);
  EXPECT_GE(cuda.num_safe, 7);
}

TEST_F(FlagOnGpu, AnEngineThatEndsWaitsForItsCopies) {
  cuda.holds_copies = true;
  auto arrived = b->expect(5, 1, {}, at), never = b->expect(6, 1, {}, make_flag());
  count_at_b(5, 1);
  auto ended = std::async(std::launch::async, [&] { b.reset(); });
  EXPECT_EQ(ended.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout);
  EXPECT_FALSE((*arrived)->is_done());
  cuda.holds_copies = false;
  ended.get();
  EXPECT_TRUE(is_ok((*arrived)->status()) && (*arrived)->is_done());
  EXPECT_EQ((*never)->status().code(), Code::kCancelled);
  a.reset();
  EXPECT_EQ(cuda.alive().streams, 0u);
  EXPECT_EQ(cuda.alive().events, 0u);
}

TEST_F(FlagOnGpu, AnEngineThatEndsWaitsNotForEver) {
  cuda.holds_copies = true;
  auto arrived = b->expect(5, 1, {}, at);
  count_at_b(5, 1);
  const int64_t began = now_ns();
  b.reset();
  EXPECT_LT(now_ns() - began, 15 * kSecond);
  EXPECT_TRUE(failed((*arrived)->status(), Code::kTimeout, "it may be later"));
  cuda.holds_copies = false;
}

// As a callback may that an engine runs while it ends.
TEST_F(FlagOnGpu, IsRefusedBehindTheEnd) {
  Ground ground(EngineOptions{}, "a token of tests");
  ground.self.name = "c";
  ground.gpu = Gpu::open(cuda, 0).value();
  const Flag flag = ground.flags.find(at).value();
  EXPECT_EQ(flag.on_gpu, sys::address_of(at));
  ground.flags.close();
  EXPECT_TRUE(failed(ground.flags.find(at).status(), Code::kCancelled, "'c' was closed"));
  const TicketPtr ticket = ground.ticket("counts");
  ground.flags.write(flag.on_gpu, ticket);
  EXPECT_TRUE(failed(ticket->status(), Code::kCancelled, "'c' was closed"));
  EXPECT_EQ(*at, 0u);
}

}  // namespace
}  // namespace braid::engine::test
