#!/bin/bash
# Clients as people have them, unchanged, against a real server: each that is installed is run, the others are named.
#
#   benchmarks/clients.sh [MODEL]          clients are looked for in PATH; PYTHON names the interpreter that has headstart
#
# Each client may need an environment of its own: pip install llm | aiperf | guidellm | vllm. Exit code 1 when one of them failed.
set -u
cd "$(dirname "$0")/.."
model=${1:-$HOME/.cache/headstart/SmolLM2-135M-Instruct.Q4_1.gguf} python=${PYTHON:-python}
work=$(mktemp -d) failed=0
port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
url=http://127.0.0.1:$port

"$python" -m headstart serve "$model" --draft ngram --max-model-len 2048 --port "$port" --served-model-name served 2> "$work/server.log" &
server=$!
trap 'kill $server; wait $server; rm -rf "$work"' EXIT
until curl -sf "$url/health" > /dev/null; do
  kill -0 $server 2> /dev/null || { cat "$work/server.log"; exit 1; }
  sleep 0.5
done
# The load tools count tokens themselves: the tokenizer, as a folder.
"$python" - "$model" "$work/tokenizer" <<'PYTHON'
import sys
from headstart.runtime.checkpoint import open_checkpoint
from headstart.runtime.tokenizer import load_tokenizer
load_tokenizer(open_checkpoint(sys.argv[1], None, None), None, None, None).save_pretrained(sys.argv[2])
PYTHON

try() { # NAME WHAT-IT-MUST-PRINT COMMAND...
  local name=$1 must=$2; shift 2
  if ! command -v "$1" > /dev/null; then echo "$name: not installed, skipped"; return; fi
  if (cd "$work" && "$@") > "$work/$name.log" 2>&1 && grep -qE "$must" "$work/$name.log"; then
    echo "$name: works"; grep -E "$must" "$work/$name.log" | head -5
  else
    echo "$name: FAILED"; tail -20 "$work/$name.log"; failed=1
  fi
}

export LLM_USER_PATH=$work/llm OPENAI_API_KEY=any HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 HF_DATASETS_OFFLINE=1
mkdir -p "$LLM_USER_PATH"
cat > "$LLM_USER_PATH/extra-openai-models.yaml" <<YAML
- model_id: headstart
  model_name: served
  api_base: $url/v1
  api_key_name: any
YAML
try llm "[A-Za-z]" llm -m headstart --key any -o max_tokens 12 -o temperature 0 "Say hello."
try aiperf "Output Token Throughput|Request Count|Acceptance|Speculative" aiperf profile --model served --url "$url" --endpoint-type chat \
  --streaming --request-count 6 --concurrency 2 --tokenizer builtin --use-server-token-count --synthetic-input-tokens-mean 40 \
  --output-tokens-mean 16 --artifact-dir "$work/aiperf" --ui simple
try guidellm "successful=[1-9][0-9]* errored=0" guidellm run --backend "kind=openai_http,target=$url,model=served" --profile kind=synchronous \
  --constraint kind=max_requests,count=4 --data kind=synthetic_text,prompt_tokens=40,output_tokens=16 \
  --tokenizer "{\"kind\": \"huggingface_auto\", \"model\": \"$work/tokenizer\"}" --disable-progress
try vllm "Output token throughput|Acceptance" vllm bench serve --base-url "$url" --model served --tokenizer "$work/tokenizer" \
  --dataset-name random --random-input-len 40 --random-output-len 16 --num-prompts 6 --max-concurrency 2
exit $failed
