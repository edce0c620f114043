"""
A healthy inference server of the standard library, for hosts of the lab that have nothing else.

    tiny_server.py ADDRESS PORT MODEL [--closes-after-refusal]

It serves /health, /v1/models and /v1/chat/completions, whole and streamed; it knows every product of two numbers.
With --closes-after-refusal it closes a connection after each refused request, without saying so.
"""

import json
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    """Answers as an OpenAI-compatible server does."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        models = {"data": [{"id": sys.argv[3], "max_model_len": 4096}]}
        found = {"/health": {"status": "ok"}, "/v1/models": models}.get(self.path)
        self.give(200 if found else 404, found or {"error": {"message": "no such path"}})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        try:
            asked = json.loads(body)
            content = asked["messages"][-1]["content"]
            float(asked["temperature"])
            if len(content) > 8192:
                raise ValueError("longer than the context of 4096 tokens")
        except (ValueError, KeyError, TypeError) as error:
            self.give(400, {"error": {"message": f"bad request: {error}"}})
            if "--closes-after-refusal" in sys.argv:
                self.close_connection = True
            return
        found = re.search(r"(\d+)\s*(?:\*|times)\s*(\d+)", content)
        text = str(int(found.group(1)) * int(found.group(2))) if found else "yes"
        usage = {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8}
        base = {"model": sys.argv[3], "usage": usage}
        if not asked.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            self.give(200, {**base, "choices": [choice]})
            return
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": "stop"}
        event = f"data: {json.dumps({**base, 'choices': [choice]})}\n\ndata: [DONE]\n\n"
        self.give(200, event, "text/event-stream")

    def give(self, status, value, kind="application/json"):
        data = (value if isinstance(value, str) else json.dumps(value)).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        """Say nothing."""


ThreadingHTTPServer.request_queue_size = 128
ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
