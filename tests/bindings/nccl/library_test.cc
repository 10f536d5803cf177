#include "bindings/nccl/library.h"

#include <gtest/gtest.h>

#include <string_view>

namespace braid::nccl {
namespace {

using namespace std::string_view_literals;

TEST(LoaderCache, HasPathsOfNcclAndNothingElse) {
  const auto paths = paths_in_loader_cache(
      "glibc-ld.so.cache1.1\0\1\2\3"
      "libnccl.so.2\0/opt/nccl/lib/libnccl.so.2\0/usr/lib/libnccl.so.2\0"
      "/usr/lib/libnccl.so.2.28\0relative/libnccl.so.2\0/usr/lib/libncclx.so.2\0"sv);
  EXPECT_EQ(paths,
            (std::vector<std::string>{"/opt/nccl/lib/libnccl.so.2", "/usr/lib/libnccl.so.2"}));
  EXPECT_TRUE(paths_in_loader_cache("").empty());
  EXPECT_TRUE(paths_in_loader_cache("/libnccl.so.2").empty()) << "no end";
}

TEST(Library, SaysWhatWasWrong) {
  EXPECT_EQ(Library::open("libnccl.so.2").status().code(), Code::kInvalidArgument);
  const Status missing = Library::open("/nowhere/libnccl.so.2").status();
  EXPECT_EQ(missing.code(), Code::kUnavailable);
  EXPECT_NE(missing.message().find("/nowhere/libnccl.so.2"), std::string::npos);
  const Status other = Library::open("/proc/self/exe").status();
  EXPECT_EQ(other.code(), Code::kUnavailable);
}

}  // namespace
}  // namespace braid::nccl
