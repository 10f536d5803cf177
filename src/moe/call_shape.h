// What follows from a call's arguments and must be alike on all ranks, on the host and on GPUs: the
// words of its flags, and what lies where in its copies.
#pragma once

#include "moe/arguments.h"
#include "moe/flag_words.h"
#include "moe/slot.h"

namespace braid::moe {

CallShape shape_of(const LowLatencyDispatch& call);
CallShape shape_of(const LowLatencyCombine& call);
CallShape shape_of(const Dispatch& call);
CallShape shape_of(const Combine& call);

Slot slot_of(const LowLatencyDispatch& call);
Rounds rounds_of(const Dispatch& call, uint64_t region_bytes, int num_ranks);
Rounds rounds_of(const Combine& call, uint64_t region_bytes);

/// What a low-latency call needs of a half at least, invalid_argument where it is more than there is.
Status check_room(const LowLatencyDispatch& call, const WindowLayout& layout);
Status check_room(const LowLatencyCombine& call, const WindowLayout& layout);
Status no_room_for_copies(uint64_t copy_bytes, uint64_t room);
Status too_small(uint64_t wanted, uint64_t found);

}  // namespace braid::moe
