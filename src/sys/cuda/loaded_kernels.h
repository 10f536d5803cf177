// Kernels of embedded fatbins, loaded once for each GPU of a process however many comms use them.
//
// The driver lets no load of a module end while a kernel runs on any GPU of the process. A kernel
// that waits for a peer runs for as long as the peer likes, and for ever when the peer waits for
// this host. So whatever a comm may launch is loaded before its first call, and a comm that is made
// beside others finds it there. An unload waits as a load does: on real GPUs there is none.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "sys/cuda/api.h"

namespace braid::sys {

class LoadedKernels {
 public:
  /// Those of a GPU, which all who ask share: of real_cuda() for good, of another Cuda for as long
  /// as somebody holds them, who lets go of them in the context of the GPU. Threads: any.
  static std::shared_ptr<LoadedKernels> of(Cuda& cuda, int device);

  explicit LoadedKernels(Cuda& cuda) : cuda_(cuda) {}
  ~LoadedKernels();
  LoadedKernels(const LoadedKernels&) = delete;
  LoadedKernels& operator=(const LoadedKernels&) = delete;

  /// An entry of `fatbin`, which may be launched with `shared_bytes` of dynamic shared memory, or
  /// as many as anyone has asked for. In the context of the GPU. Threads: any. Errors: those of
  /// Cuda::load_module() and Cuda::kernel(); nothing of what failed is kept.
  Result<Kernel> find(std::span<const std::byte> fatbin, const char* name, uint32_t shared_bytes);

 private:
  struct Entry {
    Kernel kernel{};
    uint32_t shared_bytes = 0;
  };
  Result<Entry*> entry(std::span<const std::byte> fatbin, const char* name);

  Cuda& cuda_;
  std::mutex mutex_;
  std::map<const std::byte*, Module> modules_;  // by their fatbin
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace braid::sys
