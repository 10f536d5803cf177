#include "sys/cuda/loaded_kernels.h"

#include <utility>
#include <vector>

namespace braid::sys {

namespace {

/// Never destroyed: a comm may end later than static objects do.
struct All {
  std::mutex mutex;
  std::map<std::pair<const Cuda*, int>, std::weak_ptr<LoadedKernels>> known;
  std::vector<std::shared_ptr<LoadedKernels>> kept;
};

All& all() {
  static All* const the = new All;
  return *the;
}

}  // namespace

std::shared_ptr<LoadedKernels> LoadedKernels::of(Cuda& cuda, int device) {
  const std::lock_guard lock(all().mutex);
  std::weak_ptr<LoadedKernels>& known = all().known[{&cuda, device}];
  std::shared_ptr<LoadedKernels> held = known.lock();
  if (held) return held;
  known = held = std::make_shared<LoadedKernels>(cuda);
  if (&cuda == &real_cuda()) all().kept.push_back(held);
  return held;
}

LoadedKernels::~LoadedKernels() {
  for (const auto& [fatbin, module] : modules_) (void)cuda_.unload_module(module);
}

Result<LoadedKernels::Entry*> LoadedKernels::entry(std::span<const std::byte> fatbin,
                                                   const char* name) {
  const auto known = entries_.find(name);
  if (known != entries_.end()) return &known->second;
  auto module = modules_.find(fatbin.data());
  if (module == modules_.end()) {
    BRAID_ASSIGN_OR_RETURN(const Module loaded, cuda_.load_module(fatbin));
    module = modules_.emplace(fatbin.data(), loaded).first;
  }
  BRAID_ASSIGN_OR_RETURN(const Kernel kernel, cuda_.kernel(module->second, name));
  return &entries_.emplace(name, Entry{kernel, 0}).first->second;
}

// What a comm has been allowed must stay allowed when another one asks for less.
Result<Kernel> LoadedKernels::find(std::span<const std::byte> fatbin, const char* name,
                                   uint32_t shared_bytes) {
  const std::lock_guard lock(mutex_);
  BRAID_ASSIGN_OR_RETURN(Entry * found, entry(fatbin, name));
  if (shared_bytes > found->shared_bytes) {
    BRAID_RETURN_IF_ERROR(cuda_.allow_shared_bytes(found->kernel, shared_bytes));
    found->shared_bytes = shared_bytes;
  }
  return found->kernel;
}

}  // namespace braid::sys
