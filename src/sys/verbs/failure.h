// Why an operation, or a whole connection, failed: one number for FabricEvent::error, and its
// words.
#pragma once

#include <string>

#include "sys/fabric/api.h"
#include "sys/verbs/library.h"

namespace braid::sys::verbs {

/// The numbers say where they come from: a completion's status as it is, others far away from it.
struct Failure {
  static constexpr int kEvent = 1000;    // + enum ibv_event_type
  static constexpr int kErrno = 2000;    // + what posting answered
  static constexpr int kSilence = 3000;  // nothing completed for too long

  int error = 0;
  int provider_error = 0;  // the vendor's, of a completion

  static Failure of_status(const ibv_wc& completion) {
    return {completion.status, static_cast<int>(completion.vendor_err)};
  }
  static Failure of_event(int event) { return {kEvent + event, 0}; }
  static Failure of_errno(int error) { return {kErrno + error, 0}; }
  static Failure of_silence() { return {kSilence, 0}; }
};

inline FabricEvent failed_event(FabricOp* op, const Failure& failure) {
  return {.kind = FabricEvent::Kind::kFailed,
          .op = op,
          .error = failure.error,
          .provider_error = failure.provider_error};
}
std::string words_of(const Library& library, const Failure& failure);

}  // namespace braid::sys::verbs
