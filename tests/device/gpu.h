// What the programs of this folder share: errors that end the program, kernels by name out of the
// fatbins given on the command line, and bytes that look random.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace braid::test {

inline void check(cudaError_t error, const char* what, int line) {
  if (error == cudaSuccess) return;
  std::printf("line %d: %s: %s\n", line, what, cudaGetErrorString(error));
  std::exit(2);
}
#define CHECK_CUDA(call) ::braid::test::check(call, #call, __LINE__)

class Kernels {
 public:
  Kernels(int num_files, char** files) {
    for (int k = 0; k < num_files; ++k) {
      cudaLibrary_t library;
      CHECK_CUDA(
          cudaLibraryLoadFromFile(&library, files[k], nullptr, nullptr, 0, nullptr, nullptr, 0));
      libraries_.push_back(library);
    }
  }
  /// Loaded on all devices: a first launch that had to load would wait for kernels that wait for
  /// it.
  cudaKernel_t find(const std::string& name) const {
    for (const cudaLibrary_t library : libraries_) {
      cudaKernel_t kernel;
      if (cudaLibraryGetKernel(&kernel, library, name.c_str()) == cudaSuccess) return load(kernel);
      cudaGetLastError();
    }
    std::printf("no kernel %s in the files given\n", name.c_str());
    std::exit(2);
  }

 private:
  static cudaKernel_t load(cudaKernel_t kernel) {
    int before = 0;
    int devices = 0;
    CHECK_CUDA(cudaGetDevice(&before));
    CHECK_CUDA(cudaGetDeviceCount(&devices));
    for (int d = 0; d < devices; ++d) {
      cudaFuncAttributes attributes;
      CHECK_CUDA(cudaSetDevice(d));
      CHECK_CUDA(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)));
    }
    CHECK_CUDA(cudaSetDevice(before));
    return kernel;
  }

  std::vector<cudaLibrary_t> libraries_;
};

template <typename Args>
void launch(cudaKernel_t kernel, uint32_t blocks, uint32_t threads, Args args, cudaStream_t stream,
            uint32_t shared_bytes = 0) {
  void* params[] = {&args};
  CHECK_CUDA(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(blocks), dim3(threads),
                              params, shared_bytes, stream));
}

/// Dynamic shared memory over 48 KiB must be allowed.
inline void allow_shared_bytes(cudaKernel_t kernel, uint32_t bytes) {
  CHECK_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(bytes)));
}

/// splitmix64: another number for every (seed, index). For kernels too.
constexpr uint64_t random_bits(uint64_t seed, uint64_t index) {
  uint64_t z = (seed + 1) * 0x9e3779b97f4a7c15 + index * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace braid::test
