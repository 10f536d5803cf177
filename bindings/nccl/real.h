// The real functions that hooks call. A name that the real library lacks answers kInvalidUsage.
#pragma once

#include "bindings/nccl/abi.h"

namespace braid::nccl {

class Library;

struct Real {
  NcclResult (*version)(int*);
  NcclResult (*unique_id)(UniqueId*);
  NcclResult (*init_rank)(NcclComm*, int num_ranks, UniqueId, int rank);
  NcclResult (*init_rank_config)(NcclComm*, int num_ranks, UniqueId, int rank, void* config);
  NcclResult (*init_rank_scalable)(NcclComm*, int num_ranks, int rank, int num_ids, UniqueId*,
                                   void* config);
  NcclResult (*init_all)(NcclComm*, int num_devices, const int* devices);
  NcclResult (*split)(NcclComm, int color, int key, NcclComm*, void* config);
  NcclResult (*shrink)(NcclComm, int* excluded, int num_excluded, NcclComm*, void* config,
                       int flags);
  NcclResult (*finalize)(NcclComm);
  NcclResult (*destroy)(NcclComm);
  NcclResult (*abort)(NcclComm);
  NcclResult (*revoke)(NcclComm, int flags);
  NcclResult (*mem_alloc)(void** memory, size_t bytes);
  NcclResult (*mem_free)(void* memory);
  NcclResult (*window_register)(NcclComm, void* memory, size_t bytes, void** window, int flags);
  NcclResult (*window_deregister)(NcclComm, void* window);
  NcclResult (*get_async_error)(NcclComm, NcclResult*);
  const char* (*get_last_error)(NcclComm);
  NcclResult (*count)(NcclComm, int*);
  NcclResult (*user_rank)(NcclComm, int*);
  NcclResult (*device)(NcclComm, int*);

  NcclResult (*group_start)();
  NcclResult (*group_end)();
  NcclResult (*group_simulate_end)(void* simulation);

  NcclResult (*all_reduce)(const void* send, void* recv, size_t count, int dtype, int redop,
                           NcclComm, CudaStream);
  NcclResult (*all_gather)(const void* send, void* recv, size_t count, int dtype, NcclComm,
                           CudaStream);
  NcclResult (*reduce_scatter)(const void* send, void* recv, size_t count, int dtype, int redop,
                               NcclComm, CudaStream);
  NcclResult (*broadcast)(const void* send, void* recv, size_t count, int dtype, int root, NcclComm,
                          CudaStream);
  NcclResult (*all_to_all)(const void* send, void* recv, size_t count, int dtype, NcclComm,
                           CudaStream);
  bool lacks_all_to_all;  // before 2.28
  NcclResult (*send)(const void* send, size_t count, int dtype, int peer, NcclComm, CudaStream);
  NcclResult (*recv)(void* recv, size_t count, int dtype, int peer, NcclComm, CudaStream);
};

Real load_real(const Library& library);

}  // namespace braid::nccl
