// What NIXL looks for in libplugin_BRAID.so. No exception leaves it.
#include <exception>

#include "backend.h"
#include "base/log.h"
#include "settings.h"

namespace braid::nixl {
namespace {

Backend* create(const Birth* birth) {
  try {
    auto made = BraidBackend::create(*birth);
    if (made.ok()) return std::move(made).value().release();
    log::error("nixl", "agent '{}': {}", birth->agent, made.status().to_string());
  } catch (const std::exception& e) {
    log::error("nixl", "agent '{}': {}", birth->agent, e.what());
  }
  return nullptr;
}

Plugin plugin = {kPluginVersion,
                 create,
                 [](Backend* backend) { delete backend; },
                 []() { return "BRAID"; },
                 []() { return BRAID_VERSION; },
                 default_settings,
                 BraidBackend::memory_kinds};

}  // namespace
}  // namespace braid::nixl

extern "C" {
__attribute__((visibility("default"))) braid::nixl::Plugin* nixl_plugin_init() {
  return &braid::nixl::plugin;
}
__attribute__((visibility("default"))) void nixl_plugin_fini() {}
}
