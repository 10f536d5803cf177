#include "base/status.h"

#include <gtest/gtest.h>

#include <memory>

namespace braid {
namespace {

TEST(Status, OkIsOnePointerWithoutAMessage) {
  static_assert(sizeof(Status) == sizeof(void*));
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), Code::kOk);
  EXPECT_EQ(status.message(), "");
  EXPECT_EQ(status.to_string(), "ok");
  EXPECT_TRUE(Status(Code::kOk, "ignored").ok());
}

TEST(Status, EachFactorySetsItsCode) {
  EXPECT_EQ(invalid_argument("x").code(), Code::kInvalidArgument);
  EXPECT_EQ(unsupported("x").code(), Code::kUnsupported);
  EXPECT_EQ(unavailable("x").code(), Code::kUnavailable);
  EXPECT_EQ(exhausted("x").code(), Code::kExhausted);
  EXPECT_EQ(driver_error("x").code(), Code::kDriver);
  EXPECT_EQ(timeout("x").code(), Code::kTimeout);
  EXPECT_EQ(peer_lost("x").code(), Code::kPeerLost);
  EXPECT_EQ(internal_error("x").code(), Code::kInternal);
}

TEST(Status, FormatsItsArguments) {
  const Status status = timeout("lane {} to rank {}: no ack", "shm", 2);
  EXPECT_EQ(status.to_string(), "timeout: lane shm to rank 2: no ack");
}

TEST(Status, ContextGoesBeforeTheMessageAndKeepsTheCode) {
  const Status status = peer_lost("rank 1 left").with_context("all_gather");
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_EQ(status.message(), "all_gather: rank 1 left");
  EXPECT_TRUE(Status().with_context("all_gather").ok());
}

TEST(Status, CopiesAreDeep) {
  Status first = exhausted("slots");
  Status second = first;
  first = Status();
  EXPECT_TRUE(first.ok());
  EXPECT_EQ(second.message(), "slots");
  const Status& alias = second;
  second = alias;
  EXPECT_EQ(second.message(), "slots");
}

TEST(CodeName, IsKnownForEveryCodeAndSafeOutside) {
  EXPECT_STREQ(code_name(Code::kOk), "ok");
  EXPECT_STREQ(code_name(Code::kPeerLost), "peer_lost");
  EXPECT_STREQ(code_name(Code::kInternal), "internal");
  EXPECT_STREQ(code_name(Code::kCancelled), "cancelled");
  EXPECT_STREQ(code_name(static_cast<Code>(99)), "unknown");
}

TEST(Result, HoldsAValueOrAStatus) {
  Result<int> good(7);
  EXPECT_TRUE(good.ok());
  EXPECT_EQ(good.value(), 7);
  EXPECT_TRUE(good.status().ok());
  Result<int> bad(unavailable("no store"));
  EXPECT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().code(), Code::kUnavailable);
}

TEST(Result, MovesWhatCannotBeCopied) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(5));
  const std::unique_ptr<int> taken = std::move(result).value();
  EXPECT_EQ(*taken, 5);
}

Result<int> half(int value) {
  if (value % 2 != 0) return invalid_argument("{} is odd", value);
  return value / 2;
}

Status quarter(int value, int* out) {
  BRAID_ASSIGN_OR_RETURN(const int once, half(value));
  BRAID_ASSIGN_OR_RETURN(*out, half(once));
  BRAID_RETURN_IF_ERROR(Status());
  return {};
}

TEST(Macros, PassOnTheFirstFailureAndLeaveTheOutputAlone) {
  int out = -1;
  EXPECT_EQ(quarter(6, &out).message(), "3 is odd");
  EXPECT_EQ(out, -1);
  EXPECT_TRUE(quarter(8, &out).ok());
  EXPECT_EQ(out, 2);
}

}  // namespace
}  // namespace braid
