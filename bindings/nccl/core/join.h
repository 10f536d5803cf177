// Streams of a group's calls wait for each other, as NCCL's do.
#pragma once

#include <span>

#include "base/status.h"
#include "sys/cuda/api.h"

namespace braid::nccl {

/// Work enqueued from now on any of these streams of the current device starts after what is on all
/// of them now. Only streams of one capture wait for each other, and those of none: an event from
/// without would end a capture.
Status join_streams(sys::Cuda& cuda, std::span<const sys::Stream> streams);

}  // namespace braid::nccl
