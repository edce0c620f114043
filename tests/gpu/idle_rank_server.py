"""
A server over two GPUs of which one can be idled on purpose: what participation must see, and nothing else does.

    python idle_rank_server.py PORT [--idle-rank RANK]

Each rank is a process of its own with a CUDA context and half of a matrix; every token is computed by both, and the
halves are summed in host memory. An idled rank holds its memory and is never asked: rank 0 computes both halves, and
every answer stays right. It speaks as much of the OpenAI API as the load needs; needs torch.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch

MODEL = "two-ranks"
SIZE = 4096
ROUNDS = 12


def work(rank: int, pipe: Any) -> None:
    """Be one rank: multiply whenever asked to, and give a sum."""
    torch.cuda.set_device(rank)
    half = torch.full((SIZE, SIZE // 2), 1.0 / SIZE, device="cuda", dtype=torch.bfloat16)
    rows = torch.ones((SIZE, SIZE), device="cuda", dtype=torch.bfloat16)
    pipe.send("ready")
    while True:
        rounds = pipe.recv()
        total = torch.zeros((), device="cuda")
        for _ in range(rounds):
            total += (rows @ half).float().mean()
        pipe.send(float(total))


class Ranks:
    """Both ranks."""

    def __init__(self, idle: int | None) -> None:
        context = multiprocessing.get_context("spawn")
        self.idle = idle
        self.lock = threading.Lock()
        self.pipes = []
        for rank in range(2):
            ours, theirs = context.Pipe()
            context.Process(target=work, args=(rank, theirs), daemon=True, name=f"rank{rank}").start()
            self.pipes.append(ours)
        for pipe in self.pipes:
            pipe.recv()

    def token(self) -> None:
        """Compute one token on every rank that is not idled."""
        with self.lock:
            active = [pipe for rank, pipe in enumerate(self.pipes) if rank != self.idle]
            for pipe in active:
                pipe.send(ROUNDS * 2 // len(active))
            for pipe in active:
                pipe.recv()


def handler(ranks: Ranks) -> type[BaseHTTPRequestHandler]:
    """Make the handler of requests."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def give(self, body: object, status: int = 200) -> None:
            data = json.dumps(body).encode() if body is not None else b""
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            if self.path == "/health":
                self.give({"status": "ok"})
            elif self.path == "/v1/models":
                self.give({"object": "list", "data": [{"id": MODEL, "object": "model", "created": int(time.time())}]})
            else:
                self.give({"error": {"message": "no such path"}}, 404)

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            match = re.search(r"(\d+)\*(\d+)", request["messages"][-1]["content"])
            pieces = list(str(int(match[1]) * int(match[2]))) if match else ["Hello"]
            usage = {"prompt_tokens": 8, "completion_tokens": len(pieces), "total_tokens": 8 + len(pieces)}
            head = {"id": "1", "object": "chat.completion.chunk", "model": MODEL, "created": int(time.time())}
            if not request.get("stream"):
                for _ in pieces:
                    ranks.token()
                message = {"role": "assistant", "content": "".join(pieces)}
                choice = {"index": 0, "message": message, "finish_reason": "stop"}
                self.give({**head, "object": "chat.completion", "choices": [choice], "usage": usage})
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()

            def say(choices: list[dict[str, Any]], **more: Any) -> None:
                self.wfile.write(f"data: {json.dumps({**head, 'choices': choices, **more})}\n\n".encode())
                self.wfile.flush()

            for piece in pieces:
                ranks.token()
                say([{"index": 0, "delta": {"content": piece}, "finish_reason": None}])
            say([{"index": 0, "delta": {}, "finish_reason": "stop"}])
            say([], usage=usage)
            self.wfile.write(b"data: [DONE]\n\n")

    return Handler


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--idle-rank", type=int)
    arguments = parser.parse_args()
    ranks = Ranks(arguments.idle_rank)
    ThreadingHTTPServer(("127.0.0.1", arguments.port), handler(ranks)).serve_forever()


if __name__ == "__main__":
    main()
