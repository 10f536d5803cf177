#include "gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long Address; /* CUdeviceptr */

static void* driver(void) {
  static void* library;
  if (library == NULL) library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  return library;
}

typedef int Call(Address, Address, Address, Address);

/* All arguments of the driver's calls here are integers or pointers of 64 bits, in registers. */
static Call* find(const char* name) {
  void* const found = driver() ? dlsym(driver(), name) : NULL;
  Call* call = NULL;
  memcpy(&call, &found, sizeof call);
  return call;
}

static void must(const char* name, Address a, Address b, Address c, Address d) {
  Call* const call = find(name);
  const int code = call ? call(a, b, c, d) : -1;
  if (code == 0) return;
  fprintf(stderr, "nccl_conformance: %s: error %d\n", name, code);
  exit(3);
}

#define AT(pointer) ((Address)(uintptr_t)(pointer))

int gpu_count(void) {
  int count = 0;
  if (driver() == NULL || find("cuInit")(0, 0, 0, 0) != 0) return 0;
  return find("cuDeviceGetCount")(AT(&count), 0, 0, 0) == 0 ? count : 0;
}

int gpu_of(int rank) {
  const int count = gpu_count();
  return count > 0 ? rank % count : rank;
}

enum { kMostDevices = 64 };
static const size_t kBlockBytes = (size_t)4 << 30;
static struct {
  Address block;
  size_t used;
} arenas[kMostDevices]; /* each is its rank's thread's */

void gpu_use(int device) {
  void* context = NULL;
  must("cuInit", 0, 0, 0, 0);
  must("cuDevicePrimaryCtxRetain", AT(&context), (Address)device, 0, 0);
  must("cuCtxSetCurrent", AT(context), 0, 0, 0);
  if (arenas[device].block == 0)
    must("cuMemAlloc_v2", AT(&arenas[device].block), kBlockBytes, 0, 0);
}

int gpu_current(void) {
  int device = -1;
  must("cuCtxGetDevice", AT(&device), 0, 0, 0);
  return device;
}

void* gpu_alloc(size_t bytes) {
  const int device = gpu_current();
  const size_t begin = arenas[device].used, end = begin + (bytes + 511) / 512 * 512;
  if (end > kBlockBytes) {
    fprintf(stderr, "nccl_conformance: a section wants more than %zu bytes\n", kBlockBytes);
    exit(3);
  }
  arenas[device].used = end;
  return (void*)(uintptr_t)(arenas[device].block + begin);
}
void gpu_forget(void) { arenas[gpu_current()].used = 0; }

/* The copy returns when pageable memory has been read, and may still be on its way to the GPU: work
 * of a stream that does not wait for the default one would overtake it. (A Bcast of 1 MiB sent the
 * last 50 KiB of what was there before.) */
void gpu_write(void* to, const void* from, size_t bytes) {
  must("cuMemcpyHtoD_v2", AT(to), AT(from), bytes, 0);
  gpu_wait(NULL);
}
void gpu_read(void* to, const void* from, size_t bytes) {
  must("cuMemcpyDtoH_v2", AT(to), AT(from), bytes, 0);
}
void gpu_copy(void* to, const void* from, size_t bytes, Stream stream) {
  must("cuMemcpyAsync", AT(to), AT(from), bytes, AT(stream));
}

Stream gpu_stream(void) {
  enum { kNonBlocking = 1 };
  Stream stream = NULL;
  must("cuStreamCreate", AT(&stream), kNonBlocking, 0, 0);
  return stream;
}
void gpu_wait(Stream stream) { must("cuStreamSynchronize", AT(stream), 0, 0, 0); }
int gpu_is_done(Stream stream) { return find("cuStreamQuery")(AT(stream), 0, 0, 0) == 0; }

void gpu_order(Stream later, Stream earlier) {
  enum { kNoTiming = 2 };
  Event event = NULL;
  must("cuEventCreate", AT(&event), kNoTiming, 0, 0);
  must("cuEventRecord", AT(event), AT(earlier), 0, 0);
  must("cuStreamWaitEvent", AT(later), AT(event), 0, 0);
  must("cuEventDestroy_v2", AT(event), 0, 0, 0);
}

void gpu_begin_capture(Stream stream) {
  enum { kThreadLocal = 1 };
  must("cuStreamBeginCapture_v2", AT(stream), kThreadLocal, 0, 0);
}
int gpu_is_capturing(Stream stream) {
  int state = 0;
  must("cuStreamIsCapturing", AT(stream), AT(&state), 0, 0);
  return state != 0;
}
Graph gpu_end_capture(Stream stream) {
  void* captured = NULL;
  Graph graph = NULL;
  must("cuStreamEndCapture", AT(stream), AT(&captured), 0, 0);
  must("cuGraphInstantiateWithFlags", AT(&graph), AT(captured), 0, 0);
  must("cuGraphDestroy", AT(captured), 0, 0, 0);
  return graph;
}
void gpu_launch(Graph graph, Stream stream) { must("cuGraphLaunch", AT(graph), AT(stream), 0, 0); }
void gpu_drop(Graph graph) { must("cuGraphExecDestroy", AT(graph), 0, 0, 0); }
