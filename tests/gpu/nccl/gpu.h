/* A rank's GPU through the driver, which is opened at run time: memory, streams, events, graphs.
 *
 * A call that fails ends the process with its name: nothing after it would mean anything.
 * Threads: any; each one calls gpu_use() first. */
#ifndef BRAID_TESTS_GPU_NCCL_GPU_H_
#define BRAID_TESTS_GPU_NCCL_GPU_H_

#include <stddef.h>
#include <stdint.h>

typedef struct CUstream_st* Stream;
typedef struct CUevent_st* Event;
typedef struct CUgraphExec_st* Graph;

/* How many GPUs there are; 0 without a driver. The driver must not be used before a fork: ask in a
 * child. */
int gpu_count(void);
int gpu_of(int rank);
void gpu_use(int device);
/* The calling thread's device. */
int gpu_current(void);

/* Memory of the current device, good until gpu_forget(). It comes out of one block that is
 * allocated at the first gpu_use(): where a process has several GPUs, CUDA's own allocating may
 * wait for all of them, and so for work that waits for this thread. */
void* gpu_alloc(size_t bytes);
void gpu_forget(void);
void gpu_write(void* to, const void* from, size_t bytes);
void gpu_read(void* to, const void* from, size_t bytes);
/* In order on the stream; `from` is read before the call returns or stays as it is. */
void gpu_copy(void* to, const void* from, size_t bytes, Stream stream);

Stream gpu_stream(void);
void gpu_wait(Stream stream);
int gpu_is_done(Stream stream);
/* What `later` gets from now on starts after what is on `earlier` now. */
void gpu_order(Stream later, Stream earlier);

void gpu_begin_capture(Stream stream);
int gpu_is_capturing(Stream stream);
Graph gpu_end_capture(Stream stream);
void gpu_launch(Graph graph, Stream stream);
void gpu_drop(Graph graph);

#endif
