"""`serve MODEL ...`: health, metrics and the key it was given; `--quantization broken` ends with 1."""

import importlib.metadata
import json
import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

COUNTERS = 'vllm:spec_decode_num_draft_tokens_total{engine="0"} 7.0\nvllm:spec_decode_num_accepted_tokens_total{engine="0"} 5.0\n'


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        told = {"/metrics": COUNTERS, "/argv": json.dumps([sys.argv, os.environ.get("VLLM_API_KEY")])}.get(self.path, "")
        self.send_response(200)
        self.end_headers()
        self.wfile.write(told.encode())


def main():
    importlib.metadata.version("vllm")  # as vLLM's command does
    words = sys.argv
    if "broken" in words:
        sys.exit(1)
    HTTPServer((words[words.index("--host") + 1], int(words[words.index("--port") + 1])), Handler).serve_forever()
