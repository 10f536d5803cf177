/* What is checked, one function a subject. Every rank runs all of them, in one order. */
#ifndef BRAID_TESTS_GPU_NCCL_SECTIONS_H_
#define BRAID_TESTS_GPU_NCCL_SECTIONS_H_

#include "rank.h"

/* calls.c */
void check_collectives(Rank* r);
void check_rooted(Rank* r);
void check_exchanges(Rank* r);
void check_zero_counts(Rank* r);
void check_refusals(Rank* r);
void check_premul(Rank* r);
/* groups.c */
void check_groups(Rank* r);
void check_crosswise(Rank* r);
void check_simulation(Rank* r);
void check_graphs(Rank* r);
/* comms.c */
void check_facts(Rank* r);
void check_config(Rank* r);
void check_split(Rank* r);
void check_shrink(Rank* r);
void check_finalize(Rank* r);
void check_abort(Rank* r);
void check_abort_group(Rank* r);
void check_forks(Rank* r);
void check_death(Rank* r); /* the last: the highest rank does not come back */
/* memory.c */
void check_registered(Rank* r);
void check_windows(Rank* r);

/* one_thread.c: all ranks of one process on one thread. Answers how many checks failed. */
int check_one_thread(int size);

#endif
