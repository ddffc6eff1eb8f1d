#!/usr/bin/env bash
# Queries the served model with curl: the state of the server, then each signature.
#
#   export/client_curl.sh [HOST:PORT]
set -euo pipefail
url="http://${1:-localhost:8501}/v1/models/rt_keras"

ask() {
  curl --silent --show-error --fail-with-body --header 'Content-Type: application/json' --data "$1" "$url:predict"
  echo
}

curl --silent --show-error --fail-with-body "$url"
echo
ask '{"signature_name": "score", "inputs": {"ids": [[81, 112, 101]]}}'
ask '{"signature_name": "score_text", "inputs": {"texts": ["Once upon a time"]}}'
# Omitted parameters have their defaults.
ask '{"signature_name": "generate", "inputs": {"prompts": ["Once upon", "There was"], "max_new_tokens": 20, "temperature": 0.8}}'
# Row by row: each prompt has its own parameters. Bytes that are not text are sent as {"b64": ...}.
ask '{"signature_name": "generate", "instances": [
  {"prompts": "Once upon", "max_new_tokens": 20, "temperature": 0.8, "top_p": 0.9, "top_k": 0, "seed": 1},
  {"prompts": {"b64": "T25jZQ=="}, "max_new_tokens": 5, "temperature": 1.0, "top_p": 1.0, "top_k": 40, "seed": 2}]}'
