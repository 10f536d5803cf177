// Where each exported name goes: decided at its first call, kept in its slot (trampolines.S).
//
// Nothing happens before that: a preloaded library is mapped into every program that a shell
// starts, and nearly none of them uses NCCL.
#include <atomic>
#include <cstdint>
#include <cstdlib>

#include "base/config.h"
#include "base/log.h"
#include "bindings/nccl/fork_safe_once.h"
#include "bindings/nccl/hooks.h"
#include "bindings/nccl/library.h"
#include "bindings/nccl/names.h"

extern "C" {
extern std::atomic<void*> braid_nccl_slots[][2];  // trampolines.S: ncclX and pncclX
void* braid_nccl_resolve(std::atomic<void*>* slot);
}

namespace braid::nccl {

namespace {

constexpr int kSystemError = 2, kInvalidUsage = 5;  // ncclResult_t

// What stands in for functions that nobody has. Their arguments are not looked at.
int without_library() { return kSystemError; }
int without_function() { return kInvalidUsage; }
const char* text_without_library() { return "braid: the real NCCL library was not found"; }

// GetLastError and GetErrorString answer texts.
template <typename Function>
void* address_of(Function* function) {
  return reinterpret_cast<void*>(function);
}

struct Opened {
  Settings settings;
  Result<Library> library = unavailable("not opened");
};

// A program that wants NCCL gets it, whatever is wrong with our own variables.
Config config_or_defaults(Settings& settings) {
  const Result<Config> config = Config::from_environment();
  const Result<Settings> wanted =
      config.ok() ? settings_from(config.value()) : Result<Settings>(config.status());
  if (wanted.ok())
    settings = wanted.value();
  else
    log::error("nccl", "everything is left to NCCL: {}", wanted.status().message());
  settings.is_on = settings.is_on && wanted.ok();
  return config.ok() ? config.value() : Config();
}

Opened open_library() {
  Opened opened;
  const Config config = config_or_defaults(opened.settings);
  if (!log::configure(config.text("BRAID_LOG")))
    log::warn("nccl", "BRAID_LOG '{}' is not understood", config.text("BRAID_LOG"));
  log::set_file(config.text("BRAID_LOG_FILE"));
  opened.library = Library::open(config.text("BRAID_NCCL_REAL"));
  if (!opened.library.ok()) {
    log::error("nccl", "{}", opened.library.status().message());
    return opened;
  }
  log::info("nccl", "the real library is {}", opened.library->path());
  if (opened.settings.is_on) start_hooks(opened.library.value(), opened.settings);
  return opened;
}

// In a child that was forked off in the middle of open_library(): NCCL alone, and no word of it.
Opened open_library_alone() {
  Opened opened;
  opened.settings.is_on = false;
  const char* const named = secure_getenv("BRAID_NCCL_REAL");  // NOLINT(concurrency-mt-unsafe)
  opened.library = Library::open(named != nullptr ? named : "");
  return opened;
}

Opened& opened() {
  static constinit ForkSafeOnce<Opened> the;  // never destroyed, as NCCL's threads
  return the.get([] { return new Opened(open_library()); },
                 [] { return new Opened(open_library_alone()); });
}

void* stand_in(Name name, bool has_library) {
  if (name == Name::kGetErrorString || name == Name::kGetLastError)
    return address_of(text_without_library);
  return has_library ? address_of(without_function) : address_of(without_library);
}

void* target_of(Name name) {
  const Settings& settings = opened().settings;
  const Result<Library>& library = opened().library;
  void* real = library.ok() ? library.value().find(symbol_of(name)) : nullptr;
  void* hook = settings.is_on ? hook_of(name, settings) : nullptr;
  if (real != nullptr) return hook != nullptr ? hook : real;
  if (library.ok())
    log::warn("nccl", "{}: the library {} has no such function", symbol_of(name),
              library.value().path());
  return stand_in(name, library.ok());
}

}  // namespace

}  // namespace braid::nccl

// Two threads may be here for one slot; both find the same.
void* braid_nccl_resolve(std::atomic<void*>* slot) {
  const auto index = static_cast<size_t>(slot - &braid_nccl_slots[0][0]) / 2;
  void* const target = braid::nccl::target_of(static_cast<braid::nccl::Name>(index));
  slot->store(target, std::memory_order_relaxed);
  return target;
}
