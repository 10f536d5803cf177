#!/usr/bin/env bash
# The same line on every node, with this node's number:
#
#   NODES=2 RANKS=8 HEAD=10.0.0.1 NODE=0 examples/launch/torchrun.sh examples/launch/train.py
#   NODES=2 RANKS=8 HEAD=10.0.0.1 NODE=1 examples/launch/torchrun.sh examples/launch/train.py
#
# HEAD is node 0's address. RENDEZVOUS=c10d lets torchrun's own store say who is who instead; where hosts do not
# resolve their own names (containers, network namespaces) it must be told which node serves it, and each one its
# address (ADDRESS).
set -euo pipefail
: "${NODES:?how many nodes there are}" "${RANKS:?how many ranks on each}"
: "${HEAD:?node 0, by its address}" "${NODE:?the number of this node, from 0}"
common=(--nnodes "$NODES" --nproc-per-node "$RANKS")
if [[ ${RENDEZVOUS:-static} == c10d ]]; then
  : "${ADDRESS:?the address of this node}"
  exec torchrun "${common[@]}" --rdzv-backend c10d --rdzv-endpoint "$HEAD:29500" --rdzv-id "${JOB:-braid}" \
    --rdzv-conf "is_host=$((NODE == 0))" --local-addr "$ADDRESS" "$@"
fi
exec torchrun "${common[@]}" --node-rank "$NODE" --master-addr "$HEAD" --master-port 29500 "$@"
