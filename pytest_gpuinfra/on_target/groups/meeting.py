"""
Hosts that meet: torchrun's own rendezvous (c10d), and a look at who can reach whom.

This file imports supervisor.py and torch only, and runs in the service's Python, 3.6 and later.
It opens on the target one listening TCP socket on a free port, and, on the host of the rendezvous, its port;
both vanish with the process.
Source: torch.distributed.elastic.rendezvous, torch 2.0 to 2.13 (what `torchrun --rdzv-backend=c10d` uses).
"""

import errno
import json
import os
import socket
import threading
import time

from supervisor import TroubleError

KNOCK_S = 2.0
MEMBER_MAX = 4096
RANKS_MAX = 1024
# What proves that packets come and go: the other side's kernel answered.
ANSWERS = (errno.ECONNREFUSED, errno.ECONNRESET)


def knock(address, port, wait_s):
    """Try to connect; gives "" if the other side answered, be it by a refusal, or why not."""
    try:
        socket.create_connection((address, port), wait_s).close()
    except socket.timeout:
        return "no answer within %g s" % wait_s
    except OSError as error:
        if error.errno in ANSWERS:
            return ""
        return error.strerror or str(error)
    return ""


class Listener:
    """A listening socket that every other host may knock at; what knocks is let in and sent away."""

    def __init__(self):
        try:
            self.socket = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            self.socket.bind(("::", 0))
        except OSError:  # a kernel without IPv6
            self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            self.socket.bind(("0.0.0.0", 0))
        self.socket.listen(128)
        self.port = self.socket.getsockname()[1]
        thread = threading.Thread(target=self._answer)
        thread.daemon = True
        thread.start()

    def _answer(self):
        while True:
            try:
                self.socket.accept()[0].close()
            except OSError:
                return


def own_address(towards, port):
    """
    Give this host's address on the way to another one.

    Raises:
        TroubleError: "address" (the other's name means nothing here), "unreachable" (there is no way to it).
    """
    try:
        found = socket.getaddrinfo(towards, port, 0, socket.SOCK_DGRAM)
    except (socket.gaierror, UnicodeError) as error:
        raise TroubleError("address", "%s is no address that is known here (%s)" % (towards, error)) from error
    for family, kind, _, _, place in found:
        with socket.socket(family, kind) as ask:
            try:
                ask.connect(place)
                return ask.getsockname()[0]
            except OSError as error:
                said = error.strerror or str(error)
    raise TroubleError("unreachable", "no way to %s: %s" % (towards, said))


def read_member(data, number):
    """
    Read what another host tells of itself: alias, address, port, ranks and room.

    Raises:
        TroubleError: "rendezvous": it is of another shape.
    """
    kinds = {"alias": str, "address": str, "port": int, "ranks": int, "room": int}
    try:
        told = json.loads(bytes(data)[: MEMBER_MAX + 1].decode("ascii"))
        good = all(type(told[name]) is kinds[name] for name in kinds)
        good = good and 0 < told["port"] < 65536 and 0 < told["ranks"] <= RANKS_MAX and 0 < told["room"] < 1 << 60
        good = good and not any(character in told["address"] for character in " /\0") and len(told) == len(kinds)
    except (ValueError, KeyError, TypeError, RecursionError):
        good = False
    if not good:
        raise TroubleError("rendezvous", "host %d tells of itself in another shape than this program" % number)
    return told


def interface_of(address):
    """Give the name of the network interface that has an IPv4 address; None if none has."""
    import fcntl
    import struct

    for _, name in socket.if_nameindex():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ask:
            try:
                found = fcntl.ioctl(ask, 0x8915, struct.pack("256s", name.encode()[:15]))  # SIOCGIFADDR
            except OSError:
                continue
        if socket.inet_ntoa(found[20:24]) == address:
            return name
    return None


