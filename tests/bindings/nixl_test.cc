// NIXL's agents as far as a backend sees them: it is called through the table of virtual functions,
// in the order in which NIXL's agent calls it. tests/nixl has NIXL itself.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <future>
#include <numeric>
#include <thread>

#include "backend.h"
#include "bindings/nixl/settings.h"
#include "engine/engines.h"
#include "sys/cuda/fake.h"

namespace braid::nixl {
namespace {

using engine::test::pattern;

constexpr int64_t kPatience = 20'000'000'000;

Settings quick(const Settings& more = {}) {
  Settings out = {{"hosts", "127.0.0.1"}, {"nics", "none"}, {"lease", "2s"}, {"timeout", "10s"}};
  for (const auto& [name, text] : more) out[name] = text;
  return out;
}

std::unique_ptr<Backend> make(const std::string& agent, Settings settings = quick()) {
  Birth birth;
  birth.agent = agent;
  birth.type = "BRAID";
  birth.settings = &settings;
  auto made = BraidBackend::create(birth);
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return made.ok() ? std::move(made).value() : nullptr;
}

/// An agent with registered blocks.
struct Agent {
  explicit Agent(std::string name_in, Settings settings = quick())
      : name(std::move(name_in)), backend(make(name, std::move(settings))) {}
  ~Agent() {
    for (Memory* memory : own) backend->deregister_mem(memory);
    for (Memory* memory : theirs) backend->unload_md(memory);
  }
  void add(std::vector<std::byte> bytes) {
    blocks.push_back(std::move(bytes));
    PlaceWithText place;
    place.address = reinterpret_cast<uint64_t>(blocks.back().data());
    place.bytes = blocks.back().size();
    own.push_back(nullptr);
    ASSERT_EQ(backend->register_mem(place, MemoryKind::kHost, own.back()), Answer::kDone);
  }
  /// Connection info, then each registration's public data, as an agent's metadata has them.
  void meet(const Agent& other) {
    std::string text;
    ASSERT_EQ(other.backend->get_conn_info(text), Answer::kDone);
    ASSERT_EQ(backend->load_remote_conn_info(other.name, text), Answer::kDone);
    for (size_t i = 0; i < other.own.size(); ++i) {
      PlaceWithText place;
      place.address = reinterpret_cast<uint64_t>(other.blocks[i].data());
      place.bytes = other.blocks[i].size();
      ASSERT_EQ(other.backend->get_public_data(other.own[i], place.text), Answer::kDone);
      theirs.push_back(nullptr);
      ASSERT_EQ(backend->load_remote_md(place, MemoryKind::kHost, other.name, theirs.back()),
                Answer::kDone);
    }
  }
  PlaceWithMemory here(size_t block, uint64_t at, uint64_t bytes) {
    return place(reinterpret_cast<uint64_t>(blocks[block].data()) + at, bytes, own[block]);
  }
  static PlaceWithMemory place(uint64_t address, uint64_t bytes, Memory* memory) {
    PlaceWithMemory out;
    out.address = address;
    out.bytes = bytes;
    out.memory = memory;
    return out;
  }
  /// The notifications that came within the patience: so many, or fewer.
  Notifications listen(size_t count, int64_t patience_ns = kPatience) {
    Notifications out;
    const Deadline deadline = Deadline::after_ns(patience_ns);
    while (out.size() < count && !deadline.passed())
      EXPECT_EQ(backend->get_notifs(out), Answer::kDone);
    return out;
  }

