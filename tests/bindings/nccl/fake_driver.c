/* A libcuda.so.1 of three GPUs whose memory is the host's and whose streams are done at once; as
 * much of it as tests/gpu/nccl asks for. It has too little for braid, which leaves everything to
 * NCCL. */
#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

typedef uint64_t Word;

static __thread Word current; /* device + 1 */

int cuInit(Word flags) { return (int)flags; }
int cuDeviceGetCount(int* count) {
  *count = 3;
  return 0;
}
int cuDevicePrimaryCtxRetain(Word* context, Word device) {
  *context = device + 1;
  return 0;
}
int cuCtxSetCurrent(Word context) {
  current = context;
  return 0;
}
int cuCtxGetDevice(int* device) {
  *device = (int)current - 1;
  return current == 0 ? 201 : 0;
}
int cuMemAlloc_v2(Word* memory, Word bytes) {
  void* const made =
      mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  *memory = (Word)(uintptr_t)made;
  return made == MAP_FAILED ? 2 : 0;
}
static int move(Word to, Word from, Word bytes) {
  memmove((void*)(uintptr_t)to, (const void*)(uintptr_t)from, bytes);
  return 0;
}
int cuMemcpyHtoD_v2(Word to, Word from, Word bytes) { return move(to, from, bytes); }
int cuMemcpyDtoH_v2(Word to, Word from, Word bytes) { return move(to, from, bytes); }
int cuMemcpyAsync(Word to, Word from, Word bytes, Word stream) {
  (void)stream;
  return move(to, from, bytes);
}
int cuStreamCreate(Word* stream, Word flags) {
  static Word last = 100;
  *stream = __atomic_add_fetch(&last, 1 + 0 * flags, __ATOMIC_RELAXED);
  return 0;
}
/* 0 is the default stream. */
int cuStreamSynchronize(Word stream) { return stream == 0 || stream > 100 ? 0 : 400; }
int cuStreamQuery(Word stream) { return stream == 0; }
