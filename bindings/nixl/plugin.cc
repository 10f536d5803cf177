// What NIXL looks for in libplugin_BRAID.so. No exception leaves it: border.h.
#include "backend.h"
#include "base/log.h"
#include "border.h"
#include "settings.h"

namespace braid::nixl {
namespace {

Backend* create(const Birth* birth) {
  return guarded("create", nullptr, [&]() -> Backend* {
    auto made = BraidBackend::create(*birth);
    if (made.ok()) return behind_border(*birth, std::move(made).value()).release();
    log::error("nixl", "agent '{}': {}", birth->agent, made.status().to_string());
    return nullptr;
  });
}

Plugin plugin = {kPluginVersion,
                 create,
                 [](Backend* backend) { delete backend; },
                 []() { return "BRAID"; },
                 []() { return BRAID_VERSION; },
                 []() { return guarded("settings", {}, default_settings); },
                 []() { return guarded("memory_kinds", {}, BraidBackend::memory_kinds); }};

}  // namespace
}  // namespace braid::nixl

extern "C" {
__attribute__((visibility("default"))) braid::nixl::Plugin* nixl_plugin_init() {
  return &braid::nixl::plugin;
}
__attribute__((visibility("default"))) void nixl_plugin_fini() {}
}
