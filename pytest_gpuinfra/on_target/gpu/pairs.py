"""
Copies: on every device alone, every directed pair by every mechanism, both directions at once, and chains of three.

This file imports its neighbours only and runs on Python 3.6 and later with the standard library only.

Two processes have a context on every GPU. The owner holds all buffers: it fills the source on the source's GPU,
poisons the destination, lets the copy happen, and compares on the destination's GPU, whose own memory it reads:
no peer mapping takes part in the comparison, so one that mirrors writes back to its reader cannot look right.
The helper opens the owner's buffers by CUDA IPC and copies for the mechanisms that go between processes.

    copy_engine    cuMemcpyPeerAsync from the source's context
    kernel_store   a kernel on the source writes to the destination
    kernel_load    a kernel on the destination reads from the source
    ipc_store      kernel_store, from another process through a CUDA IPC mapping
    ipc_load       kernel_load, likewise (what an engine's custom all-reduce does)

On a device alone:

    host_memory    from the device into memory of the host, and from there back into the destination
    kernel_copy    a kernel copies within the device's memory
"""

import ctypes
import time

from copy_buffers import GUARD, Buffers, launch_copy
from copy_tasks import blank_result, list_tasks
from device_memory import MEBIBYTE, enumerate_devices, plan_memory
from driver import DEVICE_POINTER, Driver, open_devices
from ipc_helper import Helper
from log_mark import LogMark
from supervisor import TroubleError

FAILURES_KEPT = 8
HOST_BYTES = 16 * MEBIBYTE  # of the host's memory, which is not ours to fill


class Result:
    """What the copies of one task showed so far."""

    def __init__(self):
        self.fields = blank_result()

    def take(self, case, repeat, found, copies=1):
        """Count one checked destination; found is None where every byte is right."""
        fields = self.fields
        fields["copies_checked"] += 1
        fields["bytes_checked"] += case["size"]
        fields["largest_bytes"] = max(fields["largest_bytes"], case["size"])
        if not found:
            return
        fields["wrong_copies"] += 1
        for name in (
            "wrong_bytes", "never_written_bytes", "zeroed_bytes", "scrambled_bytes", "guard_wrong_bytes",
        ):  # fmt: skip
            fields[name] += found[name]
        if len(fields["failures"]) < FAILURES_KEPT:
            fields["failures"].append(dict(found, repeat=repeat, copies_before_check=copies))

    def close(self, gb_s):
        """Conclude: right, or wrong with the class that most wrong bytes belong to."""
        fields = self.fields
        fields["can_access"] = True
        wrong = fields["wrong_bytes"] + fields["guard_wrong_bytes"]
        fields["outcome"] = "wrong" if wrong else "right" if fields["copies_checked"] else "error"
        if wrong:
            counts = [(fields[name + "_bytes"], name) for name in ("never_written", "zeroed", "scrambled")]
            most = max(counts)
            fields["class"] = most[1] if most[0] else "outside"
        elif fields["copies_checked"]:
            fields["gb_s"] = gb_s and round(gb_s, 2)
        return fields


