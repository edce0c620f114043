"""
One all-reduce arm: its ranks, how far each got, and how it ended.

This file imports supervisor.py only and runs on Python 3.6 and later with the standard library only.
"""

import os
import re
import time

import supervisor

# Both wordings: "Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct" and "Ring 00 : 0[0] -> 1[0] via P2P/IPC".
# Source: NCCL src/transport/*.cc, 2.4 to 2.28.
CHANNEL = re.compile(
    r"(?:Channel|Ring) \d+(?:/\d+)? : (\d+)\[[0-9a-fA-F]+\] -> (\d+)\[[0-9a-fA-F]+\]"
    r"(?: \[(?:send|receive)\])? via (\w+)(?:/(\S+))?"
)
TELLING = (" via ", "WARN", "set by environment", "NCCL version", "Init COMPLETE", "rror", "failed")


def apply_environment(arm):
    """Give this rank the arm's environment, NCCL's log on our pipe, and no file left by NCCL or the driver."""
    for name in arm.get("unset") or ():
        for known in list(os.environ):
            if known == name or (name.endswith("*") and known.startswith(name[:-1])):
                del os.environ[known]
    for name, value in (arm.get("environment") or {}).items():
        if name not in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):  # devices are chosen by address here
            os.environ[name] = value
    os.environ["NCCL_DEBUG"] = "INFO"
    os.environ["NCCL_DEBUG_SUBSYS"] = "INIT,ENV"
    os.environ["NCCL_DEBUG_FILE"] = "/dev/stdout"  # by name: on the plain stream NCCL writes whole blocks only
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    os.environ["CUDA_CACHE_DISABLE"] = "1"
    for name in ("NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE", "NCCL_COMM_ID"):
        os.environ.pop(name, None)


def count_channels(lines):
    """Count the channels of an NCCL log, one entry for each directed pair of ranks and transport."""
    counts = {}
    for line in lines:
        found = CHANNEL.search(line)
        if found:
            key = (int(found.group(1)), int(found.group(2)), found.group(3), found.group(4) or "")
            counts[key] = counts.get(key, 0) + 1
    return [
        {"src_rank": key[0], "dst_rank": key[1], "transport": key[2], "detail": key[3], "count": counts[key]}
        for key in sorted(counts)
    ]


def telling(ranks, most):
    """Give the lines of the ranks' logs that prove or explain, and how many were left out unread."""
    lines = [line for worker in ranks for line in worker.log_lines if any(word in line for word in TELLING)]
    left_out = sum(worker.log_lines_left_out for worker in ranks) + max(0, len(lines) - most)
    return lines[:most] + (["(%d more lines of the logs were left out)" % left_out] if left_out else [])


