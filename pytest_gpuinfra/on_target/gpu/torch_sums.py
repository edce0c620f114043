"""
Exact sums by torch.distributed in one rank, on a GPU or on the CPU, and what they take.

This file imports torch only once it is asked to work: whoever calls it has imported it before, and forked since.
It runs in the service's Python, 3.6 and later. Integers in every type, so that a right sum has one value only.
"""

import sys
import time

BFLOAT16_RANKS = 64
TYPES = {"int32": 4, "float32": 4, "bfloat16": 2}  # bytes of an element


def torch_module():
    """Give the torch that this process has imported."""
    return sys.modules["torch"]


def mix(words, seed):
    """Turn consecutive int32 numbers into bytes of the stream: each odd, below 0x80; their complements are poison."""
    words = words * -1640531535 + (seed & 0x7FFFFFFF)
    words = words ^ (words >> 15)
    return words * 739982445


def contribution(elements, place, seed, type_name):
    """
    Make what a rank puts into a sum. Shape (elements,); integers whose sums, in any order, are exact in their type.

    Args:
        elements: How many.
        place: (rank, world size, device).
        seed: Of all ranks.
        type_name: A name of TYPES; bfloat16, whole up to 256, for 64 ranks at most.
    """
    torch = torch_module()
    rank, world, device = place
    words = mix(torch.arange(elements, dtype=torch.int32, device=device), seed + rank * 7919)
    if type_name == "float32":
        return (words & (min(1 << 20, (1 << 24) // world) - 1)).to(torch.float32)
    if type_name == "bfloat16":
        return ((words & 0x7FFFFFFF) % min(15, 256 // world) + 1).to(torch.bfloat16)
    return words


def finish(device):
    """Wait for what was enqueued on a device."""
    if str(device).startswith("cuda"):
        torch_module().cuda.synchronize(device)


def sum_once(port, message, repeat, place, seed):
    """Sum once, and compare with what every rank can work out."""
    torch = torch_module()
    world, device = place[1:]
    type_name, size = message["type"], message["size_bytes"]
    elements = size // TYPES[type_name]
    what = "an all-reduce of %d bytes, %s, repeat %d" % (size, type_name, repeat)
    port.say(stage="calling " + what)
    mine = contribution(elements, place, seed, type_name)
    values = mine.clone()
    torch.distributed.all_reduce(values)
    port.say(stage="waiting for " + what)
    finish(device)
    want = contribution(elements, (0, world, device), seed, type_name)
    for other in range(1, world):
        want += contribution(elements, (other, world, device), seed, type_name)
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
    """Time sums in a row, by the GPU's own clock where there is one."""
    torch = torch_module()
    type_name, size = message["type"], message["size_bytes"]
    dtype = {"int32": torch.int32, "float32": torch.float32, "bfloat16": torch.bfloat16}[type_name]
    values = torch.zeros(size // TYPES[type_name], dtype=dtype, device=device)
    for _ in range(3):
        torch.distributed.all_reduce(values)
    if not str(device).startswith("cuda"):
        began = time.monotonic()
        for _ in range(count):
            torch.distributed.all_reduce(values)
        return {"type": type_name, "size_bytes": size, "time_s": (time.monotonic() - began) / count}
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(count):
        torch.distributed.all_reduce(values)
    end.record()
    torch.cuda.synchronize(device)
    return {"type": type_name, "size_bytes": size, "time_s": begin.elapsed_time(end) / 1e3 / count}


def sum_all(port, plan, place, room):
    """Make every sum of the plan that the room allows, then the timed ones, and say so."""
    device = place[2]
    messages = [message for message in plan["messages"] if message["size_bytes"] <= room // 4]
    if place[1] > BFLOAT16_RANKS:
        messages = [message for message in messages if message["type"] != "bfloat16"]
    for index, message in enumerate(messages):
        for repeat in range(1, plan["repeats"] + 1):
            port.say(run=sum_once(port, message, repeat, place, plan["seed"] + index * 101 + repeat))
    if messages and plan["timed_sums"]:
        timed = max(messages, key=lambda message: (message["size_bytes"], message["type"] == "float32"))
        port.say(stage="timing all-reduces of %d bytes" % timed["size_bytes"])
        port.say(speed=time_sums(timed, device, plan["timed_sums"]))


def loaded_nccl():
    """Give the file of the NCCL that torch has loaded; None where it is linked into torch itself."""
    try:
        with open("/proc/self/maps") as maps:
            paths = sorted({line.split(None, 5)[5].strip() for line in maps if "/libnccl.so" in line})
    except OSError:
        return None
    return paths[0] if paths else None


def library():
    """Say which NCCL torch has."""
    torch = torch_module()
    sham = hasattr(torch, "gpuinfra_sham")
    return {
        "path": loaded_nccl(),
        "version": ".".join(str(part) for part in torch.cuda.nccl.version()),
        "sham": sham,
        "stand_in": "sham" if sham else None,
    }


def first_line(error):
    """Give the first line of an error's text."""
    return str(error).split("\n", 1)[0]
