// InCall: held for the length of a public call of a buffer.
#pragma once

#include "moe/buffer.h"

namespace braid::moe {

class InCall {
 public:
  enum Kind { kBegins, kFinishes };  // finishes: what an earlier call has begun
  explicit InCall(Buffer& buffer, Kind kind = kBegins)
      : buffer_(buffer), status_(buffer.enter(kind == kFinishes)) {}
  ~InCall() {
    if (status_.ok()) buffer_.leave();
  }
  InCall(const InCall&) = delete;
  InCall& operator=(const InCall&) = delete;
  const Status& status() const { return status_; }

 private:
  Buffer& buffer_;
  const Status status_;
};

}  // namespace braid::moe