  const std::string name;
  std::unique_ptr<Backend> backend;
  std::vector<std::vector<std::byte>> blocks;
  std::vector<Memory*> own, theirs;
};

/// From near to far: places by block and offset.
struct Order {
  TransferPlaces ours, theirs;
  void add(Agent& near, Agent& far, size_t block, uint64_t ours_at, uint64_t theirs_at,
           uint64_t bytes) {
    ours.all.push_back(near.here(block, ours_at, bytes));
    theirs.all.push_back(
        Agent::place(reinterpret_cast<uint64_t>(far.blocks[block].data()) + theirs_at, bytes,
                     near.theirs[block]));
  }
};

Answer wait(const Backend& backend, Work* work) {
  const Deadline deadline = Deadline::after_ns(kPatience);
  Answer answer = backend.check_xfer(work);
  while (answer == Answer::kInProgress && !deadline.passed()) answer = backend.check_xfer(work);
  return answer;
}

TransferWishes with(const std::string& note) { return {note, true, ""}; }

Answer run(Agent& near, Operation operation, const Order& order, const TransferWishes* wishes) {
  Work* work = nullptr;
  EXPECT_EQ(near.backend->prep_xfer(operation, order.ours, order.theirs, "far", work, wishes),
            Answer::kDone);
  Answer answer = near.backend->post_xfer(operation, order.ours, order.theirs, "far", work, wishes);
  if (answer == Answer::kInProgress) answer = wait(*near.backend, work);
  EXPECT_EQ(near.backend->release_req_h(work), Answer::kDone);
  return answer;
}

class NixlBackend : public testing::Test {
 protected:
  void blocks(size_t count, size_t bytes) {
    for (size_t i = 0; i < count; ++i) {
      near.add(pattern(bytes, static_cast<uint32_t>(i + 1)));
      far.add(std::vector<std::byte>(bytes));
    }
    near.meet(far);
    far.meet(near);
  }
  Agent near{"near"}, far{"far"};
};

TEST_F(NixlBackend, WritesAndReadsWithANotificationEach) {
  blocks(1, 4096);
  Order order;
  order.add(near, far, 0, 100, 200, 1000);
  const TransferWishes wishes = with("written");
  EXPECT_EQ(run(near, Operation::kWrite, order, &wishes), Answer::kDone);
  EXPECT_EQ(far.listen(1), (Notifications{{"near", "written"}}));
  EXPECT_EQ(std::memcmp(near.blocks[0].data() + 100, far.blocks[0].data() + 200, 1000), 0);
  std::fill(far.blocks[0].begin(), far.blocks[0].end(), std::byte{7});
  EXPECT_EQ(run(near, Operation::kRead, order, nullptr), Answer::kDone);
  EXPECT_EQ(near.blocks[0][100], std::byte{7});
  EXPECT_EQ(near.blocks[0][1099], std::byte{7});
  EXPECT_EQ(near.blocks[0][1100], pattern(4096, 1)[1100]);
}

TEST_F(NixlBackend, OneNotificationBehindAllRegistrations) {
  constexpr size_t kBlocks = 12, kPages = 32, kPage = 512;
  blocks(kBlocks, kPages * kPage);
  Order order;
  for (size_t block = 0; block < kBlocks; ++block)
    for (size_t i = 0; i < kPages; ++i)
      order.add(near, far, block, i * 13 % kPages * kPage, i * 7 % kPages * kPage, kPage);
  for (const std::string note : {"once", "twice", ""}) {
    for (auto& block : far.blocks) std::fill(block.begin(), block.end(), std::byte{0});
    const TransferWishes wishes = with(note);
    EXPECT_EQ(run(near, Operation::kWrite, order, &wishes), Answer::kDone);
    EXPECT_EQ(far.listen(1), (Notifications{{"near", note}}));
    for (size_t block = 0; block < kBlocks; ++block)
      for (size_t i = 0; i < kPages; ++i)
        ASSERT_EQ(std::memcmp(near.blocks[block].data() + i * 13 % kPages * kPage,
                              far.blocks[block].data() + i * 7 % kPages * kPage, kPage),
                  0);
  }
}

// It is sent by the engine's thread, where nobody hears what is thrown: the request looked well.
TEST_F(NixlBackend, ANotificationForWhichThereIsNoMemoryIsNotDelivered) {
  blocks(2, 4096);
  Order order;
  for (size_t block = 0; block < 2; ++block) order.add(near, far, block, 0, 0, 4096);
  const auto request =
      std::move(Request::prepare(Operation::kWrite, order.ours, order.theirs)).value();
  ASSERT_EQ(request->num_transfers(), 2U);
  const Tell no_memory = [](const auto&) -> Result<std::vector<engine::TicketPtr>> {
    throw std::bad_alloc();
  };
  ASSERT_TRUE(request->post({"one", "two"}, no_memory).ok());
  ASSERT_TRUE(request->wait(Deadline::after_ns(kPatience)));
  EXPECT_EQ(request->outcome().code(), Code::kExhausted) << request->outcome().to_string();
}

// Layers that are registered one by one: the same pages of each, so one transfer; of each others, so not.
TEST_F(NixlBackend, RegistrationsWithTheSamePagesAreOneTransfer) {
  constexpr size_t kBlocks = 12, kPages = 32, kPage = 512;
  blocks(kBlocks, kPages * kPage);
  for (const size_t count : {size_t{20}, size_t{3}}) {
    for (const bool is_alike : {true, false}) {
      Order order;
      const auto source = [&](size_t block, size_t i) {
        return (i * 13 + (is_alike ? 0 : block)) % kPages * kPage;
      };
      for (size_t i = 0; i < count; ++i)
        for (size_t block = 0; block < kBlocks; ++block)
          order.add(near, far, block, source(block, i), i * 7 % kPages * kPage, kPage);
      for (auto& block : far.blocks) std::fill(block.begin(), block.end(), std::byte{0});
      auto request = Request::prepare(Operation::kWrite, order.ours, order.theirs);
      ASSERT_TRUE(request.ok());
      EXPECT_LE((*request)->num_transfers(), is_alike ? 1 : kBlocks);
      EXPECT_GE((*request)->num_transfers(), is_alike ? 1 : 2);
      const TransferWishes wishes = with("all of it");
      EXPECT_EQ(run(near, Operation::kWrite, order, &wishes), Answer::kDone);
      EXPECT_EQ(far.listen(1), (Notifications{{"near", "all of it"}}));
      for (size_t block = 0; block < kBlocks; ++block)
        for (size_t i = 0; i < count; ++i)
          ASSERT_EQ(std::memcmp(near.blocks[block].data() + source(block, i),
                                far.blocks[block].data() + i * 7 % kPages * kPage, kPage),
                    0);
      for (auto& block : near.blocks) std::rotate(block.begin(), block.begin() + 5, block.end());
      EXPECT_EQ(run(near, Operation::kRead, order, &wishes), Answer::kDone);
      EXPECT_EQ(far.listen(1), (Notifications{{"near", "all of it"}}));
      for (size_t block = 0; block < kBlocks; ++block)
        for (size_t i = 0; i < count; ++i)
          ASSERT_EQ(std::memcmp(near.blocks[block].data() + source(block, i),
                                far.blocks[block].data() + i * 7 % kPages * kPage, kPage),
                    0);
    }
  }
}

TEST_F(NixlBackend, IsPostedAgain) {
  blocks(1, 4096);
  Order order;
  order.add(near, far, 0, 0, 0, 4096);
  Work* work = nullptr;
  ASSERT_EQ(
      near.backend->prep_xfer(Operation::kWrite, order.ours, order.theirs, "far", work, nullptr),
      Answer::kDone);
  for (int i = 0; i < 3; ++i) {
    near.blocks[0][5] = std::byte(i);
    ASSERT_GE(static_cast<int>(near.backend->post_xfer(Operation::kWrite, order.ours, order.theirs,
                                                       "far", work, nullptr)),
              0);
    ASSERT_EQ(wait(*near.backend, work), Answer::kDone);
    EXPECT_EQ(far.blocks[0][5], std::byte(i));
  }
  near.backend->release_req_h(work);
}

TEST_F(NixlBackend, ALongNotificationAndOneToItself) {
  blocks(1, 64);
  const std::string longer(200'000, 'n');
  EXPECT_EQ(near.backend->gen_notif("far", longer), Answer::kDone);
  EXPECT_EQ(far.listen(1), (Notifications{{"near", longer}}));
  Order order;
  order.add(near, far, 0, 0, 0, 64);
  const TransferWishes wishes = with(longer);
  EXPECT_EQ(run(near, Operation::kWrite, order, &wishes), Answer::kDone);
  EXPECT_EQ(far.listen(1), (Notifications{{"near", longer}}));
  EXPECT_EQ(near.backend->gen_notif("near", "me"), Answer::kDone);
  EXPECT_EQ(near.listen(1), (Notifications{{"near", "me"}}));
  EXPECT_EQ(near.backend->gen_notif("nobody", "?"), Answer::kInvalid);
}

TEST_F(NixlBackend, ALostPeerIsToldAndTheRestIsTakenBack) {
  blocks(2, 4096);
  Order order;
  order.add(near, far, 0, 0, 0, 4096);
  order.add(near, far, 1, 0, 0, 4096);
  ASSERT_EQ(near.backend->connect("far"), Answer::kDone);
  for (Memory* memory : far.own) far.backend->deregister_mem(memory);
  far.own.clear();
  for (Memory* memory : far.theirs) far.backend->unload_md(memory);
  far.theirs.clear();
  far.backend.reset();
  const TransferWishes wishes = with("never");
  const Answer answer = run(near, Operation::kWrite, order, &wishes);
  EXPECT_TRUE(answer == Answer::kPeerLost || answer == Answer::kInvalid)
      << static_cast<int>(answer);
  EXPECT_EQ(near.backend->disconnect("far"), Answer::kDone);
  EXPECT_EQ(near.backend->disconnect("far"), Answer::kNotFound);
  far.backend = make("far");
}

TEST_F(NixlBackend, ReleaseTakesBackWhatIsUnderWay) {
  blocks(1, 8 << 20);
  Order order;
  order.add(near, far, 0, 0, 0, 8 << 20);
  for (int i = 0; i < 10; ++i) {
    Work* work = nullptr;
    ASSERT_EQ(
        near.backend->prep_xfer(Operation::kWrite, order.ours, order.theirs, "far", work, nullptr),
        Answer::kDone);
    near.backend->post_xfer(Operation::kWrite, order.ours, order.theirs, "far", work, nullptr);
    ASSERT_EQ(near.backend->release_req_h(work), Answer::kDone);
    std::fill(far.blocks[0].begin(), far.blocks[0].end(), std::byte{9});
    ASSERT_EQ(std::count(far.blocks[0].begin(), far.blocks[0].end(), std::byte{9}), 8 << 20);
  }
}

TEST_F(NixlBackend, RefusesWhatDoesNotFit) {
  blocks(1, 4096);
  Order order;
  order.add(near, far, 0, 0, 0, 64);
  order.ours.all.push_back(order.ours.all[0]);
  Work* work = nullptr;
  EXPECT_EQ(
      near.backend->prep_xfer(Operation::kWrite, order.ours, order.theirs, "far", work, nullptr),
      Answer::kInvalid);
  order.ours.all.pop_back();
  order.theirs.all[0].address -= 1;  // below the registration
  EXPECT_EQ(run(near, Operation::kWrite, order, nullptr), Answer::kInvalid);
  std::string info;
  far.backend->get_conn_info(info);
  info[info.size() / 2] ^= 1;
  EXPECT_EQ(near.backend->load_remote_conn_info("forged", info), Answer::kInvalid);
  PlaceWithText place;
  place.address = 64;
  place.bytes = 4096;
  far.backend->get_public_data(far.own[0], place.text);
  Memory* memory = nullptr;
  EXPECT_EQ(near.backend->load_remote_md(place, MemoryKind::kHost, "far", memory),
            Answer::kInvalid);
}

/// GPU 1 is made ready when the test says so.
class SlowCuda final : public sys::FakeCuda {
 public:
  SlowCuda() : FakeCuda(2) {
    for (const char* kernel : {"braid_copy_pages", "braid_copy_page_list", "braid_fetch_list"})
      define_kernel(kernel, [](const sys::LaunchShape&, std::span<void*>) { return Status(); });
  }
  Result<sys::DeviceFacts> device(int device) override {
    if (device == 1) {
      is_asked = true;
      while (!is_ready) std::this_thread::yield();
    }
    return FakeCuda::device(device);
  }
  std::atomic<bool> is_asked = false, is_ready = false;
};

// An engine for a GPU's memory takes seconds to make. All else an agent does waited for it.
TEST(NixlGpus, NobodyWaitsForTheEngineOfAnother) {
  SlowCuda cuda;
  Settings settings = quick();
  Birth birth;
  birth.agent = "agent of two GPUs";
  birth.type = "BRAID";
  birth.settings = &settings;
  engine::EngineOptions options = options_of(birth.agent, settings).value();
  options.cuda = &cuda;
  auto backend = BraidBackend::create(birth, options).value();
  const auto register_on = [&](uint64_t gpu) {
    const auto current = sys::CurrentDevice::use(cuda, static_cast<int>(gpu));
    PlaceWithText place;
    place.bytes = 4096;
    place.address = cuda.alloc(place.bytes).value();
    place.device = gpu;
    Memory* own = nullptr;
    EXPECT_EQ(backend->register_mem(place, MemoryKind::kGpu, own), Answer::kDone);
    return own;
  };
  std::vector<Memory*> all = {register_on(0)};
  std::future<Memory*> slow = std::async(std::launch::async, register_on, 1);
  while (!cuda.is_asked) std::this_thread::yield();
  std::future<void> rest = std::async(std::launch::async, [&] {
    EXPECT_EQ(backend->gen_notif(birth.agent, "to itself"), Answer::kDone);
    Notifications heard;
    for (const Deadline deadline = Deadline::after_ns(kPatience);
         heard.empty() && !deadline.passed();)
      EXPECT_EQ(backend->get_notifs(heard), Answer::kDone);
    EXPECT_EQ(heard.size(), 1U);
    EXPECT_EQ(backend->disconnect("nobody"), Answer::kNotFound);
    all.push_back(register_on(0));
  });
  EXPECT_EQ(rest.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  EXPECT_EQ(slow.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  cuda.is_ready = true;
  rest.wait();
  all.push_back(slow.get());
  for (Memory* memory : all) EXPECT_EQ(backend->deregister_mem(memory), Answer::kDone);
}

TEST(NixlSettings, NameWhatTheyCannotRead) {
  for (const auto& [name, text] : Settings{{"sock", "1"},
                                           {"port", "65536"},
                                           {"port", "x"},
                                           {"local", "true"},
                                           {"lease", "often"},
                                           {"device", "gpu"},
                                           {"cores", "3"}}) {
    const Status status = options_of("a", {{name, text}}).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << name;
    EXPECT_NE(status.message().find(name == "lease" ? text : name), std::string::npos);
  }
  auto found = options_of("a", {{"lease", "250ms"},
                                {"local", "no"},
                                {"nics", "tcp:127.0.0.2"},
                                {"hosts", "127.0.0.1, 127.0.0.3"},
                                {"cores", "off"},
                                {"port", ""}});
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  EXPECT_EQ(found->lease_ns, 250'000'000);
  EXPECT_FALSE(found->uses_local);
  EXPECT_EQ(found->cores, "off");
  EXPECT_EQ(found->hosts, (std::vector<std::string>{"127.0.0.1", "127.0.0.3"}));
  ASSERT_EQ(found->nics.size(), 1U);
  EXPECT_EQ(found->nics[0].address, "127.0.0.2");
}

TEST(NixlNotices, PartsOfSeveralAreJoinedEach) {
  const std::string first(150'000, 'a'), second(70'000, 'b');
  Joiner joiner;
  engine::Message part;
  const auto one = cut(first, 1), two = cut(second, 2);
  ASSERT_EQ(one.size(), 3U);
  ASSERT_EQ(two.size(), 2U);
  const auto add = [&](const std::string& bytes, char sender) {
    part.bytes = bytes;
    part.incarnation[0] = sender;
    return joiner.add(part);
  };
  EXPECT_FALSE(add(one[0], 'x'));
  EXPECT_FALSE(add(two[0], 'x'));
  EXPECT_FALSE(add(one[0], 'y'));
  EXPECT_FALSE(add(one[1], 'x'));
  EXPECT_EQ(add(two[1], 'x'), second);
  EXPECT_EQ(add(one[2], 'x'), first);
  EXPECT_EQ(add(cut("", 3)[0], 'x'), "");
  EXPECT_FALSE(add("short", 'x'));
}

TEST(NixlNotices, OneWhoseBeginningWasDroppedIsNotHandedOver) {
  const std::string text(150'000, 'a');
  Joiner joiner;
  engine::Message part;
  const auto add = [&](const std::string& bytes) {
    part.bytes = bytes;
    return joiner.add(part);
  };
  const auto first = cut(text, 0);
  EXPECT_FALSE(add(first[0]));
  for (uint64_t number = 1; number <= 64; ++number) EXPECT_FALSE(add(cut(text, number)[0]));
  EXPECT_FALSE(add(first[1]));
  EXPECT_FALSE(add(first[2]));
  const auto last = cut(text, 64);
  EXPECT_FALSE(add(last[1]));
  EXPECT_EQ(add(last[2]), text);
  const auto gap = cut(text, 63);
  EXPECT_FALSE(add(gap[2]));
  EXPECT_FALSE(add(gap[1]));
}

std::vector<std::pair<uint64_t, uint64_t>> places_of(const Part& part) {
  std::vector<std::pair<uint64_t, uint64_t>> out;
  for (size_t i = 0; i < part.our_ids.size(); ++i)
    out.emplace_back(part.our_offset + part.our_ids[i] * part.our_stride,
                     part.their_offset + part.their_ids[i] * part.their_stride);
  return out;
}

TEST(NixlParts, RangesOfOneSizeBecomePages) {
  Part part;
  std::vector<std::pair<uint64_t, uint64_t>> expected;
  for (uint64_t i = 0; i < 40; ++i) {
    expected.emplace_back(96 + i * 17 % 40 * 256, 32 + i * 3 % 40 * 128);
    part.ranges.push_back({expected.back().first, expected.back().second, 64});
  }
  part.find_pages();
  EXPECT_EQ(part.page_bytes, 64U);
  EXPECT_EQ(part.our_stride, 256U);
  EXPECT_EQ(part.their_stride, 128U);
  EXPECT_EQ(places_of(part), expected);
}

TEST(NixlParts, SomePagesSideBySide) {
  Part part;
  std::vector<std::pair<uint64_t, uint64_t>> expected;
  for (uint64_t i = 0; i < 20; ++i) {
    const uint64_t pages = 1 + i % 3;
    part.ranges.push_back({i * 1024, (19 - i) * 512, pages * 128});
    for (uint64_t k = 0; k < pages; ++k)
      expected.emplace_back(i * 1024 + k * 128, (19 - i) * 512 + k * 128);
  }
  part.find_pages();
  EXPECT_EQ(part.page_bytes, 128U);
  EXPECT_EQ(places_of(part), expected);
}

TEST(NixlParts, OtherRangesStayRanges) {
  for (const uint64_t step : {60, 64}) {  // overlapping ones, and one far longer than the rest
    Part part;
    for (uint64_t i = 0; i < 20; ++i) part.ranges.push_back({i * step, i * 64, 64});
    if (step == 64) part.ranges.push_back({1 << 20, 1 << 20, 64 << 10});
    const size_t count = part.ranges.size();
    part.find_pages();
    EXPECT_EQ(part.page_bytes, 0U);
    EXPECT_EQ(part.ranges.size(), count);
  }
}

}  // namespace
}  // namespace braid::nixl
