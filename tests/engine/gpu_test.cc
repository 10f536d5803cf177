// Memory of a GPU, on a fake one: what is copied where, by which way.
#include <algorithm>
#include <mutex>
#include <numeric>
#include <random>

#include <sys/socket.h>
#include <unistd.h>

#include "base/sanitizer.h"
#include "engine/target.h"
#include "fake_gpu.h"
#include "support/forked.h"
#include "sys/host/fake.h"
#include "sys/sysfs/fake.h"

namespace braid::engine::test {
namespace {

class GpuMemory : public OfOneGpu<sys::FakeCuda> {
 protected:
  /// Pages from one GPU to the other, three times: the first as stretches, which brings the board,
  /// then by lists, of which so many entries are brought to the GPU before they are read.
  void expect_all_arrive(uint64_t page_bytes, uint64_t num_pages, uint64_t num_brought) {
    OnGpu from(cuda, *a, page_bytes * num_pages, 1), to(cuda, *b, page_bytes * num_pages, 2);
    std::vector<uint64_t> ids(num_pages), places(num_pages);
    std::iota(ids.begin(), ids.end(), 0);
    places = ids;
    std::shuffle(places.begin(), places.end(), std::mt19937(1));
    PageList list;
    list.page_bytes = page_bytes;
    list.source_ids = ids;
    list.target_ids = places;
    for (int round = 0; round < 3; ++round) {
      std::memset(to.memory(), round, to.bytes);
      auto arrived = b->expect(3, num_pages);
      ASSERT_TRUE(
          is_ok(wait(a->write_pages(from.region, import_from(*a, to.descriptor), list, under(3)))));
      ASSERT_TRUE(is_ok(wait(arrived)));
      for (uint64_t i = 0; i < num_pages; ++i)
        ASSERT_EQ(0, std::memcmp(from.memory() + i * page_bytes,
                                 to.memory() + places[i] * page_bytes, page_bytes));
    }
    EXPECT_EQ(a->stats().pages_listed, 2 * num_pages);
    EXPECT_EQ(fetched, num_brought);
  }
};

TEST_F(GpuMemory, WritesAndReadsBetweenGpuAndHostEitherWay) {
  constexpr size_t kSize = (9 << 20) + 123;
  OnGpu gpu_a(cuda, *a, kSize, 1), gpu_b(cuda, *b, kSize, 2);
  Memory host_a(*a, kSize, 3), host_b(*b, kSize, 4);
  const auto expect_equal = [](const std::byte* from, const std::byte* to, size_t bytes) {
    EXPECT_TRUE(std::equal(from, from + bytes, to));
  };
  const size_t part = kSize - 1000;
  ASSERT_TRUE(is_ok(
      wait(a->write({gpu_a.region, 7}, {import_from(*a, gpu_b.descriptor), 11}, part, under(1)))));
  expect_equal(gpu_a.memory() + 7, gpu_b.memory() + 11, part);
  ASSERT_TRUE(is_ok(
      wait(a->write({host_a.region, 5}, {import_from(*a, gpu_b.descriptor), 3}, part, under(1)))));
  expect_equal(host_a.bytes.data() + 5, gpu_b.memory() + 3, part);
  ASSERT_TRUE(is_ok(
      wait(a->write({gpu_a.region, 9}, {import_from(*a, host_b.descriptor), 2}, part, under(1)))));
  expect_equal(gpu_a.memory() + 9, host_b.bytes.data() + 2, part);
  EXPECT_EQ(b->count(1), 3);
  std::vector<std::byte> fresh = pattern(kSize, 9);
  std::copy(fresh.begin(), fresh.end(), gpu_b.memory());
  ASSERT_TRUE(
      is_ok(wait(a->read({host_a.region, 1}, {import_from(*a, gpu_b.descriptor), 4}, part))));
  expect_equal(gpu_b.memory() + 4, host_a.bytes.data() + 1, part);
  ASSERT_TRUE(
      is_ok(wait(a->read({gpu_a.region, 1}, {import_from(*a, gpu_b.descriptor), 4}, part))));
  expect_equal(gpu_b.memory() + 4, gpu_a.memory() + 1, part);
  ASSERT_TRUE(
      is_ok(wait(a->read({gpu_a.region, 2}, {import_from(*a, host_b.descriptor), 6}, part))));
  expect_equal(host_b.bytes.data() + 6, gpu_a.memory() + 2, part);
}

TEST_F(GpuMemory, ManyPagesAcrossSeveralLists) { expect_all_arrive(512, 30'000, 0); }

// Many blocks would read one entry.
TEST_F(GpuMemory, AListOfLongPagesIsBroughtToTheGpuFirst) {
  expect_all_arrive((8 << 10) + 16, 3000, 2 * 3000);
}

/// Of a read: the target's lock, where its notification is taken, orders our look behind its copy.
TransferOptions telling() {
  TransferOptions out;
  out.notification = "were read";
  return out;
}

/// Of OnGpu's content, the last page first.
std::vector<std::byte> pattern_backwards(uint64_t page_bytes, uint64_t num_pages, uint32_t salt) {
  const std::vector<std::byte> forwards = pattern(page_bytes * num_pages, salt);
  std::vector<std::byte> out;
  for (uint64_t i = num_pages; i-- != 0;)
    out.insert(out.end(), forwards.begin() + static_cast<long>(i * page_bytes),
               forwards.begin() + static_cast<long>((i + 1) * page_bytes));
  return out;
}

/// Layers that are allocations of their own: the same pages of all of them, in one call.
struct LayersOnGpu {
  LayersOnGpu(sys::FakeCuda& cuda, Engine& a, Engine& b, uint64_t page_bytes, uint64_t num_pages,
              size_t count)
      : ids(num_pages), places(num_pages) {
    std::iota(ids.begin(), ids.end(), 0);
    places.assign(ids.rbegin(), ids.rend());
    list.page_bytes = page_bytes;
    list.source_ids = ids;
    list.target_ids = places;
    for (uint32_t i = 0; i < count; ++i) {
      from.push_back(std::make_unique<OnGpu>(cuda, a, page_bytes * num_pages, 2 * i));
      to.push_back(std::make_unique<OnGpu>(cuda, b, page_bytes * num_pages, 2 * i + 1));
      planes.push_back({from[i]->region, import_from(a, to[i]->descriptor)});
    }
  }
  void clear() {
    for (const auto& each : to) std::memset(each->memory(), 0, each->bytes);
  }
  bool has_arrived() const {
    for (size_t plane = 0; plane < planes.size(); ++plane)
      for (size_t i = 0; i < ids.size(); ++i)
        if (std::memcmp(from[plane]->memory() + ids[i] * list.page_bytes,
                        to[plane]->memory() + places[i] * list.page_bytes, list.page_bytes) != 0)
          return false;
    return true;
  }
  std::vector<uint64_t> ids, places;
  std::vector<std::unique_ptr<OnGpu>> from, to;
  std::vector<PagePlane> planes;
  PageList list;
};

TEST_F(GpuMemory, PagesOfManyPlanesAreOneKernel) {
  constexpr uint64_t kPages = 30;
  constexpr size_t kPlanes = 80;
  LayersOnGpu layers(cuda, *a, *b, 512, kPages, kPlanes);
  for (int round = 0; round < 3; ++round) {
    layers.clear();
    ASSERT_TRUE(is_ok(wait(a->write_pages(layers.planes, layers.list, under(3)))));
    EXPECT_EQ(b->count(3), kPages * kPlanes);  // its lock also orders our look behind its copy
    EXPECT_TRUE(layers.has_arrived());
    b->discard(3);
    EXPECT_EQ(page_lists, round);
  }
  EXPECT_EQ(a->stats().pages_listed, 2 * kPages * kPlanes);
  EXPECT_EQ(fetched, 2 * kPages) << "each entry is read once for all planes";
  for (const auto& each : layers.from) std::memset(each->memory(), 0, each->bytes);
  layers.list.source_ids = layers.places;
  layers.list.target_ids = layers.ids;
  ASSERT_TRUE(is_ok(wait(a->read_pages(layers.planes, layers.list, telling()))));
  EXPECT_TRUE(b->take_notification(in_seconds(20)).has_value());
  EXPECT_TRUE(layers.has_arrived());
  EXPECT_EQ(layers.to[7]->content(), pattern_backwards(512, kPages, 14));
}

TEST_F(GpuMemory, APlaneThatLiesMovesNothingOfItsPage) {
  LayersOnGpu layers(cuda, *a, *b, 512, 40, 5);
  ASSERT_TRUE(is_ok(wait(a->write_pages(layers.planes, layers.list))));
  layers.clear();
  auto larger = std::make_shared<RegionDescriptor>(*layers.planes[3].theirs);
  larger->bytes *= 2;  // what the target knows is what counts
  layers.planes[3].theirs = larger;
  layers.planes[3].their_offset = 512;
  EXPECT_TRUE(failed(wait(a->write_pages(layers.planes, layers.list, under(3))),
                     Code::kInvalidArgument, "lies outside of region 1, 2, 3, 4, 5"));
  EXPECT_EQ(b->count(3), 0);
}

// By the source's stage: whole planes that fit into a slot go together, longer ones one after another.
TEST_F(GpuMemory, PlanesOfTheHostGoThroughTheStage) {
  for (const auto& [page_bytes, num_pages] :
       {std::pair<uint64_t, uint64_t>{4096, 100}, {40 << 10, 2000}, {600 << 10, 40}}) {
    constexpr size_t kPlanes = kIsSanitized ? 3 : 6;
    std::vector<uint64_t> ids(num_pages), places(num_pages);
    std::iota(ids.begin(), ids.end(), 0);
    places.assign(ids.rbegin(), ids.rend());
    std::vector<std::unique_ptr<Memory>> from;
    std::vector<std::unique_ptr<OnGpu>> to;
    std::vector<PagePlane> planes;
    for (uint32_t i = 0; i < kPlanes; ++i) {
      from.push_back(std::make_unique<Memory>(*a, page_bytes * num_pages, 2 * i));
      to.push_back(std::make_unique<OnGpu>(cuda, *b, page_bytes * num_pages, 2 * i + 1));
      planes.push_back({from[i]->region, import_from(*a, to[i]->descriptor)});
    }
    PageList list;
    list.page_bytes = page_bytes;
    list.source_ids = ids;
    list.target_ids = places;
    const uint64_t before = a->stats().bytes_staged;
    for (int round = 0; round < 2; ++round) {
      for (const auto& each : to) std::memset(each->memory(), 0, each->bytes);
      ASSERT_TRUE(is_ok(wait(a->write_pages(planes, list, under(8)))));
      EXPECT_EQ(b->count(8), kPlanes * num_pages);
      b->discard(8);
      for (size_t plane = 0; plane < kPlanes; ++plane)
        for (uint64_t i = 0; i < num_pages; ++i)
          ASSERT_EQ(0, std::memcmp(from[plane]->bytes.data() + i * page_bytes,
                                   to[plane]->memory() + places[i] * page_bytes, page_bytes));
    }
    EXPECT_EQ(a->stats().bytes_staged - before, 2 * kPlanes * num_pages * page_bytes);
    // And back, through the target's pinned slots.
    for (const auto& each : from) std::fill(each->bytes.begin(), each->bytes.end(), std::byte{0});
    list.source_ids = places;
    list.target_ids = ids;
    ASSERT_TRUE(is_ok(wait(a->read_pages(planes, list, telling()))));
    EXPECT_TRUE(b->take_notification(in_seconds(20)).has_value());
    for (size_t plane = 0; plane < kPlanes; ++plane)
      for (uint64_t i = 0; i < num_pages; ++i)
        ASSERT_EQ(0, std::memcmp(from[plane]->bytes.data() + i * page_bytes,
                                 to[plane]->memory() + places[i] * page_bytes, page_bytes));
    for (const auto& each : from) ASSERT_TRUE(is_ok(a->unregister(*each->region, in_seconds(5))));
  }
}

TEST_F(GpuMemory, PlanesOfTwoKindsOfMemoryAreRefused) {
  OnGpu on_gpu(cuda, *a, 4096, 1), to(cuda, *b, 4096, 2);
  Memory on_host(*a, 4096, 3), host_there(*b, 4096, 4);
  const RemoteRegion gpu = import_from(*a, to.descriptor), host = import(*a, host_there);
  const std::vector<uint64_t> ids = {0};
  PageList list;
  list.page_bytes = 512;
  list.source_ids = list.target_ids = ids;
  const std::vector<PagePlane> ours = {{on_gpu.region, gpu}, {on_host.region, gpu}};
  EXPECT_TRUE(failed(a->write_pages(ours, list).status(), Code::kInvalidArgument,
                     "plane 1: our region 2 is memory of the host, that of plane 0 of a GPU"));
  const std::vector<PagePlane> theirs = {{on_gpu.region, host}, {on_gpu.region, gpu}};
  EXPECT_TRUE(failed(a->write_pages(theirs, list).status(), Code::kInvalidArgument,
                     "plane 1: region 1 of 'b' is memory of a GPU, that of plane 0 of the host"));
}

// What the source says of its pages is believed by nobody: neither the list nor its bounds.
class AListThatLies : public GpuMemory, public testing::WithParamInterface<uint64_t> {};
INSTANTIATE_TEST_SUITE_P(PagesOf, AListThatLies, testing::Values(512, 16 << 10));

TEST_P(AListThatLies, MovesNothingForAPageOutside) {
  constexpr uint64_t kPages = 100;
  const uint64_t kPage = GetParam();
  OnGpu from(cuda, *a, kPage * kPages, 1), to(cuda, *b, kPage * kPages, 2);
  auto larger = std::make_shared<RegionDescriptor>(*import_from(*a, to.descriptor));
  std::vector<uint64_t> ids(kPages), places;
  std::iota(ids.begin(), ids.end(), 0);
  places.assign(ids.rbegin(), ids.rend());
  PageList list;
  list.page_bytes = kPage;
  list.source_ids = ids;
  list.target_ids = places;
  ASSERT_TRUE(is_ok(wait(a->write_pages(from.region, larger, list))));
  std::memset(to.memory(), 7, to.bytes);
  larger->bytes *= 2;  // what the target knows is what counts
  for (uint64_t& place : places) place += kPages;
  EXPECT_TRUE(failed(wait(a->write_pages(from.region, RemoteRegion(larger), list, under(3))),
                     Code::kInvalidArgument, "lies outside of region"));
  EXPECT_EQ(b->count(3), 0);
  EXPECT_EQ(to.content(), std::vector<std::byte>(to.bytes, std::byte{7}));
}

// More pages than slots, each way through them; the second time by a list and the source's stage.
TEST_F(GpuMemory, ManyPagesThroughSlots) {
  constexpr uint64_t kPage = 4096 + 16, kPages = 20'000;
  static_assert(kPage * kPages > Stage::kSlotBytes);
  OnGpu on_gpu(cuda, *b, kPage * kPages, 2);
  Memory on_host(*a, kPage * kPages, 3), back(*a, kPage * kPages, 4);
  std::vector<uint64_t> ids(kPages), places(kPages);
  std::iota(ids.begin(), ids.end(), 0);
  places = ids;
  std::shuffle(places.begin(), places.end(), std::mt19937(1));
  PageList list;
  list.page_bytes = kPage;
  list.source_ids = ids;
  list.target_ids = places;
  const RemoteRegion remote = import_from(*a, on_gpu.descriptor);
  for (int round = 0; round < 3; ++round) {
    std::memset(on_gpu.memory(), round, kPage * kPages);
    ASSERT_TRUE(is_ok(wait(a->write_pages(on_host.region, remote, list, under(8)))));
    EXPECT_EQ(b->count(8), (round + 1) * kPages);
    for (uint64_t i = 0; i < kPages; ++i)
      ASSERT_EQ(0, std::memcmp(on_host.bytes.data() + i * kPage,
                               on_gpu.memory() + places[i] * kPage, kPage));
  }
  EXPECT_EQ(a->stats().pages_listed, 2 * kPages);
  EXPECT_EQ(a->stats().bytes_staged, 3 * kPages * kPage);
  list.source_ids = places;
  list.target_ids = ids;
  ASSERT_TRUE(is_ok(wait(a->read_pages(back.region, remote, list))));
  EXPECT_EQ(back.bytes, on_host.bytes);
}

// Slots that kernels have filled are pulled when none is being filled: then they are free again, and the
// rest goes on.
TEST_F(GpuMemory, MorePagesThanTheStageHas) {
  constexpr uint64_t kPage = 400 << 10, kPages = Stage::kSlots * Stage::kSlotBytes / kPage + 200;
  Memory on_host(*a, 3 * kPage, 3);
  const auto memory = reinterpret_cast<std::byte*>(cuda.alloc(kPage * kPages).value());
  auto region = b->register_gpu_memory(reinterpret_cast<uint64_t>(memory), kPage * kPages);
  ASSERT_TRUE(is_ok(region));
  const RemoteRegion remote = import_from(*a, b->descriptor(**region).value());
  std::vector<uint64_t> ids(kPages), places(kPages);
  std::iota(places.rbegin(), places.rend(), 0);
  for (uint64_t i = 0; i < kPages; ++i) ids[i] = i % 3;
  PageList list;
  list.page_bytes = kPage;
  list.source_ids = ids;
  list.target_ids = places;
  for (int round = 0; round < 2; ++round) {
    std::memset(memory, 0, kPage * kPages);
    ASSERT_TRUE(is_ok(wait(a->write_pages(on_host.region, remote, list, under(8)))));
    for (uint64_t i = 0; i < kPages; ++i)
      ASSERT_EQ(
          0, std::memcmp(on_host.bytes.data() + ids[i] * kPage, memory + places[i] * kPage, kPage));
  }
  EXPECT_EQ(a->stats().bytes_staged, 2 * kPages * kPage);
}

TEST_F(GpuMemory, WhatCannotBeReachedIsRefusedWithAReason) {
  OnGpu from(cuda, *a, 1000, 1);
  auto c = make("c", -1);
  Memory to(*c, 1000, 2);
  EXPECT_TRUE(failed(wait(a->write({from.region, 0}, {import(*a, to), 0}, 1000)),
                     Code::kInvalidArgument, "was not lent"));
  EXPECT_TRUE(failed(c->register_gpu_memory(from.address, 1000).status(), Code::kUnsupported,
                     "this engine is of no GPU"));
  EXPECT_TRUE(failed(a->register_gpu_memory(from.address, 1001).status(), Code::kInvalidArgument,
                     "over the end of their allocation"));
}

/// A target's parts without an engine, and a read of the source's that goes through a slot.
struct ByHand {
  explicit ByHand(sys::FakeCuda& cuda) : ground(EngineOptions{}, "a token of tests") {
    ground.self.host = "here";
    ground.self.process = ::getpid();
    ground.gpu = Gpu::open(cuda, 0).value();
    region = ground.regions.add(reinterpret_cast<std::byte*>(cuda.alloc(kBytes).value()), kBytes, 0)
                 .value();
    const auto content = pattern(kBytes, 1);
    std::memcpy(region->base, content.data(), kBytes);
    fetch.transfer = 1;
    fetch.planes = {{region->id, 0, 0, 0}};
    fetch.word_address = reinterpret_cast<uint64_t>(&word);
    fetch.word = word;
    fetch.is_last = true;
    fetch.stretches = {{reinterpret_cast<uint64_t>(memory.data()), 0, kBytes}};
  }
  static constexpr size_t kBytes = 5000;
  Ground ground;
  std::shared_ptr<Region> region;
  std::vector<std::byte> memory = std::vector<std::byte>(kBytes);  // of the source
  uint64_t word = 77;
  Pull fetch;
};

// We were stopped while the GPU copied, and the source ended its read meanwhile.
TEST_F(GpuMemory, AFetchThatNobodyWaitsForIsNotWritten) {
  ByHand hand(cuda);
  Copier copier(hand.ground);
  copier.set_source(::getpid());
  CopyOrder order;
  order.is_fetch = true;
  order.pull = hand.fetch;
  ASSERT_TRUE(is_ok(copier.advance(order)));
  ASSERT_FALSE(copier.is_done(order).value());
  hand.word = 0;
  EXPECT_EQ(copier.advance(order).status().code(), Code::kCancelled);
  EXPECT_EQ(hand.memory, std::vector<std::byte>(ByHand::kBytes));
  Copier::drop(order);
}

// As a cache of the host that is registered whole, and then by layers: the driver pins no page twice.
TEST_F(GpuMemory, HostMemoryWithinARegionSharesItsPin) {
  ByHand hand(cuda);
  Regions& regions = hand.ground.regions;
  std::vector<std::byte> memory(100);
  const auto add = [&](size_t from, size_t bytes) {
    return regions.add(memory.data() + from, bytes, -1).value();
  };
  const auto remove = [&](const std::shared_ptr<Region>& region) {
    EXPECT_TRUE(is_ok(regions.hide(*region, nullptr)));
    regions.let_go(region->id);
  };
  const auto is_pinned = [&] {
    const sys::CurrentDevice current = sys::CurrentDevice::use(cuda, 0).value();
    const bool was_pinned = cuda.unregister_host(memory.data()).ok();
    if (was_pinned) {
      EXPECT_TRUE(is_ok(cuda.register_host(memory.data(), memory.size())));
    }
    return was_pinned;
  };
  const auto whole = add(0, 100), layer = add(40, 60), end = add(90, 10);
  ASSERT_NE(whole->address, 0u);
  EXPECT_EQ(layer->address, whole->address + 40);
  EXPECT_EQ(end->address, whole->address + 90);
  remove(whole);
  EXPECT_TRUE(is_pinned()) << "its layers are in use";
  remove(end);
  EXPECT_TRUE(is_pinned()) << "its layers are in use";
  remove(layer);
  EXPECT_FALSE(is_pinned());
  const auto again = add(0, 100);
  EXPECT_NE(again->address, 0u);
}

// Else a kernel would read lists, and write pages, in the copy that was the child's.
TEST_F(GpuMemory, PinnedMemoryIsNotAForkedChilds) {
  ByHand hand(cuda);
  EXPECT_FALSE(braid::test::child_has(hand.ground.gpu->free_slot()->memory));
  const auto* const one = sys::pointer_to<uint64_t>(hand.ground.gpu->one());
  EXPECT_EQ(*one, 1u);
  EXPECT_FALSE(braid::test::child_has(one));
}

TEST_F(GpuMemory, ATargetThatIsReplacedGivesItsSlotsBack) {
  ByHand hand(cuda);
  const uint64_t probe = 99;
  Open open;
  open.host = hand.ground.self.host;
  open.process = ::getpid();
  open.wants_local = true;
  open.probe_address = reinterpret_cast<uint64_t>(&probe);
  open.probe_value = probe;
  for (int i = 0; i < 8; ++i) {
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    ControlSocket ours{sys::Fd(fds[0])}, theirs{sys::Fd(fds[1])};
    ours.seal("a", "b");
    theirs.seal("b", "a");
    Session source;
    source.attach(std::move(theirs), 0);
    source.send(FrameType::kOpen, encode(open));
    source.send(FrameType::kFetch, encode(hand.fetch));
    ASSERT_TRUE(is_ok(source.flush()));
    Target target(hand.ground, Incarnation{});
    target.attach(std::move(ours), 0);
    ASSERT_TRUE(target.converse());
    ASSERT_NE(hand.ground.gpu->free_slot(), nullptr) << "after " << i << " of them";
    (void)target.progress();
  }
}

/// Notes in which streams copy engines copy.
class NotesQueues : public sys::FakeCuda {
 public:
  Status copy_batch(std::span<const sys::DeviceCopy> copies, sys::Stream stream) override {
    {
      const std::lock_guard lock(notes_mutex_);
      queues_.push_back(stream.handle);
    }
    return FakeCuda::copy_batch(copies, stream);
  }
  Result<sys::Stream> create_stream(sys::StreamPriority priority) override {
    ++num_streams;
    return FakeCuda::create_stream(priority);
  }
  std::vector<void*> queues() const {
    const std::lock_guard lock(notes_mutex_);
    return queues_;
  }
  std::atomic<int> num_streams = 0;

 private:
  mutable std::mutex notes_mutex_;
  std::vector<void*> queues_;
};

using LongCopies = OfOneGpu<NotesQueues>;

TEST_F(LongCopies, OfEachSourceHaveAQueueOfTheirOwn) {
  constexpr size_t kBytes = 3 << 20;
  const auto c = make("c");
  OnGpu from_a(cuda, *a, kBytes, 1), from_b(cuda, *b, kBytes, 2), to(cuda, *c, 4 * kBytes, 3);
  std::atomic<int> num_kernels = 0;
  cuda.define_kernel("braid_copy_pages", [&](const sys::LaunchShape& shape, std::span<void*> all) {
    ++num_kernels;
    return copy_pages(shape, all);
  });
  const auto place = [&](Engine& engine, uint64_t number) {
    return RemoteSpot{import_from(engine, to.descriptor), number * kBytes};
  };
  const int num_streams = cuda.num_streams;
  ASSERT_TRUE(is_ok(wait(a->write({from_a.region, 0}, place(*a, 0), kBytes, under(1)))));
  ASSERT_TRUE(is_ok(wait(b->write({from_b.region, 0}, place(*b, 1), kBytes, under(1)))));
  ASSERT_TRUE(is_ok(wait(a->write({from_a.region, 0}, place(*a, 2), kBytes, under(1)))));
  ASSERT_TRUE(is_ok(wait(b->read({from_b.region, 0}, place(*b, 0), kBytes))));
  EXPECT_EQ(c->count(1), 3);
  const auto part = [&](size_t number) {
    return std::vector<std::byte>(to.memory() + number * kBytes,
                                  to.memory() + (number + 1) * kBytes);
  };
  EXPECT_EQ(part(0), from_a.content());
  EXPECT_EQ(part(1), pattern(kBytes, 2));
  EXPECT_EQ(part(2), from_a.content());
  EXPECT_EQ(from_b.content(), from_a.content());
  const std::vector<void*> queues = cuda.queues();
  ASSERT_EQ(queues.size(), 4);
  EXPECT_NE(queues[0], queues[1]);
  EXPECT_EQ(queues[0], queues[2]);
  EXPECT_EQ(queues[1], queues[3]);
  EXPECT_EQ(num_kernels, 0);
  EXPECT_EQ(cuda.num_streams, num_streams + 1) << "but for the first one made when asked for";
}

TEST_F(LongCopies, ShortStretchesAreAKernels) {
  OnGpu from(cuda, *a, 300'000, 1), to(cuda, *b, 300'000, 2);
  ASSERT_TRUE(is_ok(
      wait(a->write({from.region, 0}, {import_from(*a, to.descriptor), 0}, 300'000, under(1)))));
  EXPECT_EQ(b->count(1), 1);
  EXPECT_EQ(to.content(), from.content());
  EXPECT_TRUE(cuda.queues().empty());
}

// It has no NIC that could say where.
TEST_F(GpuMemory, ItsWorkerRunsNearTheGpu) {
  sys::FakeSysfs sysfs;
  sys::FakeCores affinity({0, 1, 2, 3});
  const std::string gpu = cuda.device(0).value().pci_address;
  sysfs.write("/sys/bus/pci/devices/" + gpu + "/local_cpulist", "2-3");
  EngineOptions options = Engines(Way{"local", true, "", 0, {}}).options("c");
  options.cuda = &cuda;
  options.device = 0;
  options.sysfs = &sysfs;
  options.affinity = &affinity;
  const auto engine = Engines::make(options);
  EXPECT_EQ(engine->health(in_seconds(5)).front(), "worker: cores 2-3: near GPU " + gpu);
}

TEST_F(GpuMemory, AGpuThatIsNotThereIsNamedWithItsEngine) {
  EngineOptions options = Engines(Way{"local", true, "", 0, {}}).options("c");
  options.cuda = &cuda;
  options.device = 63;
  EXPECT_TRUE(Engine::create(options).status().message().starts_with("engine 'c': device 63: "));
}

TEST_F(GpuMemory, NothingIsLeftBehind) {
  {
    OnGpu from(cuda, *a, 1000, 1), to(cuda, *b, 1000, 2);
    Memory host(*a, 100'000, 3);
    ASSERT_TRUE(is_ok(wait(a->write({from.region, 0}, {import_from(*a, to.descriptor), 0}, 1000))));
    ASSERT_TRUE(is_ok(a->unregister(*from.region, in_seconds(5))));
    ASSERT_TRUE(is_ok(b->unregister(*to.region, in_seconds(5))));
    a.reset();
    b.reset();
    EXPECT_TRUE(is_ok(cuda.free(from.address)));
    EXPECT_TRUE(is_ok(cuda.free(to.address)));
  }
  const sys::FakeCudaCounts alive = cuda.alive();
  EXPECT_EQ(alive.hosts, 0);
  EXPECT_EQ(alive.streams, 0);
  EXPECT_EQ(alive.events, 0);
  EXPECT_EQ(alive.memory, 0);
}

}  // namespace
}  // namespace braid::engine::test
