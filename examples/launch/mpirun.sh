#!/usr/bin/env bash
# HOSTS=10.0.0.1:8,10.0.0.2:8 examples/launch/mpirun.sh examples/launch/train.py
#
# mpirun starts the ranks, and nothing of MPI's is used by them. The first host is rank 0's.
set -euo pipefail
: "${HOSTS:?as mpirun has it, such as 10.0.0.1:8,10.0.0.2:8}"
first=${HOSTS%%,*}
MASTER_ADDR=${MASTER_ADDR:-${first%%:*}}
MASTER_PORT=${MASTER_PORT:-29500}
BRAID_JOB_TOKEN=${BRAID_JOB_TOKEN:-$(od -An -N16 -tx8 /dev/urandom | tr -d ' \n')}
export MASTER_ADDR MASTER_PORT BRAID_JOB_TOKEN
exec mpirun --host "$HOSTS" --map-by slot --bind-to none ${MPIRUN_OPTIONS:-} \
  -x MASTER_ADDR -x MASTER_PORT -x BRAID_JOB_TOKEN "${PYTHON:-python}" "$@"
