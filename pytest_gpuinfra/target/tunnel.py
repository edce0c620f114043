"""
The tunnel's far end: makes TCP connections where the service runs, for the controller's near end.

This file imports nothing of ours and runs on Python 3.6 and later with the standard library only.
It ends when its standard input does.

Plan (first line of standard input, JSON): {"host": str, "port": int}
Then one JSON object a line, both ways:
    {"id": int, "open": true}          controller: make a connection; the answer is "opened" or "error"
    {"id": int, "data": base64}        either: bytes
    {"id": int, "close": true}         controller: forget the connection
    {"id": int, "end": true}           either: no more bytes from this side
    {"id": 0, "quit": true}            controller: end the tunnel
    {"id": int, "opened": true}        target: the connection is made
    {"id": int, "error": str}          target: it could not be made, or broke; "ERRNO: reason"
"""

import base64
import errno
import json
import socket
import sys
import threading

PIECE = 32768
CONNECT_TIMEOUT_S = 10.0


class Ends:
    """The connections by id."""

    def __init__(self, host, port):
        self.address = (host, port)
        self.sockets = {}
        self.lock = threading.Lock()

    def say(self, identity, **words):
        line = json.dumps(dict(words, id=identity))
        with self.lock:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()

    def serve(self, identity):
        """Make one connection and pass on what comes from it, in a thread of its own."""
        try:
            made = socket.create_connection(self.address, CONNECT_TIMEOUT_S)
            made.settimeout(None)
        except OSError as error:
            name = errno.errorcode.get(error.errno, type(error).__name__)
            self.say(identity, error="%s: %s" % (name, error.strerror or error))
            return
        self.sockets[identity] = made
        self.say(identity, opened=True)
        try:
            while True:
                data = made.recv(PIECE)
                if not data:
                    break
                self.say(identity, data=base64.b64encode(data).decode("ascii"))
            self.say(identity, end=True)
        except OSError as error:
            self.say(identity, error="%s: %s" % (errno.errorcode.get(error.errno, ""), error.strerror))

    def take(self, message):
        identity = message["id"]
        if message.get("open"):
            thread = threading.Thread(target=self.serve, args=(identity,))
            thread.daemon = True
            thread.start()
            return
        made = self.sockets.get(identity)
        if made is None:
            return
        try:
            if "data" in message:
                made.sendall(base64.b64decode(message["data"]))
            elif message.get("end"):
                made.shutdown(socket.SHUT_WR)
            elif message.get("close"):
                self.sockets.pop(identity).close()
        except OSError:
            pass  # the reading thread tells of it


def main():
    plan = json.loads(sys.stdin.readline())
    ends = Ends(plan["host"], plan["port"])
    for line in sys.stdin:
        message = json.loads(line)
        if message.get("quit"):
            break
        ends.take(message)


if __name__ == "__main__":
    main()
