// A process with an engine, for tests that kill and stop it. Fork it before there are threads.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "engines.h"

namespace braid::engine::test {

/// A process with an engine that writes its descriptor into a pipe and lives until it is killed.
class Child {
 public:
  explicit Child(const EngineOptions& options, size_t bytes, bool writes = false) {
    int to_parent[2], to_child[2];
    EXPECT_EQ(::pipe(to_parent), 0);
    EXPECT_EQ(::pipe(to_child), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      run(options, bytes, to_parent[1], writes ? to_child[0] : -1);
      ::_exit(0);
    }
    ::close(to_parent[1]);
    ::close(to_child[0]);
    in_ = sys::Fd(to_parent[0]);
    out_ = sys::Fd(to_child[1]);
    descriptor = receive(in_.get());
  }
  ~Child() {
    if (pid_ > 0) end(SIGKILL);
  }
  void end(int signal) {
    ::kill(pid_, signal);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  void stop() const {
    ::kill(pid_, SIGSTOP);
    ::waitpid(pid_, nullptr, WUNTRACED);  // its threads run on for a moment
  }
  /// How it ended by itself; empty while it lives.
  std::string how_ended() {
    int how = 0;
    if (pid_ <= 0 || ::waitpid(pid_, &how, WNOHANG) != pid_) return "";
    pid_ = 0;
    return WIFSIGNALED(how) ? fmt::format("by signal {}", WTERMSIG(how))
                            : fmt::format("with code {}", WEXITSTATUS(how));
  }
  pid_t pid() const { return pid_; }
  void go_on() const { ::kill(pid_, SIGCONT); }
  /// Tells a child that writes where to.
  void aim(const std::string& target) const { send(out_.get(), target); }

  std::string descriptor;

 private:
  static void send(int fd, const std::string& text) {
    const auto bytes = static_cast<uint32_t>(text.size());
    (void)!::write(fd, &bytes, sizeof bytes);
    (void)!::write(fd, text.data(), text.size());
  }
  static std::string receive(int fd) {
    uint32_t bytes = 0;
    if (::read(fd, &bytes, sizeof bytes) != sizeof bytes) return {};
    std::string text(bytes, '\0');
    for (size_t at = 0; at < text.size();) {
      const ssize_t got = ::read(fd, text.data() + at, text.size() - at);
      if (got <= 0) return {};
      at += static_cast<size_t>(got);
    }
    return text;
  }
  static void run(const EngineOptions& options, size_t bytes, int out, int in) {
    auto engine = Engine::create(options);
    if (!engine.ok()) return;
    std::vector<std::byte> memory = pattern(bytes, 1);
    auto region = (*engine)->register_memory(memory.data(), bytes);
    send(out, (*engine)->descriptor(**region).value());
    if (in < 0) {
      while (true) ::pause();
    }
    auto target = (*engine)->import(receive(in));
    while (target.ok()) {
      auto ticket = (*engine)->write({*region, 0}, {*target, 0}, bytes, under(1));
      if (ticket.ok()) (void)(*ticket)->wait(in_seconds(10));
    }
  }

  pid_t pid_ = 0;
  sys::Fd in_, out_;
};

}  // namespace braid::engine::test
