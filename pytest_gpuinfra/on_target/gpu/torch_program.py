"""
The GPU program of the framework rung: torch's word on peers, a torch copy per GPU and pair, sums by torch.distributed.

It runs in the service's own Python, as its process (launch.py), so that its sitecustomize and environment apply, and
says "skipped" where that has no torch. torch is imported once; every process that touches a GPU is forked
afterwards, before CUDA is used.
It imports its neighbours in this directory, which travel with it (plan.py), torch, and the standard library.
To run it by hand: `(cat plan.json; sleep 600) | python3 torch_program.py`, the plan on one line.

It touches on the target what cuda_program.py touches, and takes about 10 s for two GPUs, most of it torch's import.

The plan: plan.py, GpuPlan with the mechanism "torch_copy". Events: those of cuda_program.py, and
    skipped    reason; nothing was tried
"""

import datetime
import sys
import time

import supervisor
from arm import apply_environment
from copy_tasks import blank_result, list_tasks
from device_memory import enumerate_devices, plan_memory
from driver import Driver
from log_mark import LogMark
from pairs import Bracket, Result, failed
from program import Program, prepare
from supervisor import TroubleError, emit
from torch_sums import first_line, library, mix, sum_all

torch = None  # set by import_torch; the plan has to be read first


def import_torch():
    """Import torch; gives what is to be told about it, or the reason why there is none to use."""
    global torch  # noqa: PLW0603
    began = time.monotonic()
    try:
        import torch as module
        import torch.distributed
    except ImportError as error:
        return None, "%s has no usable torch: %s" % (sys.executable, error)
    if module.version.cuda is None:
        return None, "torch %s of %s was built without CUDA" % (module.__version__, sys.executable)
    torch = module
    about = {
        "torch": module.__version__,
        "torch_cuda": module.version.cuda,
        "python": sys.executable,
        "import_s": round(time.monotonic() - began, 3),
        "stand_in": "sham" if hasattr(module, "gpuinfra_sham") else None,
    }
    return about, None


