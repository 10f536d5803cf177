#include "base/status.h"

namespace braid {

const char* code_name(Code code) noexcept {
  switch (code) {
    case Code::kOk: return "ok";
    case Code::kInvalidArgument: return "invalid_argument";
    case Code::kUnsupported: return "unsupported";
    case Code::kUnavailable: return "unavailable";
    case Code::kExhausted: return "exhausted";
    case Code::kDriver: return "driver";
    case Code::kTimeout: return "timeout";
    case Code::kPeerLost: return "peer_lost";
    case Code::kInternal: return "internal";
    case Code::kCancelled: return "cancelled";
  }
  return "unknown";
}

Status::Status(Code code, std::string message) {
  if (code != Code::kOk) state_ = std::make_unique<State>(State{code, std::move(message)});
}

Status::Status(const Status& other)
    : state_(other.state_ ? std::make_unique<State>(*other.state_) : nullptr) {}

Status& Status::operator=(const Status& other) {
  if (this != &other) state_ = other.state_ ? std::make_unique<State>(*other.state_) : nullptr;
  return *this;
}

const std::string& Status::message() const noexcept {
  static const std::string kEmpty;
  return state_ ? state_->message : kEmpty;
}

std::string Status::to_string() const {
  if (ok()) return "ok";
  return fmt::format("{}: {}", code_name(code()), message());
}

Status Status::with_context(std::string_view context) const {
  if (ok()) return {};
  return {code(), fmt::format("{}: {}", context, message())};
}

}  // namespace braid
