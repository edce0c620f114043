"""
A small inference server: real processes, real HTTP, arithmetic in place of a model.

It behaves like a tensor-parallel engine seen from outside:
a main process that serves, and one rank process for each `--tp`, renamed the way setproctitle does it
(the title overwrites the rank's command line and the beginning of its environment),
holding `/dev/shm/nccl-*` files open in common when NCCL_P2P_DISABLE=1, each its own otherwise.

Environment, for injecting faults through a drop-in:
    INFER_LISTEN_AFTER_S, INFER_READY_AFTER_S: seconds from start to the first answer, and to the first 200.
    INFER_ANSWER: text answered in place of the right one.
    INFER_FAIL_AFTER_S: seconds from start until the server exits with status 3.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import re
import signal
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

START = time.monotonic()
PR_SET_PDEATHSIG = 1


def seconds(name: str) -> float:
    return float(os.environ.get(name, "0"))


def rename(title: str) -> None:
    """Overwrite this process's arguments, and what follows them, with `title`, as setproctitle does."""
    with open("/proc/self/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    arg_start, env_end = int(fields[45]), int(fields[48])
    with open("/proc/self/cmdline", "rb") as file:
        used = len(file.read())
    # setproctitle, too, pads with zero bytes, and runs over into the environment.
    text = title.encode().ljust(min(used + 64, env_end - arg_start - 1), b"\0")
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        memory.seek(arg_start)
        memory.write(text)


def run_rank(rank: int, shared: bool) -> None:
    """Hold the shared memory of a collective, then wait for the end."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    names = ["nccl-lab0", "nccl-lab1"] if shared else [f"nccl-lab-rank{rank}"]
    maps = []
    for name in names:
        handle = os.open("/dev/shm/" + name, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(handle, 4096)
        maps.append(mmap.mmap(handle, 4096))
    rename(f"infer::scheduler_TP{rank}")
    while True:
        signal.pause()


def answer_to(prompt: str) -> str:
    """Work out the last product in the prompt; say so if there is none."""
    if "INFER_ANSWER" in os.environ:
        return os.environ["INFER_ANSWER"]
    found = re.findall(r"(\d+)\s*[*x\u00d7]\s*(\d+)", prompt)
    return str(int(found[-1][0]) * int(found[-1][1])) if found else "I only multiply."


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    model = ""
    answered = 0

    def log_message(self, format: str, *args: object) -> None:
        print(self.client_address[0], format % args, flush=True)

    def reply(self, status: int, body: object, kind: str = "application/json") -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def ready(self) -> bool:
        return time.monotonic() - START >= seconds("INFER_READY_AFTER_S")

    def do_GET(self) -> None:
        if self.path == "/health":
            self.reply(200 if self.ready() else 503, "", "text/plain")
        elif self.path == "/v1/models":
            card = {"id": self.model, "object": "model", "owned_by": "lab", "max_model_len": 4096}
            self.reply(200, {"object": "list", "data": [card]})
        elif self.path == "/metrics":
            self.reply(200, f"infer:requests_total {Handler.answered}\n", "text/plain")
        else:
            self.reply(404, {"error": {"message": "Not Found", "code": 404}})

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        try:
            body = json.loads(raw)
            prompt = body["messages"][-1]["content"]
        except (ValueError, LookupError, TypeError):
            return self.reply(400, {"error": {"message": "bad request", "type": "BadRequestError", "code": 400}})
        if self.path != "/v1/chat/completions":
            return self.reply(404, {"error": {"message": "Not Found", "code": 404}})
        if not self.ready():
            return self.reply(503, {"error": {"message": "loading", "code": 503}})
        if body.get("model", self.model) != self.model:
            return self.reply(404, {"error": {"message": "no such model", "code": 404}})
        text = answer_to(prompt)
        Handler.answered += 1
        usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": 1}
        usage["total_tokens"] = sum(usage.values())
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        head = {"id": f"chatcmpl-{Handler.answered}", "created": int(time.time()), "model": self.model}
        if not body.get("stream"):
            return self.reply(200, {**head, "object": "chat.completion", "choices": [choice], "usage": usage})
        head["object"] = "chat.completion.chunk"
        deltas = [
            {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None},
            {"index": 0, "delta": {}, "finish_reason": "stop"},
        ]
        events = [json.dumps({**head, "choices": [delta]}) for delta in deltas]
        return self.reply(200, "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]), "text/event-stream")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--mem-fraction-static", type=float, default=0.9)
    parser.add_argument("--served-model-name", default="tiny-times")
    options = parser.parse_args()
    Handler.model = options.served_model_name
    for rank in range(options.tp):
        if os.fork() == 0:
            run_rank(rank, os.environ.get("NCCL_P2P_DISABLE") == "1")
    if seconds("INFER_FAIL_AFTER_S"):
        threading.Timer(seconds("INFER_FAIL_AFTER_S"), os._exit, [3]).start()
    time.sleep(seconds("INFER_LISTEN_AFTER_S"))
    server = ThreadingHTTPServer((options.host, options.port), Handler)
    print("The server is fired up and ready to roll!", flush=True)
    server.serve_forever()


main()
