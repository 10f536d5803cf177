// Lists of pages in shared memory: room for them, and what a target makes of lists that lie.
#include "engine/board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <numeric>
#include <thread>

#include "base/sanitizer.h"
#include "engine/copier.h"
#include "engines.h"
#include "sys/fd.h"

namespace braid::engine::test {
namespace {

TEST(Board, RoomIsGivenBackAndJoined) {
  auto board = Board::create();
  ASSERT_TRUE(is_ok(board));
  EXPECT_EQ((*board)->list(0), nullptr);
  EXPECT_EQ((*board)->list(Board::kMostPages + 1), nullptr);
  for (int round = 0; round < 3; ++round) {
    std::vector<std::shared_ptr<Listing>> lists;
    while (auto list = (*board)->list(100'000)) lists.push_back(std::move(list));
    EXPECT_EQ(lists.size(), Board::kBytes / sizeof(PageEntry) / 100'002);
    for (size_t i = 1; i < lists.size(); ++i)
      EXPECT_GE(lists[i]->at(), lists[i - 1]->at() + lists[i - 1]->count());
    lists.erase(lists.begin() + 1);  // a hole, which is too small for more
    EXPECT_EQ((*board)->list(150'000), nullptr);
    EXPECT_NE((*board)->list(100'000), nullptr);
  }
  EXPECT_NE((*board)->list(Board::kMostPages), nullptr) << "all is free again";
}

TEST(Board, TheOtherSideReadsWhatIsThere) {
  auto board = Board::create();
  ASSERT_TRUE(is_ok(board));
  auto view = BoardView::open(::getpid(), (*board)->fd(), (*board)->bytes());
  ASSERT_TRUE(is_ok(view));
  const auto list = (*board)->list(10'000);
  EXPECT_EQ(view->num_ready(list->at(), list->count()), 0);
  std::vector<uint64_t> sources(10'000), targets;
  std::iota(sources.begin(), sources.end(), 7);
  targets.assign(sources.rbegin(), sources.rend());
  list->write(sources, targets);
  ASSERT_EQ(view->num_ready(list->at(), list->count()), 10'000);
  EXPECT_EQ(view->num_ready(list->at(), 5), 5) << "no more than was asked for";
  for (size_t i = 0; i < sources.size(); ++i) {
    ASSERT_EQ(view->entry(list->at() + i).source, sources[i]);
    ASSERT_EQ(view->entry(list->at() + i).target, targets[i]);
  }
  EXPECT_FALSE(list->is_answered(99));
  view->answer(list->at(), 99);
  EXPECT_TRUE(list->is_answered(99));
  EXPECT_EQ(view->num_ready(list->at(), list->count()), 10'000)
      << "an answer is no number of pages";
}

TEST(Board, OnlyMemoryThatIsOneIsOpened) {
  auto board = Board::create();
  ASSERT_TRUE(is_ok(board));
  const int fd = (*board)->fd();
  EXPECT_TRUE(
      failed(BoardView::open(::getpid(), fd, 0).status(), Code::kInvalidArgument, "0 bytes"));
  EXPECT_TRUE(failed(BoardView::open(::getpid(), fd, uint64_t{1} << 40).status(),
                     Code::kInvalidArgument, "are the limit"));
  EXPECT_FALSE(BoardView::open(::getpid(), 9999, Board::kBytes).ok());
}

/// A target's copier, and the board and pages of a source in the same process.
struct Lists {
  static constexpr uint64_t kPage = 512, kPages = 64;
  Lists() : ground(EngineOptions{}, "a token of tests"), copier(ground) {
    region = ground.regions.add(to.data(), to.size(), -1).value();
    board = Board::create().value();
    copier.set_source(::getpid());
    EXPECT_TRUE(is_ok(copier.open_board({board->fd(), board->bytes()})));
    list = board->list(kPages);
    std::iota(ids.begin(), ids.end(), 0);
    order.pull.is_last = true;
    order.pull.planes = {{region->id, 0, reinterpret_cast<uint64_t>(from.data()), 0}};
    order.pull.pages = {kPages, list->at(), kPage, kPage, kPage, 0};
  }
  Result<bool> advance() { return copier.advance(order); }

  Ground ground;
  std::vector<std::byte> from = pattern(kPage * kPages, 1);
  std::vector<std::byte> to = std::vector<std::byte>(kPage * kPages);
  std::vector<uint64_t> ids = std::vector<uint64_t>(kPages);
  std::shared_ptr<Region> region;
  std::shared_ptr<Board> board;
  std::shared_ptr<Listing> list;
  CopyOrder order;
  Copier copier;
};

TEST(Lists, AreCopiedAsTheyAreWritten) {
  Lists lists;
  EXPECT_FALSE(lists.advance().value()) << "nothing is there yet";
  lists.list->write(lists.ids, lists.ids);
  EXPECT_TRUE(lists.advance().value());
  EXPECT_TRUE(lists.copier.is_done(lists.order).value());
  EXPECT_EQ(lists.from, lists.to);
}

// Its owner could make it shorter while it is read here, which would end this process.
TEST(Lists, ABoardWhoseSizeIsNotSealedIsRefused) {
  Ground ground(EngineOptions{}, "a token of tests");
  Copier copier(ground);
  copier.set_source(::getpid());
  const sys::Fd fd(::memfd_create("board", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(fd.get(), Lists::kPages * 4096), 0);
  const BoardOffer offer{fd.get(), Lists::kPages * 4096};
  EXPECT_TRUE(failed(copier.open_board(offer), Code::kInvalidArgument, "is not sealed"));
  ASSERT_EQ(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_TRUE(is_ok(copier.open_board(offer)));
}

// Three planes of a third of the pages each.
TEST(Lists, HoldInEveryPlane) {
  Lists lists;
  constexpr uint64_t kEach = Lists::kPages / 3, kBytes = kEach * Lists::kPage;
  Plane plane = lists.order.pull.planes.front();
  lists.order.pull.pages.count = kEach;
  lists.order.pull.planes.clear();
  for (uint64_t i = 0; i < 3; ++i) {
    lists.order.pull.planes.push_back(plane);
    plane.source_address += kBytes;
    plane.target_offset += kBytes;
  }
  const std::span ids = std::span(lists.ids).first(kEach);
  lists.list = lists.board->list(kEach);
  lists.order.pull.pages.list_at = lists.list->at();
  EXPECT_FALSE(lists.advance().value()) << "nothing is there yet";
  lists.list->write(ids, ids);
  EXPECT_TRUE(lists.advance().value());
  EXPECT_EQ(lists.order.begun, 3 * kEach);
  lists.to.resize(3 * kBytes);
  lists.from.resize(3 * kBytes);
  EXPECT_EQ(lists.from, lists.to);
}

// A source that lies of one plane in the middle.
TEST(Lists, EveryPlaneIsLookedAt) {
  const auto advance = [](const auto& lie) {
    Lists lists;
    lists.order.pull.planes.resize(3, lists.order.pull.planes.front());
    lists.list->write(lists.ids, lists.ids);
    lie(lists.order.pull.planes[1]);
    return lists.advance().status();
  };
  EXPECT_TRUE(is_ok(advance([](Plane&) {})));
  EXPECT_TRUE(failed(advance([](Plane& plane) { plane.target_offset = 1; }), Code::kInvalidArgument,
                     "page 63 of 512 bytes lies outside of region 1"));
  EXPECT_TRUE(failed(advance([](Plane& plane) { plane.target_offset = UINT64_MAX; }),
                     Code::kInvalidArgument, "lies outside of region 1"));
  EXPECT_TRUE(failed(advance([](Plane& plane) { plane.region = 77; }), Code::kInvalidArgument,
                     "there is no region 77"));
  EXPECT_TRUE(failed(advance([](Plane& plane) { plane.source_region = 7; }), Code::kInvalidArgument,
                     "region 7 of the source was not lent"));
}

TEST(Lists, APageOutsideIsRefusedWhenItIsRead) {
  Lists lists;
  lists.ids[40] = Lists::kPages;
  std::vector<uint64_t> zero(Lists::kPages, 0);
  lists.list->write(zero, lists.ids);
  EXPECT_TRUE(
      failed(lists.advance().status(), Code::kInvalidArgument, "page 64 of 512 bytes lies"));
}

TEST(Lists, OneThatLiesOutsideOfTheBoardIsRefused) {
  for (const uint64_t at : {uint64_t{0}, uint64_t{1}, Board::kBytes / sizeof(PageEntry) - 1,
                            uint64_t{1} << 50, UINT64_MAX - 3}) {
    Lists lists;
    lists.order.pull.pages.list_at = at;
    EXPECT_TRUE(failed(lists.advance().status(), Code::kInvalidArgument, "of a board that has"));
  }
  Lists many;  // times the planes it is 0
  many.order.pull.planes.resize(16, many.order.pull.planes.front());
  many.order.pull.pages.count = uint64_t{1} << 60;
  EXPECT_TRUE(failed(many.advance().status(), Code::kInvalidArgument, "of a board that has"));
  Lists without;
  Copier copier(without.ground);
  copier.set_source(::getpid());
  EXPECT_TRUE(failed(copier.advance(without.order).status(), Code::kInvalidArgument,
                     "of a board that has 0 bytes"));
}

// The word that says how much is there is the source's to write, at any time.
TEST(Lists, OneThatShrinksIsNotReadBeyondItsEnd) {
  Lists lists;
  lists.list->write(lists.ids, lists.ids);
  ASSERT_TRUE(is_ok(lists.advance()));
  lists.order.begun = 50;
  auto* const ready = reinterpret_cast<uint64_t*>(lists.board->entries() + lists.list->at()) - 1;
  *ready = 3;
  EXPECT_FALSE(lists.advance().value());
  *ready = UINT64_MAX;
  EXPECT_TRUE(lists.advance().value());
  EXPECT_EQ(lists.order.begun, Lists::kPages);
}

TEST(Lists, StridesThatOverflowStayInside) {
  Lists lists;
  lists.order.pull.pages.target_stride = UINT64_MAX / 2;
  lists.list->write(lists.ids, lists.ids);
  EXPECT_TRUE(failed(lists.advance().status(), Code::kInvalidArgument, "lies outside of region"));
  EXPECT_EQ(highest_page(1000, 0, 100, 100), 9U);
  EXPECT_EQ(highest_page(1000, 1, 100, 100), 8U);
  EXPECT_EQ(highest_page(1000, 901, 100, 100), std::nullopt);
  EXPECT_EQ(highest_page(1000, UINT64_MAX, 100, 100), std::nullopt);
  EXPECT_EQ(highest_page(UINT64_MAX, 0, 1, 1), UINT32_MAX);
}

/// Addresses that hold memory only where it is touched.
struct Sparse {
  explicit Sparse(uint64_t bytes_in) : bytes(bytes_in) {
    void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    EXPECT_NE(at, MAP_FAILED);
    memory = static_cast<std::byte*>(at);
  }
  ~Sparse() { free(); }
  void free() {
    if (memory != nullptr) ::munmap(memory, bytes);
    memory = nullptr;
  }
  const uint64_t bytes;
  std::byte* memory = nullptr;
};

constexpr uint64_t kGiB = uint64_t{1} << 30;

TEST(Offsets, OverFourGiBArriveWhereTheySay) {
  Engines engines(Way{"local", true, "", 0, {}});
  auto a = engines.make("a"), b = engines.make("b");
  Sparse from(9 * kGiB), to(9 * kGiB);
  auto ours = a->register_memory(from.memory, from.bytes).value();
  auto theirs = b->register_memory(to.memory, to.bytes).value();
  const RemoteRegion remote = a->import(b->descriptor(*theirs).value()).value();
  const auto bytes = pattern(100'000, 1);
  std::copy(bytes.begin(), bytes.end(), from.memory + 5 * kGiB + 1);
  // Both engines are of this process, and the board is mapped twice: that the worker's copy came
  // before our look at it is told through memory in which the thread sanitizer sees no order.
  if (kIsThreadSanitized) GTEST_SKIP() << "skipped: under the thread sanitizer";
  ASSERT_TRUE(is_ok(wait(a->write({ours, 5 * kGiB + 1}, {remote, 8 * kGiB + 3}, 100'000))));
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), to.memory + 8 * kGiB + 3));
  // Pages 4 KiB long, 64 MiB apart; the second time by a list.
  constexpr uint64_t kPages = 100, kStride = 64 << 20, kPage = 4096;
  std::vector<uint64_t> ids(kPages), places(kPages);
  std::iota(ids.begin(), ids.end(), 0);
  places.assign(ids.rbegin(), ids.rend());
  for (uint32_t round = 0; round < 2; ++round) {
    for (const uint64_t id : ids) {
      const auto page = pattern(kPage, 1000 * round + static_cast<uint32_t>(id));
      std::copy(page.begin(), page.end(), from.memory + id * kStride);
    }
    const PageList list{kPage, ids, places, kStride, kStride, 0, 0};
    ASSERT_TRUE(is_ok(wait(a->write_pages(ours, remote, list, under(1)))));
    for (const uint64_t id : ids)
      ASSERT_TRUE(std::equal(from.memory + id * kStride, from.memory + id * kStride + kPage,
                             to.memory + places[id] * kStride));
  }
  EXPECT_EQ(a->stats().pages_listed, kPages);
}

class Freed : public testing::TestWithParam<Way> {};

// Long enough for whoever polls to have stopped, so that he looks again before he polls.
void let_rest() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

// libfabric's tcp, net and shm move bytes themselves, and would end the process where there is no memory.
TEST_P(Freed, MemoryThatIsStillRegisteredIsAnError) {
  Engines engines(GetParam());
  auto a = engines.make("a"), b = engines.make("b");
  Sparse from(1 << 20), to(1 << 20), gone(1 << 20), small(1 << 20);
  auto ours = a->register_memory(from.memory, from.bytes).value();
  auto theirs = b->register_memory(to.memory, to.bytes).value();
  auto lost = b->register_memory(gone.memory, gone.bytes).value();
  auto lost_too = b->register_memory(small.memory, small.bytes).value();
  const RemoteRegion good = a->import(b->descriptor(*theirs).value()).value();
  const RemoteRegion bad = a->import(b->descriptor(*lost).value()).value();
  const RemoteRegion bad_too = a->import(b->descriptor(*lost_too).value()).value();
  ASSERT_TRUE(is_ok(wait(a->write({ours, 0}, {bad, 0}, 1 << 20))));
  gone.free();
  let_rest();
  EXPECT_TRUE(failed(wait(a->write({ours, 0}, {bad, 0}, 1 << 20, under(1))), Code::kInvalidArgument,
                     "region 2"));
  EXPECT_TRUE(
      failed(wait(a->write({ours, 0}, {bad, 0}, 64, under(1))), Code::kInvalidArgument, "freed"));
  ASSERT_TRUE(is_ok(wait(a->write({ours, 0}, {good, 0}, 1 << 20, under(1)))));
  small.free();
  let_rest();
  EXPECT_TRUE(
      failed(wait(a->write({ours, 0}, {bad_too, 0}, 64, under(1))), Code::kInvalidArgument, "'b'"));
  ASSERT_TRUE(is_ok(b->unregister(*lost, in_seconds(20))));
  EXPECT_EQ(b->count(1), 1);
}

TEST_P(Freed, NorIsItReadOrFilledHere) {
  Engines engines(GetParam());
  auto a = engines.make("a"), b = engines.make("b");
  Sparse from(1 << 20), to(1 << 20);
  auto ours = a->register_memory(from.memory, from.bytes).value();
  auto theirs = b->register_memory(to.memory, to.bytes).value();
  const RemoteRegion remote = a->import(b->descriptor(*theirs).value()).value();
  ASSERT_TRUE(is_ok(wait(a->write({ours, 0}, {remote, 0}, 1 << 20, under(1)))));
  from.free();
  EXPECT_TRUE(failed(a->write({ours, 0}, {remote, 0}, 1 << 20, under(1)).status(),
                     Code::kInvalidArgument, "to 'b': our region 1: its memory"));
  EXPECT_TRUE(failed(a->read({ours, 0}, {remote, 0}, 100).status(), Code::kInvalidArgument,
                     "was freed while it was registered"));
  ASSERT_TRUE(is_ok(a->unregister(*ours, in_seconds(20))));
  EXPECT_EQ(b->count(1), 1);
}

/// A file that is mapped, and cut.
struct Cut {
  explicit Cut(uint64_t bytes_in) : bytes(bytes_in), file(::memfd_create("cut", MFD_CLOEXEC)) {
    resize(bytes);
    void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    EXPECT_NE(at, MAP_FAILED);
    memory = static_cast<std::byte*>(at);
  }
  ~Cut() { ::munmap(memory, bytes); }
  void resize(uint64_t to) { EXPECT_EQ(::ftruncate(file.get(), static_cast<off_t>(to)), 0); }
  const uint64_t bytes;
  const sys::Fd file;
  std::byte* memory = nullptr;
};

// All of it is mapped still, and who copies there is ended by SIGBUS.
TEST_P(Freed, AFileThatWasCutIsAnError) {
  Engines engines(GetParam());
  auto a = engines.make("a"), b = engines.make("b");
  Sparse from(1 << 20), to(1 << 20);
  Cut here(1 << 20), there(1 << 20);
  auto ours = a->register_memory(from.memory, from.bytes).value();
  auto lost = a->register_memory(here.memory, here.bytes).value();
  auto theirs = b->register_memory(to.memory, to.bytes).value();
  auto theirs_lost = b->register_memory(there.memory, there.bytes).value();
  const RemoteRegion good = a->import(b->descriptor(*theirs).value()).value();
  const RemoteRegion bad = a->import(b->descriptor(*theirs_lost).value()).value();
  ASSERT_TRUE(is_ok(wait(a->write({ours, 0}, {bad, 0}, 1 << 20))));
  here.resize(1 << 19);
  there.resize(0);
  let_rest();
  EXPECT_TRUE(failed(wait(a->write({ours, 0}, {bad, 0}, 1 << 20, under(1))), Code::kInvalidArgument,
                     "region 2"));
  EXPECT_TRUE(failed(wait(a->read({ours, 0}, {bad, 0}, 64)), Code::kInvalidArgument, "region 2"));
  EXPECT_TRUE(failed(a->write({lost, 0}, {good, 0}, 1 << 20).status(), Code::kInvalidArgument,
                     "our region 2: its memory"));
  EXPECT_TRUE(failed(a->read({lost, 0}, {good, 0}, 100).status(), Code::kInvalidArgument,
                     "was its file cut"));
  ASSERT_TRUE(is_ok(wait(a->write({ours, 0}, {good, 0}, 1 << 20, under(1)))));
  EXPECT_EQ(b->count(1), 1);
  ASSERT_TRUE(is_ok(b->unregister(*theirs_lost, in_seconds(20))));
}

TEST_P(Freed, MemoryThatIsNotThereIsNotRegistered) {
  Engines engines(GetParam());
  auto a = engines.make("a");
  Cut cut(1 << 20);
  cut.resize(1 << 19);
  EXPECT_TRUE(failed(a->register_memory(cut.memory, cut.bytes).status(), Code::kInvalidArgument,
                     "behind the end of its file"));
  EXPECT_TRUE(is_ok(a->register_memory(cut.memory, 1 << 19)));
  std::byte* const none = sys::pointer_to<std::byte>(4096);
  EXPECT_TRUE(failed(a->register_memory(none, 10).status(), Code::kInvalidArgument, "no memory"));
}

// Weights are served out of files that nobody may write to.
TEST_P(Freed, ReadOnlyMemoryIsReadAlone) {
  Engines engines(GetParam());
  auto a = engines.make("a"), b = engines.make("b");
  constexpr uint64_t kBytes = 1 << 20;
  Sparse ours_only(kBytes), theirs_only(kBytes), to(kBytes);
  const auto bytes = pattern(kBytes, 7);
  for (const Sparse* each : {&ours_only, &theirs_only}) {
    std::memcpy(each->memory, bytes.data(), kBytes);
    ASSERT_EQ(::mprotect(each->memory, kBytes, PROT_READ), 0);
  }
  auto ours = a->register_memory(ours_only.memory, kBytes).value();
  auto theirs = b->register_memory(theirs_only.memory, kBytes).value();
  auto open = b->register_memory(to.memory, kBytes).value();
  const RemoteRegion closed = a->import(b->descriptor(*theirs).value()).value();
  const RemoteRegion target = a->import(b->descriptor(*open).value()).value();
  const std::vector<uint64_t> ids = {0, 3};
  const PageList pages{.page_bytes = 4096, .source_ids = ids, .target_ids = ids};
  EXPECT_TRUE(failed(a->write({ours, 0}, {closed, 0}, kBytes).status(), Code::kInvalidArgument,
                     "region 1 of 'b' was read-only memory"));
  EXPECT_TRUE(failed(a->write_pages(ours, closed, pages).status(), Code::kInvalidArgument,
                     "region 1 of 'b' was read-only memory"));
  EXPECT_TRUE(failed(a->read({ours, 0}, {target, 0}, 1).status(), Code::kInvalidArgument,
                     "our region 1 was read-only memory"));
  EXPECT_TRUE(failed(a->read_pages(ours, target, pages).status(), Code::kInvalidArgument,
                     "our region 1 was read-only memory"));
  ASSERT_TRUE(is_ok(wait(a->write({ours, 0}, {target, 0}, kBytes, under(1)))));
  EXPECT_EQ(std::memcmp(to.memory, bytes.data(), kBytes), 0);
  Sparse back(kBytes);
  auto filled = a->register_memory(back.memory, kBytes).value();
  if (GetParam().name == "shm") return;  // it has no reads
  ASSERT_TRUE(is_ok(wait(a->read({filled, 0}, {closed, 0}, kBytes))));
  EXPECT_EQ(std::memcmp(back.memory, bytes.data(), kBytes), 0);
}

INSTANTIATE_TEST_SUITE_P(Ways, Freed,
                         testing::Values(Way{"local", true, "", 0, {}},
                                         Way{"tcp", false, "tcp", 1, {}},
                                         Way{"net", false, "net", 1, {}},
                                         Way{"shm", false, "shm", 1, {}}),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace braid::engine::test
