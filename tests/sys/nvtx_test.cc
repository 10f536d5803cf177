// What a tool sees of us, through tests/sys/nvtx/tool.c.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

#include "sys/nvtx/api.h"
#include "sys/nvtx/fake.h"

namespace braid::sys {
namespace {

std::string told() {
  void* library = dlopen(BRAID_NVTX_TOOL, RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return "no tool";
  auto* const say = reinterpret_cast<const char* (*)()>(dlsym(library, "nvtx_tool_told"));
  return say != nullptr ? say() : "no words";
}

TEST(Nvtx, TellsAToolOfRanges) {
  auto attached = attach_nvtx(BRAID_NVTX_TOOL);
  ASSERT_TRUE(attached.ok()) << attached.status().to_string();
  attached.value()->push("all_reduce float32", 67108864);
  attached.value()->push("inner", 1);
  attached.value()->pop();
  attached.value()->pop();
  EXPECT_EQ(told(),
            "version 3, 40 bytes\n"
            "module 1: 16 functions, ended\n"
            "module 2: 9 functions, ended\n"
            "module 3: 15 functions, ended\n"
            "module 4: 7 functions, ended\n"
            "module 5: 16 functions, ended\n"
            "module 6: 7 functions, ended\n"
            "domain braid\n"
            "push all_reduce float32 67108864\n"
            "push inner 1\n"
            "pop\n"
            "pop\n");
}

TEST(Nvtx, SaysWhatIsNoTool) {
  const Status missing = attach_nvtx("/nowhere/tool.so").status();
  EXPECT_EQ(missing.code(), Code::kUnavailable);
  EXPECT_NE(missing.message().find("/nowhere/tool.so"), std::string::npos);
  const Status other = attach_nvtx("libm.so.6").status();
  EXPECT_EQ(other.code(), Code::kUnavailable);
  EXPECT_NE(other.message().find("InitializeInjectionNvtx2"), std::string::npos);
}

TEST(Nvtx, WithoutAToolThereIsNone) {
  const auto none = real_nvtx();  // tests are not run under a profiler
  EXPECT_EQ(none.status().code(), Code::kUnavailable);
  EXPECT_NE(none.status().message().find("NVTX_INJECTION64_PATH"), std::string::npos);
}

TEST(Nvtx, TheFakeKeepsTheOrder) {
  FakeNvtx fake;
  fake.push("a", 1);
  fake.pop();
  EXPECT_EQ(fake.told(), (std::vector<std::string>{"push a 1", "pop"}));
}

}  // namespace
}  // namespace braid::sys
