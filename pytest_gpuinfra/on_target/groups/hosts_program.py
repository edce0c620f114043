"""
One host's part of an all-reduce over a group of hosts: torchrun's rendezvous, then torch.distributed.

It runs in the service's own Python on every host of the group at the same time, and says "skipped" where that has no
torch. torch is imported once; the ranks are forked afterwards, before CUDA is used. Nothing is written to disk.
It imports its neighbours in this directory, which travel with it (plan.py), torch, and the standard library.

It touches on the target: GPU memory within the plan's budget, its own processes, the port of the rendezvous on the
first host, a free port on each. It takes the target's lock where the plan says so, and dies with its standard input.

The plan: plan.py, HostsPlan. Events, one JSON object a line (subjects/groups/part.py reads them):
    progress   phase, text, at_s
    host       what this host brings, before it meets the others
    met        its place among them
    sums       how its ranks ended; the last but one event of a run that got so far
    error      fatal, kind, reason
    skipped    reason; nothing was tried
    end        always last
"""

import datetime
import os
import re
import sys
import time

import supervisor
from arm import Arm, apply_environment, join_ranks, telling
from crew import Crew
from device_memory import enumerate_devices
from driver import Driver
from meeting import Meeting, name_interface
from supervisor import TroubleError, emit
from torch_sums import first_line, library, sum_all, torch_module

MEBIBYTE = 1 << 20
NCCL_BYTES = 1024 * MEBIBYTE
VIA = re.compile(
    r"(?:Channel|Ring) \d+(?:/\d+)? : (\d+)\[[0-9a-fA-F]+\] -> (\d+)\[[0-9a-fA-F]+\]"
    r"(?: \[(?:send|receive)\])? via (.+?)\s*$"
)


def import_torch(backend):
    """Import torch; gives what is to be told about it, or the reason why there is none to use."""
    began = time.monotonic()
    try:
        import torch
        import torch.distributed
    except ImportError as error:
        return None, "%s has no usable torch: %s" % (sys.executable, error)
    if not torch.distributed.is_available() or not getattr(torch.distributed, "is_%s_available" % backend)():
        return None, "torch %s of %s has no %s" % (torch.__version__, sys.executable, backend)
    about = {
        "torch": torch.__version__,
        "python": sys.executable,
        "python_version": sys.version.split()[0],
        "import_s": round(time.monotonic() - began, 3),
    }
    return about, None


def count_edges(lines):
    """Count the channels of NCCL's log by rank that sends, rank that receives, and all that follows "via"."""
    counts = {}
    for line in lines:
        found = VIA.search(line)
        if found:
            key = (int(found.group(1)), int(found.group(2)), found.group(3))
            counts[key] = counts.get(key, 0) + 1
    return [{"src_rank": key[0], "dst_rank": key[1], "via": key[2], "count": counts[key]} for key in sorted(counts)]


class HostArm(Arm):
    """The ranks of this host, which meet those of the others before they begin."""

    def __init__(self, crew, plan, devices):
        arm = {"name": plan["host"], "environment": plan["environment"], "unset": plan["unset"]}
        Arm.__init__(self, crew, plan, arm, program="hosts", rank_function=rank_of_hosts, devices=devices)
        self.plan = plan
        self.meeting = None
        self.place = None
        self.seen = []
        self.states = [None] * len(devices)
        self.trouble = None

    def _let_go(self):
        room = min(note["ready"]["room"] for note in self.notes)
        self.meeting = Meeting(self.plan["rendezvous"], self.plan["host"], len(self.ranks), room)
        supervisor.progress("rendezvous", "%s: waiting for the other hosts" % self.plan["host"])
        began = time.monotonic()
        with supervisor.WatchedByThread():
            try:
                self.place = self.meeting.join()
            except TroubleError as trouble:
                self.trouble = trouble
        if self.trouble:
            for note in self.notes:
                note.update(trouble=str(self.trouble), kind=self.trouble.kind)
            return
        emit("met", took_s=round(time.monotonic() - began, 3), reached=self.meeting.reached_at_start, **self.place)
        for number, worker in enumerate(self.ranks):
            worker.tell(
                {
                    "rank": self.place["first_rank"] + number,
                    "world_size": self.place["world_size"],
                    "room": self.place["room"],
                    "store": self.meeting.ranks_store(),
                    "address": self.meeting.own,
                }
            )

    def _look_around(self):
        self.states = [state_of(worker.pid) for worker in self.ranks]
        if self.place is not None:
            self.seen = self.meeting.look_around()

    def _name(self, rank):
        number = rank if self.place is None else self.place["first_rank"] + rank
        return "rank %d (%s, %s)" % (number, self.plan["host"], self.devices[rank])

    def _emit(self, ending, reason, **measured):
        lines = [line for worker in self.ranks for line in worker.log_lines]
        ready = [note["ready"]["library"] for note in self.notes if note.get("ready")]
        first = 0 if self.place is None else self.place["first_rank"]
        for number, report in enumerate(measured["ranks"]):
            report.update(rank=first + number, steps=self.notes[number]["steps"], state=self.states[number])
        for run in self.runs:
            run["rank"] += first
        if self.trouble is not None:
            emit("error", fatal=True, kind=self.trouble.kind, reason=str(self.trouble))
        emit(
            "sums",
            ending=ending,
            reason=reason,
            met=self.place is not None,
            library=ready[0] if ready else None,
            runs=join_ranks(self.runs),
            speed=self._speed() if ending == "right" else None,
            edges=count_edges(lines),
            log=telling(self.ranks, 100),
            reached=self.seen,
            at_s=supervisor.since_start(),
            **measured,
        )

    def _speed(self):
        if not self.speeds or self.place is None:
            return None
        slowest = max(self.speeds, key=lambda one: one["time_s"])
        algbw = slowest["size_bytes"] / slowest["time_s"] / 1e9
        world = self.place["world_size"]
        return dict(slowest, algbw_gb_s=round(algbw, 3), busbw_gb_s=round(algbw * 2 * (world - 1) / world, 3))