class Meeting:
    """
    This host's place among the others.

    Args:
        plan: The plan's "rendezvous": {"address", "port", "id", "here": whether it is on this host,
            "hosts": how many come, "join_s": seconds until all must have come}.
        alias: This host's name for the others.
        ranks: How many ranks it brings.
        room: Bytes that its ranks have room for.
    """

    def __init__(self, plan, alias, ranks, room):
        self.plan = plan
        self.alias = alias
        self.ranks = ranks
        self.room = room
        self.address = plan["address"]
        self.listener = Listener()
        self.own = "127.0.0.1"
        self.others = []
        self.reached_at_start = {}
        self.store = None
        self.handler = None

    def join(self):
        """
        Meet the others.

        Returns:
            {"node_rank", "first_rank", "world_size", "room", "hosts": [{"alias", "ranks", "address"}] by node rank}.

        Raises:
            TroubleError: "address" (the name of the rendezvous's host is not known here), "unreachable" (no way to it),
                "rendezvous" (not all came, or it refused), "library" (this torch has no such rendezvous).
        """
        began = time.monotonic()
        self.own = own_address(self.address, self.plan["port"])
        if not self.plan["here"]:
            self._find_the_way(began + self.plan["join_s"])
        node_rank, hosts = self._meet(began)
        self._tell_each_other(node_rank, hosts)
        found = [read_member(self.store.get("gpuinfra/%d" % number), number) for number in range(hosts)]
        self.others = [one for number, one in enumerate(found) if number != node_rank]
        self.reached_at_start = {one["alias"]: self._knock_at(one) for one in self.others}
        return {
            "node_rank": node_rank,
            "first_rank": sum(one["ranks"] for one in found[:node_rank]),
            "world_size": sum(one["ranks"] for one in found),
            "room": min(one["room"] for one in found),
            "hosts": found,
        }

    def _find_the_way(self, deadline):
        """Wait until something listens where the rendezvous is to be: the other host may still be starting."""
        while True:
            try:
                socket.create_connection((self.address, self.plan["port"]), KNOCK_S).close()
                return
            except OSError as error:
                said = error.strerror or str(error)
                refused = error.errno in ANSWERS
            if time.monotonic() > deadline:
                place = "%s port %d" % (self.address, self.plan["port"])
                if refused:
                    raise TroubleError("rendezvous", "nobody listens on %s: %s" % (place, said))
                raise TroubleError("unreachable", "no way to %s: %s" % (place, said))
            time.sleep(0.1)

    def _meet(self, began):
        try:
            from torch.distributed.elastic.rendezvous import RendezvousParameters
            from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
        except ImportError as error:
            raise TroubleError("library", "this torch has no elastic rendezvous: %s" % error) from error
        left_s = max(5.0, self.plan["join_s"] - (time.monotonic() - began))
        parameters = RendezvousParameters(
            backend="c10d",
            endpoint=("[%s]:%d" if ":" in self.address else "%s:%d") % (self.address, self.plan["port"]),
            run_id=self.plan["id"],
            min_nodes=self.plan["hosts"],
            max_nodes=self.plan["hosts"],
            local_addr=self.own,
            is_host=self.plan["here"],
            join_timeout=int(left_s),
            last_call_timeout=1,
            read_timeout=int(left_s),
        )
        try:
            self.handler = get_rendezvous_handler(parameters)
            info = self.handler.next_rendezvous()
        except (RuntimeError, OSError, ValueError) as error:  # RendezvousError is a RuntimeError or an Exception
            raise TroubleError("rendezvous", self._words(error)) from error
        except Exception as error:
            if type(error).__name__.startswith("Rendezvous"):
                raise TroubleError("rendezvous", self._words(error)) from error
            raise
        if isinstance(info, tuple):  # up to torch 2.3
            self.store, node_rank, hosts = info[:3]
        else:
            self.store, node_rank, hosts = info.store, info.rank, info.world_size
        return node_rank, hosts

    def _words(self, error):
        name = type(error).__name__
        if name == "RendezvousTimeoutError":
            return "not all of the %d hosts came within %g s" % (self.plan["hosts"], self.plan["join_s"])
        return "%s: %s" % (name, str(error).split("\n", 1)[0])

    def _tell_each_other(self, node_rank, hosts):
        mine = {
            "alias": self.alias,
            "address": self.own,
            "port": self.listener.port,
            "ranks": self.ranks,
            "room": self.room,
        }
        self.store.set("gpuinfra/%d" % node_rank, json.dumps(mine))

    def say_done(self, node_rank):
        """Say that this host's ranks are through."""
        try:
            self.store.set("gpuinfra-done/%d" % node_rank, "1")
        except RuntimeError:
            pass  # the host of the store is gone, so it needs no word

    def all_done(self, hosts):
        """Whether the ranks of all hosts are through; only the host of the store has to wait for that."""
        if not self.plan["here"]:
            return True
        try:
            return self.store.check(["gpuinfra-done/%d" % number for number in range(hosts)])
        except RuntimeError:
            return True

    def ranks_store(self):
        """Give [address, port] of the store that the ranks are to use: the rendezvous's own."""
        return ["127.0.0.1" if self.plan["here"] else self.address, self.plan["port"]]

    def _knock_at(self, other):
        return knock(other["address"], other["port"], KNOCK_S)

    def look_around(self):
        """
        Knock at every other host, all at once.

        Returns:
            [{"alias", "at_start": "" or why it did not answer when all had met, "now": the same of now}].
        """
        answers = {}
        threads = [
            threading.Thread(target=lambda one=one: answers.update({one["alias"]: self._knock_at(one)}))
            for one in self.others
        ]
        for thread in threads:
            thread.daemon = True
            thread.start()
        for thread in threads:
            thread.join(KNOCK_S + 1.0)
        return [
            {
                "alias": one["alias"],
                "at_start": self.reached_at_start[one["alias"]],
                "now": answers.get(one["alias"], "no answer within %g s" % KNOCK_S),
            }
            for one in self.others
        ]


def name_interface(address):
    """Tell gloo which interface to take where nobody has: it would go by the host's own name."""
    if "GLOO_SOCKET_IFNAME" not in os.environ:
        name = interface_of(address)
        if name:
            os.environ["GLOO_SOCKET_IFNAME"] = name
