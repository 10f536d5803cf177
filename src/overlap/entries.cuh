// The entries of one operation: both types, both orders of the weights, the tiles of forms.h. Where
// the instructions are missing (sm_80, sm_100a) they are there and empty, and calls never launch
// them: they go the sequential way (forms.h, runs_on()).
#pragma once

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define BRAID_CLUSTER(size) __cluster_dims__(size, 1, 1)
#define BRAID_RUN(...) braid::overlap::run<braid::overlap::Kind<__VA_ARGS__>>(args)
#else
#define BRAID_CLUSTER(size)
#define BRAID_RUN(...)
#endif

#define BRAID_ENTRY(name, op, type, n, cluster_m, cluster_n, along_n)                            \
  extern "C" __global__ void BRAID_CLUSTER(cluster_m* cluster_n) __launch_bounds__(              \
      braid::overlap::kThreads, 1) name(const __grid_constant__ braid::overlap::GemmArgs args) { \
    BRAID_RUN(braid::overlap::Op::op, type, n, cluster_m, cluster_n, along_n);                   \
  }

#define BRAID_ENTRIES_SMALL(name, op, type, along_n) \
  BRAID_ENTRY(name##_128_beside, op, type, 128, 1, 2, along_n)
#define BRAID_ENTRIES_ALL(name, op, type, along_n)             \
  BRAID_ENTRY(name##_256_below, op, type, 256, 2, 1, along_n)  \
  BRAID_ENTRY(name##_256_beside, op, type, 256, 1, 2, along_n) \
  BRAID_ENTRIES_SMALL(name, op, type, along_n)

/// `forms` SMALL: tiles of 128 columns alone.
#define BRAID_ENTRIES(name, op, forms)                                           \
  BRAID_ENTRIES_##forms(braid_##name##_bf16, op, __nv_bfloat16, false)           \
      BRAID_ENTRIES_##forms(braid_##name##_fp16, op, __half, false)              \
          BRAID_ENTRIES_##forms(braid_##name##_bf16_kn, op, __nv_bfloat16, true) \
              BRAID_ENTRIES_##forms(braid_##name##_fp16_kn, op, __half, true)