class Arm:
    """
    One all-reduce arm.

    Args:
        crew: Where the ranks run.
        plan: The program's plan.
        arm: Its entry of the plan: {"name", "environment", "unset"}.
        program: "cuda" or "torch".
        rank_function: Called as rank_function(port, plan, arm, rank, devices) in each rank. A rank says
            {"stage": str} as it goes on; {"ready": {...}} once it can begin, and then waits for "go";
            {"id": str} if it has something to hand to the other ranks; {"run": {...}} for each sum;
            {"speed": {...}}; {"done": true}.
        devices: PCI addresses, shape (world_size,), by rank.
    """

    def __init__(self, crew, plan, arm, *, program, rank_function, devices):
        self.crew = crew
        self.arm = arm
        self.program = program
        self.devices = devices
        self.timing = plan["deadlines"]
        self.began = time.monotonic()
        self.notes = [{"stage": "start", "steps": 0, "at": self.began} for _ in devices]
        self.joined = None  # when the first rank had its communicator
        self.runs = []
        self.speeds = []
        process = tuple(plan["process"]) if program == "cuda" and plan["process"] else None
        self.ranks = [
            crew.start("%s rank %d" % (arm["name"], rank), rank_function, plan, arm, rank, devices, process=process)
            for rank in range(len(devices))
        ]

    def hear(self, worker, kind, value):
        """Take one thing that happened to a rank."""
        rank = self.ranks.index(worker)
        note = self.notes[rank]
        note["at"] = time.monotonic()
        if kind == "ended":
            note["ended"] = True
        elif kind == "said":
            note["steps"] += "stage" in value
            if value.get("stage", "").startswith("calling") and self.joined is None:
                self.joined = note["at"]
            if "id" in value:
                for other in self.ranks[1:]:
                    other.tell(value)
            if "run" in value:
                self.runs.append(dict(value["run"], rank=rank))
            if "speed" in value:
                self.speeds.append(value["speed"])
            for name in ("stage", "ready", "done", "trouble", "kind"):
                if name in value:
                    note[name] = value[name]

    def run(self):
        """
        Let the ranks go, wait for their end, emit the arm's event.

        Returns:
            "right", "wrong", "hang", "crash", "failed" (NCCL returned an error) or "inconclusive".
        """
        supervisor.progress("all-reduce", "%s: %d ranks" % (self.arm["name"], len(self.ranks)))
        began = time.monotonic()
        hang = self._wait_until_ready(began + self.timing["prepare_s"])
        if not hang:
            began = time.monotonic()
            hang = self._wait_until_over(began)
        took = time.monotonic() - began
        if not all(note.get("done") for note in self.notes):
            self._let_others_speak(0.0 if hang else 0.5)
        ending, reason = self._ending(hang)
        ranks = self._rank_reports()
        if ending != "right":
            self._look_around()
        removed = len(self.crew.removed_files)
        stuck = self.crew.kill(self.ranks) if ending != "right" else []
        self._emit(
            ending,
            reason,
            took_s=round(took, 3),
            joining_s=None if self.joined is None else round(self.joined - began, 3),
            ranks=ranks,
            removed_files=self.crew.removed_files[removed:],
            stuck=stuck,
        )
        return ending

    def _wait_until_ready(self, deadline):
        while not all(note.get("ready") for note in self.notes) and not self._broken():
            self._turn()
            if time.monotonic() > deadline:
                return "not ready within %g s" % self.timing["prepare_s"]
        if not self._broken():
            self._let_go()
        for note in self.notes:
            note["at"] = time.monotonic()
        return ""

    def _let_go(self):
        """Start the ranks, all of which are ready."""
        for worker in self.ranks:
            worker.tell({"go": True})

    def _look_around(self):
        """Look at what the ranks' bad end may come from, while all that took part is still there."""

    def _name(self, rank):
        return "rank %d (%s)" % (rank, self.devices[rank])

    def _wait_until_over(self, began):
        while not all(note.get("done") for note in self.notes) and not self._broken():
            self._turn()
            now = time.monotonic()
            if now - began > self.timing["arm_s"]:
                return "did not end within %g s" % self.timing["arm_s"]
            if now - max(note["at"] for note in self.notes) > self.timing["stall_s"]:
                return "no rank went on for %g s" % self.timing["stall_s"]
        return ""

    def _broken(self):
        return any(note.get("trouble") or (note.get("ended") and not note.get("done")) for note in self.notes)

    def _turn(self):
        for worker, kind, value in self.crew.turn():
            if worker in self.ranks:
                self.hear(worker, kind, value)

    def _let_others_speak(self, wait_s):
        """After the first bad end, give the other ranks a moment to say theirs."""
        until = time.monotonic() + wait_s
        while time.monotonic() < until and not all(note.get("ended") for note in self.notes):
            self._turn()

    def _ending(self, hang):
        named = [self._name(rank) for rank in range(len(self.devices))]
        unfinished = [rank for rank, note in enumerate(self.notes) if not note.get("done")]
        stages = {rank: self.notes[rank]["stage"] for rank in unfinished}
        for rank in unfinished:
            number = self.ranks[rank].how_it_ended()[1]
            if number:
                return "crash", "%s was ended by %s in: %s" % (named[rank], number, stages[rank])
        for rank in unfinished:
            note = self.notes[rank]
            if note.get("trouble"):
                ending = "failed" if note["kind"] == "nccl" else "inconclusive"
                return ending, "%s: %s (in: %s)" % (named[rank], note["trouble"], stages[rank])
        for rank in unfinished:
            status = self.ranks[rank].how_it_ended()[0]
            if status is not None:
                return "crash", "%s ended with exit status %d in: %s" % (named[rank], status, stages[rank])
        if hang:
            least = min(self.notes[rank]["steps"] for rank in unfinished)
            behind = [rank for rank in unfinished if self.notes[rank]["steps"] == least]
            if len(behind) < len(self.notes):
                hang += "; behind the others: " + ", ".join(named[rank] for rank in behind)
            where = "; ".join("%s in: %s" % (named[rank], stages[rank]) for rank in unfinished)
            return "hang", "%s; %s" % (hang, where)
        for run in self.runs:
            if run["wrong_elements"]:
                return "wrong", "%s holds %d wrong of %d %s elements (%d bytes), the first at index %d" % (
                    named[run["rank"]],
                    run["wrong_elements"],
                    run["elements"],
                    run["type"],
                    run["size_bytes"],
                    run["first_wrong_index"],
                )
        if not self.runs:
            return "inconclusive", "no sum was made"
        return "right", None

    def _rank_reports(self):
        reports = []
        for rank, worker in enumerate(self.ranks):
            status, number = worker.how_it_ended()
            note = self.notes[rank]
            reports.append(
                {
                    "rank": rank,
                    "pci": self.devices[rank],
                    "pid": worker.pid,
                    "stage": note["stage"],
                    "done": bool(note.get("done")),
                    "exit_status": status,
                    "signal": number,
                    "error": note.get("trouble"),
                    "last_line": worker.last_line,
                    "silent_s": round(time.monotonic() - note["at"], 2),
                }
            )
        return reports

    def _emit(self, ending, reason, **measured):
        lines = [line for worker in self.ranks for line in worker.log_lines]
        ready = [note["ready"] for note in self.notes if note.get("ready")]
        supervisor.emit(
            "allreduce",
            program=self.program,
            arm=self.arm["name"],
            devices=self.devices,
            world_size=len(self.devices),
            ending=ending,
            reason=reason,
            environment=self.arm.get("environment") or {},
            unset=list(self.arm.get("unset") or ()),
            library=ready[0] if ready else None,
            runs=join_ranks(self.runs),
            speed=self._speed() if ending == "right" else None,
            channels=count_channels(lines),
            log=telling(self.ranks, 200),
            at_s=supervisor.since_start(),
            **measured,
        )

    def _speed(self):
        if not self.speeds:
            return None
        slowest = max(self.speeds, key=lambda one: one["time_s"])
        algbw = slowest["size_bytes"] / slowest["time_s"] / 1e9
        world = len(self.devices)
        return dict(slowest, algbw_gb_s=round(algbw, 3), busbw_gb_s=round(algbw * 2 * (world - 1) / world, 3))


def join_ranks(runs):
    """Join what each rank saw of each sum: one entry for each type, size and repeat."""
    joined = {}
    for run in runs:
        entry = joined.setdefault(
            (run["type"], run["size_bytes"], run["repeat"]),
            {
                "type": run["type"],
                "size_bytes": run["size_bytes"],
                "repeat": run["repeat"],
                "elements": run["elements"],
                "ranks_reported": 0,
                "wrong_elements": 0,
                "wrong_by_rank": {},
                "unreduced_elements": 0,
                "zero_elements": 0,
                "first_wrong_index": None,
            },
        )
        entry["ranks_reported"] += 1
        if run["wrong_elements"]:
            entry["wrong_by_rank"][str(run["rank"])] = run["wrong_elements"]
            for name in ("wrong_elements", "unreduced_elements", "zero_elements"):
                entry[name] += run[name]
            known = entry["first_wrong_index"]
            here = run["first_wrong_index"]
            entry["first_wrong_index"] = here if known is None else min(known, here)
    return [joined[key] for key in sorted(joined)]