def state_of(pid):
    """Give the state of a process, one letter of proc(5); None where it is gone."""
    try:
        with open("/proc/%d/stat" % pid) as stream:
            return stream.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None


def rank_of_hosts(port, plan, arm, rank, devices):
    """Be one rank; what it says is told in arm.Arm, with the room that it has in "ready"."""
    apply_environment(arm)
    torch = torch_module()
    port.say(stage="opening the device")
    try:
        device, room = open_place(plan, devices[rank])
        port.say(
            stage="waiting for the other hosts",
            ready={"room": room, "library": library() if plan["backend"] == "nccl" else None},
        )
        sum_with_others(port, plan, port.wait(), device)
    except getattr(torch.cuda, "OutOfMemoryError", MemoryError) as error:
        raise TroubleError("memory", first_line(error)) from error
    except RuntimeError as error:
        kind = "nccl" if type(error).__name__.startswith("Dist") or plan["backend"] == "gloo" else "cuda"
        raise TroubleError(kind, first_line(error)) from error


def open_place(plan, name):
    """Give the torch device of a rank, and the bytes that it has room for."""
    torch = torch_module()
    memory = plan["memory"]
    if plan["backend"] == "gloo":
        torch.set_num_threads(1)
        return torch.device("cpu"), memory["budget_bytes"]
    for found in enumerate_devices(Driver(), dict(plan, devices=[name])):
        device = torch.device("cuda", found.index)
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)
        free = torch.cuda.mem_get_info(device)[0]
        room = min(free - memory["keep_free_bytes"] - NCCL_BYTES, memory["budget_bytes"])
        if room < MEBIBYTE:
            raise TroubleError("memory", "%s: too little free memory: %d MiB are free" % (name, free // MEBIBYTE))
        return device, room
    raise TroubleError("device", "no visible device has the address %s" % name)


def sum_with_others(port, plan, place, device):
    """Join the process group over all hosts, and sum."""
    torch = torch_module()
    port.say(stage="joining the process group")
    if plan["backend"] == "gloo":
        name_interface(place["address"])
    patience = datetime.timedelta(seconds=plan["deadlines"]["arm_s"] + 60)
    address, number = place["store"]
    store = torch.distributed.TCPStore(address, number, None, False, patience, wait_for_workers=False)
    store = torch.distributed.PrefixStore("gpuinfra-ranks", store)
    rank, world = place["rank"], place["world_size"]
    torch.distributed.init_process_group(plan["backend"], store=store, rank=rank, world_size=world, timeout=patience)
    sum_all(port, plan, (rank, world, device), place["room"])
    port.say(stage="leaving", done=True)
    torch.distributed.destroy_process_group()


def run(plan, about):
    """Do this host's part; gives whether it came to its end."""
    lock = supervisor.TargetLock(plan["lock_wait_s"])
    if plan["lock"]:
        refusal = lock.take()
        if refusal:
            emit("error", fatal=True, kind="lock", reason=refusal)
            return False, []
    devices = plan["devices"]
    emit(
        "host",
        schema=supervisor.SCHEMA,
        host=plan["host"],
        backend=plan["backend"],
        about=about,
        devices=devices,
        boot_id=read_boot_id(),
        kernel=os.uname()[2],
        pid=os.getpid(),
        seed=plan["seed"],
    )
    crew = Crew()
    arm = HostArm(crew, plan, devices)
    arm.run()
    part(crew, arm)
    return True, crew.close()


def part(crew, arm):
    """Leave so that nobody misses us: the others may still knock, and the first host keeps the store of all ranks."""
    if arm.place is None:
        return
    until = time.monotonic() + (3.0 if arm.seen else 2.0)
    if not arm.seen:
        arm.meeting.say_done(arm.place["node_rank"])
    while time.monotonic() < until and (arm.seen or not arm.meeting.all_done(len(arm.place["hosts"]))):
        crew.turn()


def read_boot_id():
    """Give the boot that the results belong to; None where that cannot be read."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as stream:
            return stream.read().strip()
    except OSError:
        return None


def main():
    """Read the plan and do it."""
    plan = supervisor.read_plan()
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    os.environ["CUDA_CACHE_DISABLE"] = "1"
    supervisor.end_at.append(plan["deadlines"]["total_s"])
    with supervisor.WatchedByThread():
        supervisor.progress("torch", "%s: importing torch in %s" % (plan["host"], sys.executable))
        about, reason = import_torch(plan["backend"])
    if reason:
        emit("skipped", reason=reason)
        emit("end", complete=True, took_s=supervisor.since_start(), stuck=[])
        return
    complete, stuck = run(plan, about)
    emit("end", complete=complete, took_s=supervisor.since_start(), stuck=stuck)


if __name__ == "__main__":
    main()