def stream_bytes(size, seed, device):
    """Make `size` bytes from the seed alone, on a device. Shape (size,), uint8."""
    words = mix(torch.arange((size + 3) // 4, dtype=torch.int32, device=device), seed)
    words = (words & 0x7E7E7E7E) | 0x01010101
    return words.view(torch.uint8)[:size]


def compare(got, want, case):
    """Count what differs on the device that holds both; None where nothing does."""
    wrong = got != want
    count = int(wrong.sum())
    if not count:
        return None
    kept = int((got == (want ^ 255)).sum())
    zeroed = int((got == 0).sum())
    places = wrong.nonzero()
    return {
        "size_bytes": case["size"],
        "src_offset": case["src_offset"],
        "dst_offset": case["dst_offset"],
        "wrong_bytes": count,
        "never_written_bytes": kept,
        "zeroed_bytes": zeroed,
        "scrambled_bytes": count - kept - zeroed,
        "first_wrong_offset": int(places[0]),
        "last_wrong_offset": int(places[-1]),
        "guard_wrong_bytes": 0,
    }


class TorchPairs:
    """Torch copies between devices, each judged on its destination."""

    def __init__(self, plan, numbers):
        self.plan = plan
        self.numbers = numbers

    def copy(self, src, dst, case, seed, count):
        """Copy so many times; gives (what differs, seconds of the copies)."""
        there = "cuda:%d" % self.numbers[dst]
        here = "cuda:%d" % self.numbers[src]
        size, src_offset, dst_offset = case["size"], case["src_offset"], case["dst_offset"]
        source = stream_bytes(src_offset + size, seed, here)[src_offset:]
        want = stream_bytes(src_offset + size, seed, there)[src_offset:]
        room = torch.zeros(size + dst_offset, dtype=torch.uint8, device=there)
        target = room[dst_offset:]
        target.copy_(want ^ 255)
        torch.cuda.synchronize(here)
        torch.cuda.synchronize(there)
        began = time.monotonic()
        for _ in range(count):
            target.copy_(source, non_blocking=True)
        torch.cuda.synchronize(here)
        torch.cuda.synchronize(there)
        took = time.monotonic() - began
        return compare(target, want, case), took

    def pair(self, number, task, largest):
        """One directed pair, or one device alone."""
        src, dst = task["src"], task["dst"]
        for pci in (src, dst):
            if pci not in largest:
                return dict(blank_result(), reason="%s: too little free memory" % pci)
        if src != dst and not torch.cuda.can_device_access_peer(self.numbers[src], self.numbers[dst]):
            return dict(
                blank_result(),
                can_access=False,
                outcome="not_tested",
                reason="torch says that %s cannot access %s: a copy would be staged through the host" % (src, dst),
            )
        room = min(largest[src], largest[dst])
        cases = [case for case in self.plan["odd_cases"] if case["size"] <= room]
        cases += [
            {"size": size, "src_offset": 0, "dst_offset": 0}
            for size in sorted({min(size, room) for size in self.plan["sizes"]})
        ]
        rounds = [(case, repeat, 1) for case in cases for repeat in range(1, self.plan["repeats"] + 1)]
        if self.plan["timed_copies"]:
            rounds.append((cases[-1], self.plan["repeats"] + 1, self.plan["timed_copies"]))
        result = Result()
        gb_s = None
        for case, repeat, copies in rounds:
            seed = self.plan["seed"] + number * 1000003 + case["size"] % 8191 + repeat * 127
            try:
                found, seconds = self.copy(src, dst, case, seed, copies)
            except torch.cuda.OutOfMemoryError as error:
                return dict(blank_result(), can_access=True, reason="too little free memory: %s" % first_line(error))
            except RuntimeError as error:
                return failed(result, case, repeat, first_line(error))
            if copies > 1:
                gb_s = case["size"] * copies / seconds / 1e9
            result.take(case, repeat, found, copies)
        return result.close(gb_s) if src != dst else dict(result.close(None), can_access=None)


def torch_pairs(port, plan, channel, first):
    """Be the worker that does the pairs; says what pairs.own_pairs says."""
    channel.close()
    driver = Driver()
    devices = enumerate_devices(driver, plan)
    fourfold = dict(plan, sizes=[4 * size for size in plan["sizes"]], odd_cases=[])
    capacities, reasons = plan_memory(fourfold, devices)
    capacities = {pci: size // 4 for pci, size in capacities.items()}  # torch makes four of each while comparing
    port.say(
        driver=driver.report(),
        devices=[device.report() for device in devices],
        reasons=reasons,
        capacities=capacities,
    )
    tasks = list_tasks(plan, [device.pci for device in devices])
    numbers = {device.pci: device.index for device in devices}
    pairs = TorchPairs(plan, numbers)
    if tasks[first:]:
        for pci in capacities:
            torch.zeros(1, device="cuda:%d" % numbers[pci])
    log = LogMark()
    log.now()
    port.say(opened=True)
    port.wait()
    for number, task in enumerate(tasks):
        if number < first:
            continue
        bracket = Bracket(log)
        port.say(begin=number, log_from=bracket.log_from)
        fields = pairs.pair(number, task, capacities)
        bracket.close([fields])
        port.say(result=number, fields=[fields])
        if fields["outcome"] == "failed":
            port.say(broken=number)
            return
    port.say(done=True)


def torch_rank(port, plan, arm, rank, devices):
    """Be one rank; what it says is told in arm.Arm."""
    apply_environment(arm)
    port.say(stage="opening the device")
    numbers = {device.pci: device.index for device in enumerate_devices(Driver(), dict(plan, devices=None))}
    if devices[rank] not in numbers:
        raise TroubleError("device", "no visible device has the address %s" % devices[rank])
    try:
        reduce_in_rank(port, plan, arm, rank, (numbers[devices[rank]], len(devices)))
    except torch.cuda.OutOfMemoryError as error:
        raise TroubleError("memory", first_line(error)) from error
    except torch.distributed.DistBackendError as error:
        raise TroubleError("nccl", first_line(error)) from error
    except RuntimeError as error:
        raise TroubleError("cuda", first_line(error)) from error


def reduce_in_rank(port, plan, arm, rank, place):
    """Join the process group and sum."""
    number, world = place
    device = torch.device("cuda", number)
    torch.cuda.set_device(device)
    torch.zeros(1, device=device)
    port.say(
        stage="waiting for the other ranks",
        ready=library(),
    )
    port.wait()
    port.say(stage="joining the process group")
    patience = datetime.timedelta(seconds=plan["deadlines"]["arm_s"] + 60)
    if rank == 0:
        store = torch.distributed.TCPStore("127.0.0.1", 0, world, True, patience, wait_for_workers=False)
        port.say(id=store.port)
    else:
        store = torch.distributed.TCPStore("127.0.0.1", port.wait()["id"], world, False, patience)
    torch.distributed.init_process_group("nccl", store=store, rank=rank, world_size=world, timeout=patience)
    sum_all(port, plan, (rank, world, device), arm["room_bytes"])
    port.say(stage="leaving", done=True)
    torch.distributed.destroy_process_group()


def main():
    """Read the plan and do it."""
    plan = supervisor.read_plan()
    prepare(plan)
    with supervisor.WatchedByThread():
        supervisor.progress("torch", "importing torch in %s" % sys.executable)
        about, reason = import_torch()
    if reason:
        emit("skipped", reason=reason)
        emit("end", complete=True, phases={}, took_s=supervisor.since_start(), removed_files=[], stuck=[])
        return
    program = Program("torch", plan, owner=torch_pairs, helper=None, rank=torch_rank, about=about)
    program.finish(program.run())


if __name__ == "__main__":
    main()
