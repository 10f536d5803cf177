// Whether a stream is being captured, asked on any thread and without leaving a trace.
#pragma once

#include "sys/cuda/api.h"

namespace braid::nccl {

/// Whether a stream is the legacy default stream by one of its names. It cannot be captured, and
/// asking about it fails without a context and while another stream is captured.
bool is_default_by_name(sys::Stream stream);

/// `device` is the communicator's: what the stream may belong to when the calling thread has no
/// context. Equal on all ranks that use streams alike, whatever their threads' contexts are. A
/// stream that cannot be asked counts as captured: nothing is begun on it.
bool is_capturing(sys::Cuda& cuda, int device, sys::Stream stream);

}  // namespace braid::nccl
