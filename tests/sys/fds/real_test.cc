#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <set>
#include <string>

#include "sys/fds/api.h"

namespace braid::sys {
namespace {

Fd file_with(char byte) {
  Fd file(::memfd_create("a letter", MFD_CLOEXEC));
  EXPECT_EQ(::write(file.get(), &byte, 1), 1);
  return file;
}

char byte_of(const Fd& file) {
  char byte = 0;
  EXPECT_EQ(::pread(file.get(), &byte, 1, 0), 1);
  return byte;
}

TEST(FdBox, CarriesDescriptorsAndText) {
  const FdBox to = FdBox::open().value(), from = FdBox::open().value();
  EXPECT_FALSE(to.try_receive().value().has_value());
  {
    std::vector<Fd> fds;
    for (size_t i = 0; i < kMostFdsOfLetter; ++i)
      fds.push_back(file_with(static_cast<char>('0' + i)));
    EXPECT_TRUE(from.try_send(to.address(), "many", fds).value());
  }  // the letter holds them now
  EXPECT_TRUE(from.try_send(to.address(), "none", {}).value());
  to.wait(5000);
  const Letter many = to.try_receive().value().value();
  EXPECT_EQ(many.text, "many");
  ASSERT_EQ(many.fds.size(), kMostFdsOfLetter);
  for (size_t i = 0; i < kMostFdsOfLetter; ++i) {
    EXPECT_EQ(byte_of(many.fds[i]), static_cast<char>('0' + i));
    EXPECT_NE(::fcntl(many.fds[i].get(), F_GETFD) & FD_CLOEXEC, 0);
  }
  const Letter none = to.try_receive().value().value();
  EXPECT_EQ(none.text, "none");
  EXPECT_TRUE(none.fds.empty());
}

TEST(FdBox, IsReachedFromAnotherProcess) {
  const FdBox to = FdBox::open().value();
  const pid_t child = ::fork();
  if (child == 0) {
    std::vector<Fd> fds;
    fds.push_back(file_with('x'));
    const bool sent = FdBox::open().value().try_send(to.address(), "hello", fds).value();
    ::_exit(sent ? 0 : 1);
  }
  to.wait(5000);
  const Letter letter = to.try_receive().value().value();
  EXPECT_EQ(byte_of(letter.fds.at(0)), 'x');
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(FdBox, DropsLettersOfStrangers) {
  const FdBox to = FdBox::open().value(), from = FdBox::open().value();
  std::string guessed = to.address();
  guessed.back() = guessed.back() == '0' ? '1' : '0';
  std::vector<Fd> fds;
  fds.push_back(file_with('x'));
  EXPECT_TRUE(from.try_send(guessed, "a guess", fds).value());
  EXPECT_FALSE(to.try_receive().value().has_value());
  EXPECT_TRUE(from.try_send(to.address(), "right", fds).value());
  EXPECT_EQ(to.try_receive().value().value().text, "right");
}

TEST(FdBox, SaysWhenItIsFullOrGone) {
  const FdBox from = FdBox::open().value();
  std::string gone;
  {
    const FdBox to = FdBox::open().value();
    gone = to.address();
    int sent = 0;
    while (sent < 100'000 && from.try_send(to.address(), "again", {}).value()) ++sent;
    EXPECT_GT(sent, 0);
    EXPECT_LT(sent, 100'000);
    EXPECT_EQ(to.try_receive().value().value().text, "again");
    EXPECT_TRUE(from.try_send(to.address(), "again", {}).value());
  }
  EXPECT_EQ(from.try_send(gone, "too late", {}).status().code(), Code::kUnavailable);
  EXPECT_EQ(from.try_send("no address", "", {}).status().code(), Code::kInternal);
}

TEST(FdBox, AddressesDiffer) {
  std::set<std::string> addresses;
  for (int i = 0; i < 100; ++i) addresses.insert(FdBox::open().value().address());
  EXPECT_EQ(addresses.size(), 100U);
}

}  // namespace
}  // namespace braid::sys
