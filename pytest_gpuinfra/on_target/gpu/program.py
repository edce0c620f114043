"""
One run of a GPU program: lock, devices, pairs, all-reduce arms, end, in a parent that never touches a GPU.

This file imports its neighbours only and runs on Python 3.6 and later with the standard library only.
"""

import os
import sys
import time

import supervisor
from arm import Arm
from copy_tasks import bytes_of, describe, events_of, list_tasks
from crew import Crew
from log_mark import LogMark
from supervisor import emit

MEBIBYTE = 1 << 20
NCCL_BYTES = 1024 * MEBIBYTE  # context and buffers of a communicator, as seen on H200 with 24 channels


def read_first_line(path):
    """Give a file's first line; None if it cannot be read."""
    try:
        with open(path) as stream:
            return stream.readline().strip()
    except OSError:
        return None


class Program:
    """
    One run.

    Args:
        name: "cuda" or "torch".
        plan: The plan, as read.
        owner: Worker function that does the pairs: own_pairs, or one that says the same things.
        helper: Worker function that opens the owner's buffers; None for none.
        rank: Worker function of an all-reduce rank.
        about: What else the plan event tells.
    """

    def __init__(self, name, plan, *, owner, helper, rank, about):
        self.name = name
        self.plan = plan
        self.owner_function = owner
        self.helper_function = helper
        self.rank_function = rank
        self.about = about
        self.lock = supervisor.TargetLock(plan["lock_wait_s"])
        self.crew = Crew()
        self.devices = []
        self.reasons = {}
        self.capacities = {}
        self.driver = None
        self.tasks = []
        self.next_task = 0
        self.began_task = None
        self.log_from = None
        self.restarts = 0
        self.owner = None
        self.helper = None
        self.state = ""
        self.trouble = None
        self.phases = {}

    def run(self):
        """Do everything; gives whether everything planned has its event."""
        refusal = self.lock.take()
        if refusal:
            emit("error", fatal=True, kind="lock", reason=refusal)
            return False
        self.mark("lock")
        self.start_owner()
        if not self.wait_for_devices():
            emit("error", fatal=True, kind=self.trouble[0], reason=self.trouble[1])
            return False
        self.announce()
        self.mark("devices")
        waiting = self.arms_to_run()
        if self.tasks:
            self.do_tasks()
        else:
            self.crew.kill(self.copiers())
        self.mark("pairs")
        for arm, devices in waiting:
            self.settle()
            Arm(
                self.crew,
                self.plan,
                arm,
                program=self.name,
                rank_function=self.rank_function,
                devices=devices,
            ).run()
            self.mark("arm " + arm["name"])
        return True

    def settle(self):
        """Where memory is short, or a GPU takes one process only, wait until earlier workers have given it back."""
        enough = self.plan["memory"]["keep_free_bytes"] + 4 * NCCL_BYTES + self.plan["memory"]["budget_bytes"]
        if any(
            (device["memory_free_bytes"] or 0) < enough or device["compute_mode"] != "default"
            for device in self.devices
        ):
            self.wait_for_ends(3.0)

    def wait_for_ends(self, wait_s):
        """Wait for workers that are leaving."""
        until = time.monotonic() + wait_s
        while time.monotonic() < until and not self.crew.all_ended(self.crew.workers):
            time.sleep(0.005)

    def copiers(self):
        """Give the workers that do the pairs."""
        return [self.owner, self.helper] if self.helper else [self.owner]

    def mark(self, phase):
        """Note when a phase ended."""
        self.phases[phase] = supervisor.since_start()

    def start_owner(self):
        """Fork the owner and its helper."""
        self.state = ""
        self.began_task = None
        channel = self.crew.channel()
        self.owner = self.crew.start(
            "owner of the buffers", self.owner_function, self.plan, channel[0], self.next_task, keep=channel[:1]
        )
        if self.helper_function:
            self.helper = self.crew.start("IPC helper", self.helper_function, self.plan, channel[1], keep=channel[1:])
        self.crew.drop(channel)

    def hear(self, worker, kind, value):
        """Take one thing that happened outside of a running arm."""
        if worker is self.owner:
            self.hear_owner(kind, value)
        elif worker is self.helper and kind == "said" and value.get("trouble"):
            emit("error", fatal=False, kind=value["kind"], reason="IPC helper: " + value["trouble"])

    def hear_owner(self, kind, value):
        """Take one thing that the owner of the buffers did."""
        if kind == "ended" and self.state not in ("done", "broken"):
            status, number = self.owner.how_it_ended()
            self.state = "ended"
            self.trouble = self.trouble or (
                "crash", "the process that owns the buffers was ended by %s" % (number or "exit status %s" % status),
            )  # fmt: skip
        if kind != "said":
            return
        if "devices" in value:
            self.driver = value["driver"]
            self.devices = value["devices"]
            self.reasons = value["reasons"]
            self.capacities = value["capacities"]
            self.state = "devices"
        elif "opened" in value:
            self.state = "opened"
            self.mark("contexts")
        elif "begin" in value:
            self.next_task = value["begin"]
            self.log_from = value["log_from"]
            self.began_task = time.monotonic()
            task = self.tasks[self.next_task]
            supervisor.progress("pairs", describe(task), self.next_task, len(self.tasks))
        elif "result" in value:
            for number, (name, event) in enumerate(events_of(self.tasks[value["result"]])):
                emit(name, **dict(event, **value["fields"][number]))
            self.next_task = value["result"] + 1
            self.began_task = None
        elif "broken" in value:
            self.state = "broken"
        elif "done" in value:
            self.state = "done"
        elif "trouble" in value:
            self.trouble = (value["kind"], value["trouble"])

    def wait_for_devices(self):
        """Wait until the owner has said what is there; whether it did."""
        wait_s = self.plan["deadlines"]["prepare_s"]
        until = time.monotonic() + wait_s
        while self.state not in ("devices", "opened"):
            self.step()
            if self.state == "ended":
                return False
            if time.monotonic() > until:
                self.trouble = ("hang", "the driver did not answer within %g s" % wait_s)
                return False
        return True

    def announce(self):
        """Emit the plan and the devices."""
        plan = self.plan
        at_hand = [device["pci"] for device in self.devices]
        missing = [pci for pci in plan["devices"] or () if pci not in at_hand]
        self.tasks = list_tasks(plan, at_hand)
        emit(
            "plan",
            schema=supervisor.SCHEMA,
            program=self.name,
            about=self.about,
            seed=plan["seed"],
            driver=self.driver,
            kernel_module=read_first_line("/proc/driver/nvidia/version"),
            boot_id=read_first_line("/proc/sys/kernel/random/boot_id"),
            kernel=os.uname()[2],
            python=sys.version.split()[0],
            pid=os.getpid(),
            visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
            devices=at_hand,
            missing=missing,
            local=plan["local"],
            mechanisms=plan["mechanisms"],
            simultaneous=plan["simultaneous"],
            chains=plan["chains"],
            tasks=len(self.tasks),
            bytes=sum(bytes_of(plan, task) for task in self.tasks),
            arms=[arm["name"] for arm in plan["arms"]],
            expected_s=round(1.5 + 0.03 * len(self.tasks) + 1.4 * len(plan["arms"]), 1),
        )
        for device in self.devices:
            reason = self.reasons.get(device["pci"])
            emit(
                "device",
                usable=reason is None,
                reason=reason,
                largest_copy_bytes=self.capacities.get(device["pci"]),
                **device,
            )
        for pci in missing:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            emit(
                "device",
                usable=False,
                pci=pci,
                reason="CUDA shows no device at %s%s"
                % (pci, "" if visible is None else "; CUDA_VISIBLE_DEVICES is %r" % visible),
            )

    def do_tasks(self):
        """Let the owner do all tasks; a task that hangs or kills it gets its event, and a new owner the rest."""
        while True:
            until = time.monotonic() + self.plan["deadlines"]["prepare_s"]
            while self.state not in ("opened", "ended") and time.monotonic() < until:
                self.step()
            self.owner.tell({"go": True})
            while self.state not in ("done", "broken", "ended") and not self.hangs(until):
                self.step()
            if self.state == "done":
                return
            self.lose_owner()
            if self.next_task >= len(self.tasks):
                return
            self.restarts += 1
            if self.restarts > self.plan["restarts"]:
                self.give_up()
                return
            self.start_owner()
            self.wait_for_devices()

    def step(self):
        """Wait a moment."""
        for event in self.crew.turn():
            self.hear(*event)

    def hangs(self, until):
        """Whether the task at hand, or the preparation, took too long."""
        now = time.monotonic()
        if self.began_task is not None:
            return now - self.began_task > self.plan["deadlines"]["task_s"]
        return self.state != "opened" and now > until

    def lose_owner(self):
        """Kill owner and helper; the task that was at hand, if any, ends as hang or crash."""
        number = ([worker.how_it_ended()[1] for worker in self.copiers() if worker.how_it_ended()[1]] or [None])[0]
        stuck = self.crew.kill(self.copiers())
        if self.state == "broken":
            return
        if self.began_task is None and self.state != "ended":
            emit("error", fatal=False, kind="hang", reason="making contexts and buffers did not end")
        if self.next_task >= len(self.tasks):
            return
        if self.trouble and self.trouble[0] != "crash":
            outcome, reason = "error", self.trouble[1]
        elif number:
            outcome, reason = "crash", "the copying process was ended by %s" % number
        else:
            outcome, reason = "hang", "no end within %g s" % self.plan["deadlines"]["task_s"]
        self.trouble = None
        if stuck:
            reason += "; not even SIGKILL ended " + ", ".join(stuck)
        times = {"began_monotonic_s": self.began_task, "ended_monotonic_s": time.monotonic()}
        if self.began_task is not None:
            times.update(log_from=self.log_from, log_to=LogMark().now())
        for name, event in events_of(self.tasks[self.next_task], outcome=outcome, reason=reason):
            emit(name, **dict(event, **times))
        self.next_task += 1

    def give_up(self):
        """Say of each task left that it was not done."""
        reason = "not done: the copying process had to be started %d times" % self.restarts
        for task in self.tasks[self.next_task :]:
            for name, event in events_of(task, outcome="error", reason=reason):
                emit(name, **event)

    def arms_to_run(self):
        """Give (arm, devices) of each arm that can run; the others get their event here."""
        runnable = []
        at_hand = {device["pci"]: device for device in self.devices}
        for entry in self.plan["arms"]:
            arm = dict(entry)
            devices = arm.get("devices") or self.plan["devices"] or sorted(at_hand)
            reason = self.refuse_arm(arm, devices, at_hand)
            if reason:
                emit(
                    "allreduce",
                    program=self.name,
                    arm=arm["name"],
                    devices=devices,
                    world_size=len(devices),
                    ending="inconclusive",
                    reason=reason,
                    environment=arm.get("environment") or {},
                    unset=list(arm.get("unset") or ()),
                    library=None,
                    runs=[],
                    speed=None,
                    channels=[],
                    ranks=[],
                    log=[],
                    removed_files=[],
                    stuck=[],
                    took_s=0.0,
                    joining_s=None,
                    at_s=supervisor.since_start(),
                )
            else:
                runnable.append((arm, devices))
        return runnable

    def refuse_arm(self, arm, devices, at_hand):
        """Say why an arm cannot run; None if it can, with the room and the largest message that it has noted in it."""
        if len(devices) < 2:
            return "an all-reduce needs two GPUs; %d at hand" % len(devices)
        memory = self.plan["memory"]
        least = memory["budget_bytes"]
        for pci in devices:
            if pci not in at_hand:
                return "CUDA shows no device at %s" % pci
            if pci in self.reasons:
                return self.reasons[pci]
            free = at_hand[pci]["memory_free_bytes"]
            if free is None:
                continue
            room = min(free - memory["keep_free_bytes"] - NCCL_BYTES, memory["budget_bytes"])
            if room < MEBIBYTE:
                return "%s: too little free memory for a rank: %d MiB are free" % (pci, free // MEBIBYTE)
            least = min(least, room)
        arm["room_bytes"] = least
        arm["largest_bytes"] = min(least, max(message["size_bytes"] for message in self.plan["messages"]))
        return None

    def finish(self, complete):
        """Collect everybody, and say the end."""
        self.wait_for_ends(3.0)
        stuck = self.crew.close()
        self.mark("end")
        emit(
            "end",
            complete=complete,
            phases=self.phases,
            took_s=supervisor.since_start(),
            removed_files=self.crew.removed_files,
            stuck=stuck,
        )


def prepare(plan):
    """Set the environment that every worker inherits, and the overall deadline."""
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    os.environ["CUDA_CACHE_DISABLE"] = "1"  # the driver would keep our kernels in the home directory
    if plan["visible_devices"] is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = plan["visible_devices"]
    supervisor.end_at.append(plan["deadlines"]["total_s"])
