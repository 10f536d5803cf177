// No exception leaves the plug-in: NIXL's code, compiled elsewhere, calls it through tables.
#include "border.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <stdexcept>
#include <vector>

namespace {
thread_local int allocations_left = -1;  // of this thread, before there is no memory; -1: enough
}

void* operator new(size_t bytes) {
  if (allocations_left == 0) throw std::bad_alloc();
  if (allocations_left > 0) --allocations_left;
  if (void* const memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

extern "C" braid::nixl::Plugin* nixl_plugin_init();

namespace braid::nixl {
namespace {

/// Throws whatever it is asked.
class Thrower final : public Backend {
 public:
  using Backend::Backend;
  bool supports_remote() const override { return true; }
  bool supports_local() const override { return true; }
  bool supports_notif() const override { return false; }
  MemoryKinds get_supported_mems() const override { return fail<MemoryKinds>(); }
  Answer register_mem(const PlaceWithText&, const MemoryKind&, Memory*&) override {
    return fail<Answer>();
  }
  Answer deregister_mem(Memory*) override { return fail<Answer>(); }
  Answer connect(const std::string&) override { return fail<Answer>(); }
  Answer disconnect(const std::string&) override { return fail<Answer>(); }
  Answer unload_md(Memory*) override { return fail<Answer>(); }
  Answer prep_xfer(const Operation&, const TransferPlaces&, const TransferPlaces&,
                   const std::string&, Work*&, const TransferWishes*) const override {
    return fail<Answer>();
  }
  Answer post_xfer(const Operation&, const TransferPlaces&, const TransferPlaces&,
                   const std::string&, Work*&, const TransferWishes*) const override {
    return fail<Answer>();
  }
  Answer check_xfer(Work*) const override { return fail<Answer>(); }
  Answer release_req_h(Work*) const override { return fail<Answer>(); }
  Answer get_public_data(const Memory*, std::string&) const override { return fail<Answer>(); }
  Answer get_conn_info(std::string&) const override { return fail<Answer>(); }
  Answer load_remote_conn_info(const std::string&, const std::string&) override {
    return fail<Answer>();
  }
  Answer load_remote_md(const PlaceWithText&, const MemoryKind&, const std::string&,
                        Memory*&) override {
    return fail<Answer>();
  }
  Answer load_local_md(Memory*, Memory*&) override { return fail<Answer>(); }
  Answer get_notifs(Notifications&) override { return fail<Answer>(); }
  Answer gen_notif(const std::string&, const std::string&) const override { return fail<Answer>(); }

 private:
  template <typename T>
  T fail() const {
    switch (num_calls_++ % 3) {
      case 0: throw std::bad_alloc();
      case 1: throw std::runtime_error("of a test");
      default: throw 7;  // NOLINT(hicpp-exception-baseclass)
    }
  }
  mutable int num_calls_ = 0;
};

Birth birth_of(const char* agent, Settings& settings) {
  Birth birth;
  birth.agent = agent;
  birth.type = "BRAID";
  birth.settings = &settings;
  return birth;
}

TEST(NixlBorder, WhateverIsThrownIsAnAnswer) {
  Settings settings;
  const Birth birth = birth_of("thrower", settings);
  const std::unique_ptr<Backend> backend = behind_border(birth, std::make_unique<Thrower>(birth));
  EXPECT_TRUE(backend->supports_remote());
  EXPECT_TRUE(backend->supports_local());
  EXPECT_FALSE(backend->supports_notif());
  for (int again = 0; again < 3; ++again) {
    EXPECT_TRUE(backend->get_supported_mems().empty());
    Memory* memory = nullptr;
    Work* work = nullptr;
    std::string text;
    Notifications heard;
    const PlaceWithText place;
    const TransferPlaces places;
    const std::vector<Answer> answers = {
        backend->register_mem(place, MemoryKind::kHost, memory),
        backend->deregister_mem(memory),
        backend->connect("peer"),
        backend->disconnect("peer"),
        backend->unload_md(memory),
        backend->prep_xfer(Operation::kRead, places, places, "peer", work, nullptr),
        backend->post_xfer(Operation::kRead, places, places, "peer", work, nullptr),
        backend->check_xfer(work),
        backend->release_req_h(work),
        backend->get_public_data(memory, text),
        backend->get_conn_info(text),
        backend->load_remote_conn_info("peer", text),
        backend->load_remote_md(place, MemoryKind::kHost, "peer", memory),
        backend->load_local_md(memory, memory),
        backend->get_notifs(heard),
        backend->gen_notif("peer", "text")};
    EXPECT_EQ(answers, std::vector<Answer>(answers.size(), Answer::kFailed));
  }
}

/// Calls `body` with memory for 0, 1, 2 and so on allocations, until it has enough. Nothing of it is
/// moved by this thread for the engine, which has no answer to a want of memory.
template <typename Body>
void starve(const char* what, const Body& body) {
  Answer answer = Answer::kFailed;
  for (int num = 0; answer != Answer::kDone && num < 200; ++num) {
    allocations_left = num;
    try {
      answer = body();
    } catch (...) {
      allocations_left = -1;
      ADD_FAILURE() << what << " threw with memory for " << num << " allocations";
      return;
    }
    allocations_left = -1;
  }
  EXPECT_EQ(answer, Answer::kDone) << what;
}

TEST(NixlBorder, AWantOfMemoryIsAnAnswerOfThePlugin) {
  const Plugin& plugin = *nixl_plugin_init();
  Settings settings = {{"hosts", "127.0.0.1"}, {"nics", "none"}, {"lease", "2s"}};
  const Birth birth = birth_of("an agent whose name is long enough to be allocated", settings);
  starve("settings", [&] { return plugin.settings().empty() ? Answer::kFailed : Answer::kDone; });
  starve("memory_kinds",
         [&] { return plugin.memory_kinds().empty() ? Answer::kFailed : Answer::kDone; });
  Backend* const backend = plugin.create(&birth);
  ASSERT_NE(backend, nullptr);
  std::vector<std::byte> bytes(4096);
  PlaceWithText place;
  place.address = reinterpret_cast<uint64_t>(bytes.data());
  place.bytes = bytes.size();
  Memory *own = nullptr, *peers = nullptr;
  Work* work = nullptr;
  std::string info;
  Notifications heard;
  starve("get_supported_mems",
         [&] { return backend->get_supported_mems().empty() ? Answer::kFailed : Answer::kDone; });
  starve("register_mem", [&] { return backend->register_mem(place, MemoryKind::kHost, own); });
  starve("get_public_data", [&] { return backend->get_public_data(own, place.text); });
  starve("get_conn_info", [&] { return backend->get_conn_info(info); });
  starve("load_remote_conn_info", [&] { return backend->load_remote_conn_info("peer", info); });
  starve("load_remote_md",
         [&] { return backend->load_remote_md(place, MemoryKind::kHost, "peer", peers); });
  TransferPlaces here, there;
  PlaceWithMemory mine;
  mine.address = place.address;
  mine.bytes = place.bytes;
  mine.memory = own;
  here.all = there.all = {mine};
  there.all.front().memory = peers;
  starve("prep_xfer",
         [&] { return backend->prep_xfer(Operation::kWrite, here, there, "peer", work, nullptr); });
  starve("get_notifs", [&] { return backend->get_notifs(heard); });
  EXPECT_EQ(backend->release_req_h(work), Answer::kDone);
  EXPECT_EQ(backend->unload_md(peers), Answer::kDone);
  EXPECT_EQ(backend->deregister_mem(own), Answer::kDone);
  plugin.destroy(backend);
}

}  // namespace
}  // namespace braid::nixl
