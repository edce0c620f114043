"""
The tunnel's far end: makes TCP connections where the service runs, for the controller's near end.

This file imports nothing of ours and runs on Python 3.6 and later with the standard library only.
It ends when its standard input does.

Plan (first line of standard input, JSON): {"host": str, "port": int}
Then one JSON object a line, both ways:
    {"id": int, "open": true}          controller: make a connection; the answer is "opened" or "error"
    {"id": int, "data": base64}        either: bytes
    {"id": int, "close": true}         controller: end the connection
    {"id": int, "end": true}           target: the server has ended its side
    {"id": 0, "quit": true}            controller: end the tunnel
    {"id": int, "opened": true}        target: the connection is made
    {"id": int, "error": str}          target: it could not be made, or broke; "ERRNO: reason"
"""

import base64
import errno
import json
import os
import queue
import signal
import socket
import sys
import threading

PIECE = 32768
CONNECT_TIMEOUT_S = 10.0


class Ends:
    """The connections by id."""

    def __init__(self, host, port):
        self.address = (host, port)
        self.ends = {}
        self.lock = threading.Lock()

    def say(self, identity, **words):
        line = json.dumps(dict(words, id=identity))
        with self.lock:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()

    def serve(self, identity, end):
        """Make one connection and pass on what comes from it, in a thread of its own."""
        try:
            made = socket.create_connection(self.address, CONNECT_TIMEOUT_S)
        except (OSError, OverflowError, UnicodeError) as error:
            self.say(identity, error=reason_of(error))
            return
        made.settimeout(None)
        writer = threading.Thread(target=end.write, args=(made,))
        writer.daemon = True
        try:
            if end.begin(made):
                self.say(identity, opened=True)
                writer.start()
                while True:
                    data = made.recv(PIECE)
                    if not data:
                        break
                    self.say(identity, data=base64.b64encode(data).decode("ascii"))
                self.say(identity, end=True)
        except OSError as error:
            self.say(identity, error=reason_of(error))
        self.ends.pop(identity, None)
        end.close()
        if writer.ident is not None:
            writer.join()
        made.close()

    def take(self, message):
        identity = message["id"]
        if message.get("open"):
            end = self.ends[identity] = End()
            thread = threading.Thread(target=self.serve, args=(identity, end))
            thread.daemon = True
            thread.start()
        elif identity in self.ends:
            if "data" in message:
                self.ends[identity].waiting.put(base64.b64decode(message["data"]))
            elif message.get("close"):
                self.ends.pop(identity).close()


class End:
    """One connection: what waits to be written to it, and whether it is to end."""

    def __init__(self):
        self.waiting = queue.Queue()
        self.lock = threading.Lock()
        self.made = None
        self.closed = False

    def begin(self, made):
        """Take the connection; whether it is still wanted."""
        with self.lock:
            self.made = made
            return not self.closed

    def write(self, made):
        """Write what the controller sends, in a thread of its own: a server that reads nothing holds up nobody else."""
        try:
            while not self.closed:
                made.sendall(self.waiting.get())
        except OSError:
            pass  # the reading thread tells of it

    def close(self):
        """Have the threads come to their end, of which the reading one closes the socket."""
        with self.lock:
            self.closed = True
            try:
                if self.made is not None:
                    self.made.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the server was first
        self.waiting.put(b"")


def reason_of(error):
    name = errno.errorcode.get(getattr(error, "errno", None), type(error).__name__)
    return "%s: %s" % (name, getattr(error, "strerror", None) or error)


def main():
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a server that closes ends its own connection, and no other
    plan = json.loads(sys.stdin.readline())
    ends = Ends(plan["host"], plan["port"])
    for line in sys.stdin:
        message = json.loads(line)
        if message.get("quit"):
            break
        ends.take(message)
    os._exit(0)  # threads that still read or write hold nothing that a gentler end would save


if __name__ == "__main__":
    main()
