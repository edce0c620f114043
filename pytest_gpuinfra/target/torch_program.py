"""
The GPU program of the framework rung: torch's word on peers, a torch copy per pair, sums by torch.distributed.

It runs in the service's own Python, so that its sitecustomize and environment apply, and says "skipped" where that has
no torch. torch is imported once; every process that touches a GPU is forked afterwards, before CUDA is used.
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
from driver import Driver
from pairs import Result, blank_result, enumerate_devices, failed, list_tasks, plan_memory
from program import Program, prepare
from supervisor import TroubleError, emit

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


def mix(words, seed):
    """Turn consecutive int32 numbers into bytes of the stream: each odd, below 0x80; their complements are poison."""
    words = words * -1640531535 + (seed & 0x7FFFFFFF)
    words = words ^ (words >> 15)
    return words * 739982445


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
        """One directed pair."""
        src, dst = task["src"], task["dst"]
        for pci in (src, dst):
            if pci not in largest:
                return dict(blank_result(), reason="%s: too little free memory" % pci)
        if not torch.cuda.can_device_access_peer(self.numbers[src], self.numbers[dst]):
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
            except RuntimeError as error:
                return failed(result, case, repeat, first_line(error))
            if copies > 1:
                gb_s = case["size"] * copies / seconds / 1e9
            result.take(case, repeat, found, copies)
        return result.close(gb_s)


def loaded_nccl():
    """Give the file of the NCCL that torch has loaded; None where it is linked into torch itself."""
    try:
        with open("/proc/self/maps") as maps:
            paths = sorted({line.split(None, 5)[5].strip() for line in maps if "/libnccl.so" in line})
    except OSError:
        return None
    return paths[0] if paths else None


def first_line(error):
    """Give the first line of an error's text."""
    return str(error).split("\n", 1)[0]


def torch_pairs(port, plan, channel, first):
    """Be the worker that does the pairs; says what pairs.own_pairs says."""
    channel.close()
    driver = Driver()
    devices = enumerate_devices(driver, plan)
    capacities, reasons = plan_memory(plan, devices)
    port.say(
        driver=driver.report(),
        devices=[device.report() for device in devices],
        reasons=reasons,
        capacities=capacities,
    )
    tasks = list_tasks(plan, [device.pci for device in devices])
    numbers = {device.pci: device.index for device in devices}
    largest = {pci: size // 4 for pci, size in capacities.items()}  # torch makes four of each while comparing
    pairs = TorchPairs(plan, numbers)
    if tasks[first:]:
        for pci in largest:
            torch.zeros(1, device="cuda:%d" % numbers[pci])
    port.say(opened=True)
    port.wait()
    for number, task in enumerate(tasks):
        if number < first:
            continue
        port.say(begin=number)
        began = time.monotonic()
        fields = pairs.pair(number, task, largest)
        fields["began_monotonic_s"] = round(began, 6)
        fields["ended_monotonic_s"] = round(time.monotonic(), 6)
        port.say(result=number, fields=[fields])
        if fields["outcome"] == "failed":
            port.say(broken=number)
            return
    port.say(done=True)


def contribution(elements, rank, seed, type_name, device):
    """Make what a rank puts into a sum. Shape (elements,); integers whose sums are exact in their type."""
    words = mix(torch.arange(elements, dtype=torch.int32, device=device), seed + rank * 7919)
    if type_name == "float32":
        return (words & 0xFFFFF).to(torch.float32)
    if type_name == "bfloat16":
        return ((words & 0x7FFFFFFF) % 15 + 1).to(torch.bfloat16)
    return words


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
        ready={
            "path": loaded_nccl(),
            "version": ".".join(str(part) for part in torch.cuda.nccl.version()),
            "sham": hasattr(torch, "gpuinfra_sham"),
            "stand_in": "sham" if hasattr(torch, "gpuinfra_sham") else None,
        },
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
    messages = [message for message in plan["messages"] if message["size_bytes"] <= arm["largest_bytes"] // 4]
    for index, message in enumerate(messages):
        for repeat in range(1, plan["repeats"] + 1):
            run = sum_once(port, message, repeat, (rank, world, device), plan["seed"] + index * 101 + repeat)
            port.say(run=run)
    timed = max(messages, key=lambda message: (message["size_bytes"], message["type"] == "float32"))
    if plan["timed_sums"]:
        port.say(stage="timing all-reduces of %d bytes" % timed["size_bytes"])
        port.say(speed=time_sums(timed, device, plan["timed_sums"]))
    port.say(stage="leaving", done=True)
    torch.distributed.destroy_process_group()


def sum_once(port, message, repeat, place, seed):
    """Sum once, and compare with what every rank can work out."""
    rank, world, device = place
    type_name, size = message["type"], message["size_bytes"]
    elements = size // (2 if type_name == "bfloat16" else 4)
    what = "an all-reduce of %d bytes, %s, repeat %d" % (size, type_name, repeat)
    port.say(stage="calling " + what)
    mine = contribution(elements, rank, seed, type_name, device)
    values = mine.clone()
    torch.distributed.all_reduce(values)
    port.say(stage="waiting for " + what)
    torch.cuda.synchronize(device)
    want = contribution(elements, 0, seed, type_name, device)
    for other in range(1, world):
        want += contribution(elements, other, seed, type_name, device)
    wrong = values != want
    count = int(wrong.sum())
    return {
        "type": type_name,
        "size_bytes": size,
        "elements": elements,
        "repeat": repeat,
        "wrong_elements": count,
        "unreduced_elements": int((wrong & (values == mine)).sum()) if count else 0,
        "zero_elements": int((wrong & (values == 0)).sum()) if count else 0,
        "first_wrong_index": int(wrong.nonzero()[0]) if count else None,
    }


def time_sums(message, device, count):
    """Time sums in a row."""
    type_name, size = message["type"], message["size_bytes"]
    dtype = {"int32": torch.int32, "float32": torch.float32, "bfloat16": torch.bfloat16}[type_name]
    values = torch.zeros(size // (2 if type_name == "bfloat16" else 4), dtype=dtype, device=device)
    for _ in range(3):
        torch.distributed.all_reduce(values)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(count):
        torch.distributed.all_reduce(values)
    end.record()
    torch.cuda.synchronize(device)
    return {"type": type_name, "size_bytes": size, "time_s": begin.elapsed_time(end) / 1e3 / count}


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
