// The calls of MPI that nccl-tests makes, between the processes of one host: mpi.c says how. Names
// and meanings are MPI's; what a program may not do here ends it with a line that says so.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int MPI_Comm;
typedef enum {
  MPI_DATATYPE_NULL,
  MPI_BYTE,
  MPI_INT,
  MPI_LONG,
  MPI_LONG_LONG,
  MPI_INT64_T,
  MPI_DOUBLE
} MPI_Datatype;
typedef enum { MPI_OP_NULL, MPI_SUM, MPI_MIN, MPI_MAX } MPI_Op;

#define MPI_SUCCESS 0
#define MPI_COMM_WORLD 0
#define MPI_IN_PLACE ((void*)-1)

int MPI_Init(int* argc, char*** argv);
int MPI_Finalize(void);
int MPI_Comm_size(MPI_Comm comm, int* size);
int MPI_Comm_rank(MPI_Comm comm, int* rank);
/// All ranks must ask for one colour: the new communicator has the ranks of the old one.
int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm* split);
int MPI_Comm_free(MPI_Comm* comm);
int MPI_Barrier(MPI_Comm comm);
int MPI_Bcast(void* buffer, int count, MPI_Datatype type, int root, MPI_Comm comm);
int MPI_Gather(const void* send, int send_count, MPI_Datatype send_type, void* recv, int recv_count,
               MPI_Datatype recv_type, int root, MPI_Comm comm);
/// `send` is MPI_IN_PLACE or a block like those that are received.
int MPI_Allgather(const void* send, int send_count, MPI_Datatype send_type, void* recv,
                  int recv_count, MPI_Datatype recv_type, MPI_Comm comm);
/// Operands are combined in rank order. `send` may be MPI_IN_PLACE.
int MPI_Allreduce(const void* send, void* recv, int count, MPI_Datatype type, MPI_Op op,
                  MPI_Comm comm);

#ifdef __cplusplus
}
#endif
