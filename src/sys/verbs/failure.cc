#include "sys/verbs/failure.h"

#include "sys/error_text.h"

namespace braid::sys::verbs {

std::string words_of(const Library& library, const Failure& failure) {
  const int error = failure.error;
  if (error >= Failure::kSilence) return "operations were on their way and none ended for 10 s";
  if (error >= Failure::kErrno) return "posting answered " + error_text(error - Failure::kErrno);
  if (error >= Failure::kEvent)
    return fmt::format(
        "the device reported: {}",
        library.event_type_str(static_cast<ibv_event_type>(error - Failure::kEvent)));
  return fmt::format("{} (status {}, vendor error {:#x})",
                     library.wc_status_str(static_cast<ibv_wc_status>(error)), error,
                     failure.provider_error);
}

}  // namespace braid::sys::verbs
