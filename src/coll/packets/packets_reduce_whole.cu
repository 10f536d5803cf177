// All-reduce and reduce-scatter of integers by packets.
#include "coll/packets/reduce_body.cuh"

BRAID_EACH_INTEGER(BRAID_PACKET_REDUCE_KERNEL)
