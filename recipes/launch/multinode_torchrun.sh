#!/usr/bin/env bash
# One training stage on several machines without a scheduler. Run the same line on every machine:
#   MASTER_ADDR=first-machine NODES=2 GPUS=8 bash recipes/launch/multinode_torchrun.sh recipes/my_run/2_pretrain.yaml
# MASTER_ADDR: a name or address of one of them that the others reach. NODES: machines. GPUS: processes on each.
# MASTER_PORT: a free port there (29500). JOB: a name that no other run uses (hf-pretrain).
set -euo pipefail

stage=${1:?"usage: MASTER_ADDR=HOST NODES=N GPUS=N bash multinode_torchrun.sh STAGE.yaml [--set key=value ...]"}
shift
: "${MASTER_ADDR:?set MASTER_ADDR to the name of one of the machines}"
: "${NODES:?set NODES to the number of machines}"
: "${GPUS:?set GPUS to the number of processes on each machine}"

# torchrun hands SIGTERM on to the processes and gives them 30 seconds: save often, or stop with SIGUSR1 to each process.
exec torchrun \
  --nnodes "$NODES" --nproc_per_node "$GPUS" \
  --rdzv_backend c10d --rdzv_endpoint "$MASTER_ADDR:${MASTER_PORT:-29500}" --rdzv_id "${JOB:-hf-pretrain}" \
  -m hf_pretrain.scripts.pretrain --config "$stage" "$@"