class Owner:
    """The process that owns all buffers and judges all copies."""

    def __init__(self, plan, channel, driver, devices):
        self.plan = plan
        self.driver = driver
        self.devices = {device.pci: device for device in devices}
        self.buffers = {}
        self.refusals = {}
        self.peers = {}
        self.helper = Helper(channel, self.buffers)

    def open(self, capacities):
        """
        Make contexts and buffers; a device that refuses keeps its reason.

        Args:
            capacities: Bytes of the largest copy by PCI address.
        """
        usable = [device for pci, device in self.devices.items() if pci in capacities]
        open_devices(usable, self.plan["ptx"])
        for device in usable:
            try:
                if device.trouble:
                    raise device.trouble
                if device.memory_free is None:
                    self.ask_memory(device, capacities[device.pci])
                self.buffers[device.pci] = Buffers(device, capacities[device.pci])
            except TroubleError as trouble:
                self.refusals[device.pci] = "%s: %s" % (device.pci, trouble)

    def ask_memory(self, device, capacity):
        """Refuse a device that turns out, with its context made, to have no room for our buffers."""
        device.memory_free, device.memory_total = device.memory()
        if device.memory_free - self.plan["memory"]["keep_free_bytes"] < 2 * capacity:
            raise TroubleError("memory", "too little free memory: %d MiB" % (device.memory_free // MEBIBYTE))

    def peer(self, src, dst):
        """Whether both devices can reach each other; enables it. Raises where the driver says yes and then refuses."""
        key = (src, dst)
        if key not in self.peers:
            here, there = self.devices[src], self.devices[dst]
            able = here.can_access(there) and there.can_access(here)
            if able:
                here.enable_peer(there)
                there.enable_peer(here)
            self.peers[key] = able
        return self.peers[key]

    def cases(self, *ends):
        """Give the sizes and offsets to try between these devices, largest plain one last."""
        room = min(self.buffers[pci].capacity for pci in ends)
        plain = sorted({min(size, room) for size in self.plan["sizes"]})
        cases = [dict(case) for case in self.plan["odd_cases"] if case["size"] <= room]
        return cases + [{"size": size, "src_offset": 0, "dst_offset": 0} for size in plain]

    def enqueue(self, mechanism, case, src, dst, count):
        """Enqueue copies without waiting; gives the device whose stream has them."""
        here, there = self.devices[src], self.devices[dst]
        source = self.buffers[src].source + case["src_offset"]
        destination = self.buffers[dst].destination + GUARD + case["dst_offset"]
        return self.enqueue_between(mechanism, case, here, source, there, destination, count)

    def enqueue_between(self, mechanism, case, here, source, there, destination, count):
        """Enqueue copies between two addresses."""
        runner = there if mechanism == "kernel_load" else here
        if mechanism != "copy_engine":
            launch_copy(runner, case, destination, source, count)
            return runner
        here.current()
        for _ in range(count):
            self.driver.call(
                "cuMemcpyPeerAsync",
                DEVICE_POINTER(destination),
                there.context,
                DEVICE_POINTER(source),
                here.context,
                ctypes.c_size_t(case["size"]),
                here.stream,
            )
        return here

    def copy(self, mechanism, case, src, dst, count):
        """Copy so many times and wait; gives the seconds that the device took."""
        if mechanism.startswith("ipc_"):
            return self.helper.copy(case, src, dst, src if mechanism == "ipc_store" else dst, count)
        runner = self.devices[dst if mechanism == "kernel_load" else src]
        begin, end = runner.event(), runner.event()
        runner.record(begin)
        self.enqueue(mechanism, case, src, dst, count)
        runner.record(end)
        runner.finish()
        return runner.seconds(begin, end)

    def rounds(self, task, *ends):
        """Give (case, repeat, seed, copies) of every round; the last round of the largest case is the timed one."""
        cases = self.cases(*ends)
        for number, case in enumerate(cases):
            for repeat in range(1, self.plan["repeats"] + 1):
                yield case, repeat, self.seed(task, number, repeat), 1
        if cases and self.plan["timed_copies"]:
            yield cases[-1], self.plan["repeats"] + 1, self.seed(task, len(cases), 0), self.plan["timed_copies"]

    def seed(self, task, case, repeat):
        """Give a seed that no other round has."""
        return (self.plan["seed"] + task * 1000003 + case * 8191 + repeat * 127) & 0xFFFFFFFF

    def set_up(self, *ends):
        """Give None where these devices can reach each other in turn, or the result that says why not."""
        for pci in ends:
            if pci in self.refusals or pci not in self.buffers:
                return dict(blank_result(), reason=self.refusals.get(pci, "%s has no buffers" % pci))
        for number in range(len(ends) - 1):
            src, dst = ends[number : number + 2]
            try:
                able = self.peer(src, dst)
            except TroubleError as trouble:
                return dict(blank_result(), can_access=True, reason="peer access was refused: %s" % trouble)
            if not able:
                return dict(
                    blank_result(),
                    can_access=False,
                    outcome="not_tested",
                    reason="%s and %s have no peer access: a copy would be staged through the host" % (src, dst),
                )
        return None

    def local(self, number, task):
        """One device alone by one mechanism."""
        pci = task["src"]
        refused = self.set_up(pci)
        if refused:
            return [refused]
        device, buffers = self.devices[pci], self.buffers[pci]
        through_host = task["mechanism"] == "host_memory"
        result = Result()
        for case, repeat, seed, copies in self.rounds(number, pci):
            if through_host and case["size"] > HOST_BYTES:
                continue
            self.make_ready(case, seed, (pci, pci))
            try:
                if through_host:
                    data = device.read(buffers.source + case["src_offset"], case["size"])
                    device.write(buffers.destination + GUARD + case["dst_offset"], data)
                else:
                    self.copy("kernel_store", case, pci, pci, copies)
            except TroubleError as trouble:
                return [dict(failed(result, case, repeat, trouble), can_access=None)]
            result.take(case, repeat, buffers.check(case, seed), copies)
        return [dict(result.close(None), can_access=None)]

    def pair(self, number, task):
        """One directed pair by one mechanism."""
        src, dst, mechanism = task["src"], task["dst"], task["mechanism"]
        refused = self.set_up(src, dst)
        if refused:
            return [refused]
        if mechanism.startswith("ipc_"):
            try:
                self.helper.prepare(src, dst, src if mechanism == "ipc_store" else dst)
            except TroubleError as trouble:
                return [dict(blank_result(), can_access=True, reason="CUDA IPC: %s" % trouble)]
        result = Result()
        gb_s = None
        for case, repeat, seed, copies in self.rounds(number, src, dst):
            self.make_ready(case, seed, (src, dst))
            try:
                seconds = self.copy(mechanism, case, src, dst, copies)
            except TroubleError as trouble:
                return [failed(result, case, repeat, trouble)]
            if copies > 1:
                gb_s = case["size"] * copies / seconds / 1e9
            result.take(case, repeat, self.buffers[dst].check(case, seed), copies)
        return [result.close(gb_s)]

    def make_ready(self, case, seed, *ways):
        """Fill the sources and poison the destinations, each on its own device."""
        for src, dst in ways:
            self.buffers[src].fill(case, seed)
            self.buffers[dst].poison(case, seed)
        for way in ways:
            for pci in way:
                self.devices[pci].finish()

    def both(self, number, task):
        """Both directions of a pair at the same time."""
        one, other, mechanism = task["src"], task["dst"], task["mechanism"]
        ways = ((one, other), (other, one))
        refused = self.set_up(one, other)
        if refused:
            return [refused, dict(refused)]
        results = [Result(), Result()]
        speeds = [None, None]
        for case, repeat, seed, copies in self.rounds(number, one, other):
            self.make_ready(case, seed, *ways)
            try:
                timers = []
                for src, dst in ways:
                    runner = self.devices[dst if mechanism == "kernel_load" else src]
                    begin, end = runner.event(), runner.event()
                    runner.record(begin)
                    self.enqueue(mechanism, case, src, dst, copies)
                    runner.record(end)
                    timers.append((runner, begin, end))
                for runner, _, _ in timers:
                    runner.finish()
                seconds = [runner.seconds(begin, end) for runner, begin, end in timers]
            except TroubleError as trouble:
                return [failed(result, case, repeat, trouble) for result in results]
            for way, (_, dst) in enumerate(ways):
                if copies > 1:
                    speeds[way] = case["size"] * copies / seconds[way] / 1e9
                results[way].take(case, repeat, self.buffers[dst].check(case, seed), copies)
        return [results[way].close(speeds[way]) for way in range(2)]

    def chain(self, number, task):
        """A source's bytes by way of a second device's destination to a third, with no check between."""
        src, via, dst, mechanism = task["src"], task["via"], task["dst"], task["mechanism"]
        refused = self.set_up(src, via, dst)
        if refused:
            return [refused]
        result = Result()
        first, middle, last = (self.devices[pci] for pci in (src, via, dst))
        room = min(self.buffers[pci].capacity for pci in (src, via, dst))
        for index, size in enumerate(self.plan["chain_sizes"]):
            case = {"size": min(size, room), "src_offset": 0, "dst_offset": 0}
            for repeat in range(1, self.plan["repeats"] + 1):
                seed = self.seed(number, index, repeat)
                self.make_ready(case, seed, (src, via), (src, dst))
                halfway = self.buffers[via].destination + GUARD
                try:
                    arrived = first.event()
                    runner = self.enqueue(mechanism, case, src, via, 1)
                    runner.current()
                    self.driver.call("cuEventRecord", arrived, runner.stream)
                    next_runner = last if mechanism == "kernel_load" else middle
                    next_runner.current()
                    self.driver.call("cuStreamWaitEvent", next_runner.stream, arrived, ctypes.c_uint(0))
                    self.enqueue_between(
                        mechanism, case, middle, halfway, last, self.buffers[dst].destination + GUARD, 1
                    )
                    next_runner.finish()
                except TroubleError as trouble:
                    return [failed(result, case, repeat, trouble)]
                result.take(case, repeat, self.buffers[dst].check(case, seed))
        return [result.close(None)]

    def alive(self):
        """Whether the contexts still work: an error of a copy can end them."""
        try:
            for pci in self.buffers:
                self.devices[pci].finish()
        except TroubleError:
            return False
        return True


def failed(result, case, repeat, trouble):
    """Give the result of a copy that the driver itself reported as failed."""
    fields = result.close(None)
    fields["outcome"] = "failed"
    fields["reason"] = "a copy of %d bytes (repeat %d): %s" % (case["size"], repeat, trouble)
    return fields


class Bracket:
    """Beginning and end of a task, by the clock and by the kernel's log."""

    def __init__(self, log):
        self.log = log
        self.log_from = log.now()
        self.began = time.monotonic()

    def close(self, fields):
        """Write both ends into the task's results."""
        ended = time.monotonic()
        log_to = self.log.now()
        for one in fields:
            one["began_monotonic_s"] = round(self.began, 6)
            one["ended_monotonic_s"] = round(ended, 6)
            one["log_from"] = self.log_from
            one["log_to"] = log_to


def own_pairs(port, plan, channel, first):
    """
    Be the owner: enumerate, say what is there, then do every task from number `first` on.

    Says {"driver", "devices", "reasons"}; waits; then, for each task, {"begin": n, "log_from": number of the kernel
    log's youngest record} and {"result": n, "fields": [...]}, {"broken": n} where a task ended the contexts, and
    {"done": true}.
    """
    driver = Driver()
    devices = enumerate_devices(driver, plan)
    capacities, reasons = plan_memory(plan, devices)
    port.say(
        driver=driver.report(),
        devices=[device.report() for device in devices],
        reasons=reasons,
        capacities=capacities,
    )
    owner = Owner(plan, channel, driver, devices)
    owner.refusals.update(reasons)
    tasks = list_tasks(plan, [device.pci for device in devices])
    if tasks[first:]:
        owner.open(capacities)
    log = LogMark()
    log.now()
    port.say(opened=True)
    port.wait()
    for number, task in enumerate(tasks):
        if number < first:
            continue
        bracket = Bracket(log)
        port.say(begin=number, log_from=bracket.log_from)
        fields = getattr(owner, task["kind"])(number, task)
        bracket.close(fields)
        port.say(result=number, fields=fields)
        if any(one["outcome"] in ("failed", "error") for one in fields) and not owner.alive():
            port.say(broken=number)
            return
    port.say(done=True)
