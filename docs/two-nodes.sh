#!/usr/bin/env bash
# Llama-3.3-70B with a 1B draft on two nodes of 8 GPUs, by Ray. On the first node:   ./two-nodes.sh head
# on the second:   HEAD=address-of-the-first ./two-nodes.sh worker.   DRY_RUN=1 shows what would run.
# Every node needs: an environment with vllm and ray (ENV), the same files under the same names, no firewall between the nodes;
# the first one headstart as well.
set -euo pipefail

ENV=${ENV:-$HOME/vllm}                               # python -m venv $ENV && $ENV/bin/pip install vllm ray
MODEL=${MODEL:-meta-llama/Llama-3.3-70B-Instruct}
DRAFT=${DRAFT:-meta-llama/Llama-3.2-1B-Instruct}     # the same tokenizer and as many vocabulary rows
K=${K:-4}
GPUS=${GPUS:-8}                                      # per node
SHAPE=${SHAPE:-copies}                               # copies: one model per node. capacity: one model over both
CONTEXT=${CONTEXT:-16384}
PORT=${PORT:-8000}
RAY_PORT=${RAY_PORT:-6379}
role=${1:?head or worker}

run() { if [ -n "${DRY_RUN:-}" ]; then echo "$*"; else "$@"; fi; }

if [ "$role" = worker ]; then
    run "$ENV/bin/ray" start --address "${HEAD:?address of the head node}:$RAY_PORT" --block
    exit
fi

run "$ENV/bin/ray" start --head --port "$RAY_PORT"
if [ -z "${DRY_RUN:-}" ]; then
    until [ "$("$ENV/bin/python" -c 'import ray; ray.init(address="auto", log_to_driver=False); print(int(ray.cluster_resources().get("GPU", 0)))' 2>/dev/null)" = $((2 * GPUS)) ]; do
        echo "waiting for the second node"
        sleep 5
    done
fi

case $SHAPE in
    copies) shape="--tensor-parallel-size $GPUS --data-parallel-size 2 --backend-option data_parallel_size_local=1 --backend-option data_parallel_backend=ray" ;;
    capacity) shape="--tensor-parallel-size $GPUS --pipeline-parallel-size 2 --backend-option distributed_executor_backend=ray" ;;
    *) echo "SHAPE must be copies or capacity" >&2 && exit 2 ;;
esac

# shellcheck disable=SC2086
exec headstart serve "$MODEL" --backend vllm --vllm-python "$ENV/bin/python" --draft "$DRAFT" --num-speculative-tokens "$K" \
    --dtype bfloat16 --max-model-len "$CONTEXT" --gpu-memory-utilization 0.92 $shape --host 127.0.0.1 --port "$PORT" ${DRY_RUN:+--print-command}
