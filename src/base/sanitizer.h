// Which sanitizer this is compiled under. gcc defines a macro for each; clang has __has_feature.
#pragma once

namespace braid {

#if defined(__has_feature)
#define BRAID_HAS_FEATURE(feature) __has_feature(feature)
#else
#define BRAID_HAS_FEATURE(feature) 0
#endif

#if defined(__SANITIZE_THREAD__) || BRAID_HAS_FEATURE(thread_sanitizer)
inline constexpr bool kIsThreadSanitized = true;
#else
inline constexpr bool kIsThreadSanitized = false;
#endif

#if defined(__SANITIZE_ADDRESS__) || BRAID_HAS_FEATURE(address_sanitizer)
inline constexpr bool kIsAddressSanitized = true;
#else
inline constexpr bool kIsAddressSanitized = false;
#endif

#undef BRAID_HAS_FEATURE

inline constexpr bool kIsSanitized = kIsThreadSanitized || kIsAddressSanitized;

}  // namespace braid
