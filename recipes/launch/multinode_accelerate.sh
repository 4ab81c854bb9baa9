#!/usr/bin/env bash
# One training stage on several machines with an accelerate configuration (FSDP2, HSDP, ZeRO). On machine K of 0, 1, ...:
#   MASTER_ADDR=first-machine NODES=2 GPUS=8 NODE_RANK=K bash recipes/launch/multinode_accelerate.sh \
#     recipes/accelerate_configs/hsdp.yaml recipes/my_run/2_pretrain.yaml
# Sizes under parallelism_config in the configuration must multiply to NODES x GPUS. MASTER_PORT: a free port (29500).
set -euo pipefail

configuration=${1:?"usage: MASTER_ADDR=HOST NODES=N GPUS=N NODE_RANK=K bash multinode_accelerate.sh CONFIG.yaml STAGE.yaml"}
stage=${2:?"give the stage file after the configuration"}
shift 2
: "${MASTER_ADDR:?set MASTER_ADDR to the name of machine 0}"
: "${NODES:?set NODES to the number of machines}"
: "${GPUS:?set GPUS to the number of processes on each machine}"
: "${NODE_RANK:?set NODE_RANK to the number of this machine, from 0}"

exec accelerate launch --config_file "$configuration" \
  --num_machines "$NODES" --num_processes "$((NODES * GPUS))" --machine_rank "$NODE_RANK" \
  --main_process_ip "$MASTER_ADDR" --main_process_port "${MASTER_PORT:-29500}" \
  -m hf_pretrain.scripts.pretrain --config "$stage" "$@"
