// Status and Result: how every fallible call in braid answers.
//
// A Status is one pointer, null when ok, so that passing success up a call chain costs a register.
// No exception crosses a folder; Python turns a Status into a typed exception in bindings/python
// alone. The codes are closed and sorted by who must act (see Code). A message names the object,
// what was asked and what was found ("lane rdma tcp0 to rank 2: no ack for 30.0 s, 12 pieces
// outstanding"). It is made once, at the first place that knows the cause; callers may prepend
// context, never log again.
//
// Threads: a const Status may be read from several threads; assigning needs the owner's own lock.
#pragma once

#include <fmt/core.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace braid {

enum class Code : int {
  kOk = 0,
  kInvalidArgument = 1,  // the caller must change the call
  kUnsupported = 2,      // the caller asked for something this build or lane does not do
  kUnavailable = 3,      // the operator must provide something (a store, a device, a token)
  kExhausted = 4,        // memory, descriptors, slots
  kDriver = 5,    // a foreign library or the kernel failed; the message keeps library, call, number
  kTimeout = 6,   // a deadline passed; the message names who was waited for
  kPeerLost = 7,  // a rank died or left
  kInternal = 8,  // a bug in braid
  kCancelled = 9,  // the caller himself took the work back
};

/// The lower-case name of a code, as in logs and the C ABI ("peer_lost"). Never null.
const char* code_name(Code code) noexcept;

class [[nodiscard]] Status {
 public:
  Status() noexcept = default;
  Status(Code code, std::string message);
  Status(const Status& other);
  Status& operator=(const Status& other);
  Status(Status&&) noexcept = default;
  Status& operator=(Status&&) noexcept = default;
  ~Status() = default;

  bool ok() const noexcept { return state_ == nullptr; }
  Code code() const noexcept { return state_ ? state_->code : Code::kOk; }
  /// The message without the code; empty when ok. Valid while this Status lives.
  const std::string& message() const noexcept;
  /// "ok" or "code_name: message".
  std::string to_string() const;
  /// The same failure with `context: ` before its message; ok stays ok.
  Status with_context(std::string_view context) const;

 private:
  struct State {
    Code code;
    std::string message;
  };
  std::unique_ptr<State> state_;
};

template <typename... Args>
Status invalid_argument(fmt::format_string<Args...> f, Args&&... args) {
  return {Code::kInvalidArgument, fmt::format(f, std::forward<Args>(args)...)};
}
template <typename... Args>
Status unsupported(fmt::format_string<Args...> f, Args&&... args) {
  return {Code::kUnsupported, fmt::format(f, std::forward<Args>(args)...)};
}
template <typename... Args>
Status unavailable(fmt::format_string<Args...> f, Args&&... args) {
  return {Code::kUnavailable, fmt::format(f, std::forward<Args>(args)...)};
}
template <typename... Args>
Status exhausted(fmt::format_string<Args...> f, Args&&... args) {
  return {Code::kExhausted, fmt::format(f, std::forward<Args>(args)...)};
}
template <typename... Args>
Status driver_error(fmt::format_string<Args...> f, Args&&... args) {
  return {Code::kDriver, fmt::format(f, std::forward<Args>(args)...)};
}
template <typename... Args>
Status timeout(fmt::format_string<Args...> f, Args&&... args) {
  return {Code::kTimeout, fmt::format(f, std::forward<Args>(args)...)};
}
template <typename... Args>
Status peer_lost(fmt::format_string<Args...> f, Args&&... args) {
  return {Code::kPeerLost, fmt::format(f, std::forward<Args>(args)...)};
}
template <typename... Args>
Status cancelled(fmt::format_string<Args...> f, Args&&... args) {
  return {Code::kCancelled, fmt::format(f, std::forward<Args>(args)...)};
}
template <typename... Args>
Status internal_error(fmt::format_string<Args...> f, Args&&... args) {
  return {Code::kInternal, fmt::format(f, std::forward<Args>(args)...)};
}

/// A value, or the Status that says why there is none. Reading value() of a failed Result aborts.
template <typename T>
class [[nodiscard]] Result {
 public:
  // Implicit by design, so that functions return either. NOLINTBEGIN(google-explicit-constructor)
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Status status) : state_(std::in_place_index<1>, std::move(status)) {}
  // NOLINTEND(google-explicit-constructor)

  bool ok() const noexcept { return state_.index() == 0; }
  Status status() const { return ok() ? Status() : std::get<1>(state_); }
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& operator*() & { return value(); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace braid

/// Returns the Status of `expr` from the calling function unless it is ok.
#define BRAID_RETURN_IF_ERROR(expr)                                                        \
  do {                                                                                     \
    if (::braid::Status braid_status_ = (expr); !braid_status_.ok()) return braid_status_; \
  } while (false)

#define BRAID_CONCAT_INNER(a, b) a##b
#define BRAID_CONCAT(a, b) BRAID_CONCAT_INNER(a, b)
/// Declares `lhs` from a Result, or returns its Status: BRAID_ASSIGN_OR_RETURN(auto fd,
/// open(path));
#define BRAID_ASSIGN_OR_RETURN(lhs, expr) \
  BRAID_ASSIGN_OR_RETURN_IMPL(BRAID_CONCAT(braid_result_, __LINE__), lhs, expr)
#define BRAID_ASSIGN_OR_RETURN_IMPL(result, lhs, expr) \
  auto result = (expr);                                \
  if (!result.ok()) return result.status();            \
  lhs = std::move(result).value()
