// Our functions behind the exported names of hooks.inc, over one Shim for the process.
#pragma once

#include "bindings/nccl/calls.h"
#include "bindings/nccl/library.h"
#include "bindings/nccl/names.h"

namespace braid::nccl {

/// Makes the process's Shim; before any hook is called, and once.
void start_hooks(const Library& library, const Settings& settings);

/// Null for a name that is only handed on.
void* hook_of(Name name, const Settings& settings);

}  // namespace braid::nccl
