// What a tool and an NVTX client say to each other (nvtxTypes.h of NVTX 3, our own reading; numbers
// and layouts are part of its ABI). The tool's InitializeInjectionNvtx2 asks us for two tables: one
// that tells our version, one whose function gives, for each module of the interface, an array of
// pointers to function pointers, which the tool sets. Those it leaves alone stay null. We call a
// few of the module CORE2.
#include <dlfcn.h>

#include <array>
#include <cstddef>
#include <cstdlib>

#include "sys/nvtx/api.h"

namespace braid::sys {

namespace {

using AnyFunction = void (*)();

constexpr uint32_t kNvtxVersion = 3;
enum Module { kCore2 = 5, kNumModules = 7 };
/// Functions of each module, counting the unused number 0.
constexpr std::array<unsigned, kNumModules> kNumFunctions = {0, 16, 9, 15, 7, 16, 7};
constexpr size_t kMostFunctions = 16;
enum Core2 { kRangePush = 4, kRangePop = 5, kDomainCreate = 12, kInitialize = 15 };

struct EventAttributes {  // nvtxEventAttributes_v2
  uint16_t version, size_bytes;
  uint32_t category;
  int32_t color_type;
  uint32_t color;
  int32_t payload_type, reserved;
  uint64_t payload;
  int32_t message_type;
  const char* message;
};
static_assert(sizeof(EventAttributes) == 48 && offsetof(EventAttributes, message) == 40);
constexpr int32_t kIsArgb = 1, kIsUnsigned64 = 1, kIsAscii = 1;
constexpr uint32_t kGreen = 0xff2e8b57;

struct Callbacks {  // NvtxExportTableCallbacks
  size_t size_bytes;
  int (*functions_of)(int module, AnyFunction*** table, unsigned* num_functions);
};
struct VersionInfo {  // NvtxExportTableVersionInfo
  size_t size_bytes;
  uint32_t version, reserved;
  void (*tell_tools_version)(uint32_t version);
};

/// The tool gets no word of whom it speaks to, so there is one of these in a process.
struct Tables {
  std::array<std::array<AnyFunction, kMostFunctions>, kNumModules> functions{};
  std::array<std::array<AnyFunction*, kMostFunctions + 1>, kNumModules> pointers{};  // null at last
};

Tables& tables() {
  static Tables* const kThe = [] {
    auto* made = new Tables;
    for (size_t module = 1; module < kNumModules; ++module)
      for (size_t i = 1; i < kNumFunctions[module]; ++i)
        made->pointers[module][i] = &made->functions[module][i];
    return made;
  }();
  return *kThe;
}

int functions_of(int module, AnyFunction*** table, unsigned* num_functions) {
  if (module < 1 || module >= kNumModules) return 0;
  const auto index = static_cast<size_t>(module);
  if (num_functions != nullptr) *num_functions = kNumFunctions[index];
  if (table != nullptr) *table = tables().pointers[index].data();
  return 1;
}

const void* table_called(uint32_t id) {
  constexpr uint32_t kCallbacks = 1, kVersionInfo = 3;
  static const Callbacks kTable{sizeof(Callbacks), &functions_of};
  static const VersionInfo kVersion{sizeof(VersionInfo), kNvtxVersion, 0, [](uint32_t) {}};
  if (id == kCallbacks) return &kTable;
  return id == kVersionInfo ? &kVersion : nullptr;
}

template <typename Function>
Function* core2(Core2 number) {
  return reinterpret_cast<Function*>(tables().functions[kCore2][number]);
}

class AttachedNvtx final : public Nvtx {
 public:
  using Push = int(void* domain, const EventAttributes*);
  using Pop = int(void* domain);
  using Create = void*(const char* name);
  using Initialize = void(const void* reserved);

  static Result<std::unique_ptr<Nvtx>> create(const std::string& path) {
    auto* const opening = core2<Push>(kRangePush);
    auto* const closing = core2<Pop>(kRangePop);
    if (opening == nullptr || closing == nullptr)
      return unavailable("nvtx tool {}: it takes no ranges", path);
    if (auto* const initialize = core2<Initialize>(kInitialize)) initialize(nullptr);
    auto* const create_domain = core2<Create>(kDomainCreate);
    void* const domain = create_domain != nullptr ? create_domain("braid") : nullptr;
    return std::unique_ptr<Nvtx>(new AttachedNvtx(domain, opening, closing));
  }

  void push(const char* message, uint64_t payload) override {
    EventAttributes event{};
    event.version = kNvtxVersion;
    event.size_bytes = sizeof event;
    event.color_type = kIsArgb;
    event.color = kGreen;
    event.payload_type = kIsUnsigned64;
    event.payload = payload;
    event.message_type = kIsAscii;
    event.message = message;
    push_(domain_, &event);
  }
  void pop() override { pop_(domain_); }

 private:
  AttachedNvtx(void* domain, Push* opening, Pop* closing)
      : domain_(domain), push_(opening), pop_(closing) {}
  void* const domain_;
  Push* const push_;
  Pop* const pop_;
};

const char* loaders_words() {
  const char* why = ::dlerror();  // NOLINT(concurrency-mt-unsafe): glibc keeps the text per thread
  return why != nullptr ? why : "no reason given";
}

}  // namespace

Result<std::unique_ptr<Nvtx>> attach_nvtx(const std::string& path) {
  using Initialize = int(const void* (*table_called)(uint32_t));
  void* library = ::dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return unavailable("nvtx tool: {}", loaders_words());
  auto* const initialize =
      reinterpret_cast<Initialize*>(::dlsym(library, "InitializeInjectionNvtx2"));
  if (initialize == nullptr) {
    ::dlclose(library);
    return unavailable("nvtx tool {}: no InitializeInjectionNvtx2 in it", path);
  }
  if (initialize(&table_called) == 0) return unavailable("nvtx tool {}: it refuses", path);
  return AttachedNvtx::create(path);
}

Result<Nvtx*> real_nvtx() {
  static const auto* const kAttached = [] {
    // NOLINTNEXTLINE(concurrency-mt-unsafe): braid never changes the environment
    const char* path = secure_getenv("NVTX_INJECTION64_PATH");
    const bool is_named = path != nullptr && *path != '\0';
    return new auto(is_named ? attach_nvtx(path)
                             : Result<std::unique_ptr<Nvtx>>(
                                   unavailable("nvtx: NVTX_INJECTION64_PATH names no tool")));
  }();
  if (!kAttached->ok()) return kAttached->status();
  return kAttached->value().get();
}

}  // namespace braid::sys
