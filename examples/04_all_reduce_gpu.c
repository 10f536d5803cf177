/* A C program with CUDA memory: an all-reduce in place and an uneven all-to-all on its stream, each
 * result checked. One process per GPU.
 *
 *   cc -O2 examples/04_all_reduce_gpu.c -o all_reduce_gpu -I include -I $CUDA_HOME/include \
 *      -L build/release/bindings -lbraid -L $CUDA_HOME/lib64 -lcudart \
 *      -Wl,-rpath,$PWD/build/release/bindings,-rpath,$CUDA_HOME/lib64
 *   braid run -n 2 ./all_reduce_gpu
 */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

#include "braid/braid.h"

enum { kCount = 1 << 22 };

static void check(int is_right, const char* what, const char* why) {
  if (is_right) return;
  fprintf(stderr, "%s: %s\n", what, why);
  exit(1);
}
#define BRAID(call) check((call) == BRAID_OK, #call, braid_last_error())
#define CUDA(call)                                                 \
  do {                                                             \
    const cudaError_t error = (call);                              \
    check(error == cudaSuccess, #call, cudaGetErrorString(error)); \
  } while (0)

static float* on_gpu(size_t count) {
  float* memory = NULL;
  CUDA(cudaMalloc((void**)&memory, count * sizeof(float)));
  return memory;
}

static void put(float* gpu, const float* host, size_t count, cudaStream_t stream) {
  CUDA(cudaMemcpyAsync(gpu, host, count * sizeof(float), cudaMemcpyHostToDevice, stream));
}

static void get(float* host, const float* gpu, size_t count, cudaStream_t stream) {
  CUDA(cudaMemcpyAsync(host, gpu, count * sizeof(float), cudaMemcpyDeviceToHost, stream));
  CUDA(cudaStreamSynchronize(stream));
}

/* Rank r has r + i % 100: whole numbers, whose sum is exact. Registered, so that the other GPUs
 * write their parts of the sum right here. */
static void all_reduce(braid_comm* comm, cudaStream_t stream, float* host) {
  const int rank = braid_rank(comm), size = braid_size(comm);
  float* gpu = on_gpu(kCount);
  BRAID(braid_register(comm, gpu, kCount * sizeof(float)));
  for (int i = 0; i < kCount; ++i) host[i] = (float)(rank + i % 100);
  put(gpu, host, kCount, stream);
  BRAID(braid_all_reduce_on(comm, gpu, gpu, kCount, BRAID_FLOAT32, BRAID_SUM, stream));
  get(host, gpu, kCount, stream);
  for (int i = 0; i < kCount; ++i) {
    const float sum = (float)(size * (size - 1) / 2 + size * (i % 100));
    check(host[i] == sum, "all_reduce", "a sum is wrong");
  }
  BRAID(braid_unregister(comm, gpu));
  CUDA(cudaFree(gpu));
}

/* Rank r sends 1000 * (j + 1) elements with the value r to rank j. */
static void all_to_all(braid_comm* comm, cudaStream_t stream, float* host) {
  enum { kMostRanks = 16, kUnit = 1000 };
  const size_t rank = (size_t)braid_rank(comm), size = (size_t)braid_size(comm);
  size_t sent[kMostRanks], received[kMostRanks], all_sent = 0;
  check(size <= kMostRanks, "all_to_all", "at most 16 GPUs");
  for (size_t r = 0; r < size; ++r) {
    all_sent += sent[r] = kUnit * (r + 1);
    received[r] = kUnit * (rank + 1);
  }
  const size_t all_received = size * kUnit * (rank + 1);
  float *from = on_gpu(all_sent), *to = on_gpu(all_received);
  for (size_t i = 0; i < all_sent; ++i) host[i] = (float)rank;
  put(from, host, all_sent, stream);
  BRAID(braid_all_to_all_v_on(comm, from, sent, to, received, BRAID_FLOAT32, stream));
  get(host, to, all_received, stream);
  for (size_t i = 0; i < all_received; ++i)
    check(host[i] == (float)(i / (kUnit * (rank + 1))), "all_to_all", "an element is wrong");
  CUDA(cudaFree(from));
  CUDA(cudaFree(to));
}

int main(void) {
  const char* local_rank = getenv("LOCAL_RANK");
  int num_gpus = 0; /* 1 where the launcher shows each rank its own alone */
  CUDA(cudaGetDeviceCount(&num_gpus));
  CUDA(cudaSetDevice(local_rank ? atoi(local_rank) % num_gpus : 0));
  braid_comm* comm = NULL;
  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  BRAID(braid_init(&comm));
  float* host = malloc(kCount * sizeof(float));
  check(host != NULL, "malloc", "no memory");
  all_reduce(comm, stream, host);
  all_to_all(comm, stream, host);
  BRAID(braid_barrier(comm));
  if (braid_rank(comm) == 0) printf("%d GPUs: every element is right\n", braid_size(comm));
  BRAID(braid_close(comm));
  free(host);
  CUDA(cudaStreamDestroy(stream));
  return 0;
}
