/* What nccl.h needs of the CUDA runtime. The program asks the driver for everything itself. */
#ifndef BRAID_TESTS_GPU_NCCL_CUDA_RUNTIME_H_
#define BRAID_TESTS_GPU_NCCL_CUDA_RUNTIME_H_

#include <stddef.h>

typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;

#endif
