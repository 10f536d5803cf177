// How kernels of a Buffer's calls are launched: the bodies of its templates, for buffer.cc and the files
// of the two modes.
#pragma once

#include "moe/gpu/buffer.h"
#include "sys/cuda/launch.h"

namespace braid::moe::gpu {

template <typename LaunchAll>
Status Buffer::enqueue(comm::Device& device, const Launch& launch, const LaunchAll& launch_all) {
  BRAID_RETURN_IF_ERROR(device.begin(launch.stream));
  const Status launched = launch_all();
  const Status ended = device.end(launch.stream);
  return launched.ok() ? ended : launched;
}

template <typename Args>
Status Buffer::start(comm::Device& device, const Result<sys::Kernel>& kernel, const Args& args,
                     const Launch& launch, uint64_t bytes) {
  BRAID_RETURN_IF_ERROR(kernel.status());
  return sys::launch(device.cuda(), kernel.value(), {blocks(device, launch, bytes), kThreads},
                     launch.stream, args);
}

}  // namespace braid::moe::gpu
