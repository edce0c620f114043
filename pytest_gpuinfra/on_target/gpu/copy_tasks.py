"""
What the pairs program is to do: tasks in order, their words, and the events that they lead to.

This file imports nothing of ours and runs on Python 3.6 and later with the standard library only.
"""


def list_tasks(plan, devices):
    """
    List what is to be done, in order: the same list in the parent and in the owner.

    Args:
        plan: The program's plan.
        devices: PCI addresses of the devices at hand.
    """
    tasks = [
        {"kind": "local", "src": device, "dst": device, "mechanism": mechanism}
        for device in devices
        for mechanism in plan["local"]
    ]
    tasks += [
        {"kind": "pair", "src": src, "dst": dst, "mechanism": mechanism}
        for src in devices
        for dst in devices
        if src != dst
        for mechanism in plan["mechanisms"]
    ]
    tasks += [
        {"kind": "both", "src": src, "dst": dst, "mechanism": mechanism}
        for number, src in enumerate(devices)
        for dst in devices[number + 1 :]
        for mechanism in plan["simultaneous"]
    ]
    tasks += [
        {"kind": "chain", "src": src, "via": via, "dst": dst, "mechanism": mechanism}
        for src in devices
        for via in devices
        for dst in devices
        if len({src, via, dst}) == 3
        for mechanism in plan["chains"]
    ]
    return tasks


def bytes_of(plan, task):
    """Give the bytes that a task copies, memory allowing."""
    if task["kind"] == "chain":
        return 2 * sum(plan["chain_sizes"]) * plan["repeats"]
    sizes = plan["sizes"] + [case["size"] for case in plan["odd_cases"]]
    one_way = sum(sizes) * plan["repeats"] + max(plan["sizes"]) * plan["timed_copies"]
    return one_way * (2 if task["kind"] == "both" else 1)


def describe(task):
    """Say what a task is, for people."""
    if task["kind"] == "local":
        return "%s alone by %s" % (task["src"], task["mechanism"])
    via = " -> " + task["via"] if "via" in task else ""
    arrow = " <-> " if task["kind"] == "both" else " -> "
    return "%s%s%s%s by %s" % (task["src"], via, arrow, task["dst"], task["mechanism"])


def events_of(task, **fields):
    """Give the events, without results, that a task leads to: [(name, fields)]."""
    if task["kind"] == "chain":
        base = {name: task[name] for name in ("src", "via", "dst", "mechanism")}
        return [("chain", dict(blank_result(), **dict(base, **fields)))]
    if task["kind"] == "local":
        base = {name: task[name] for name in ("src", "dst", "mechanism")}
        return [("local", dict(blank_result(), **dict(base, **fields)))]
    ends = [(task["src"], task["dst"])]
    if task["kind"] == "both":
        ends.append((task["dst"], task["src"]))
    return [
        (
            "pair",
            dict(
                blank_result(),
                src=src,
                dst=dst,
                mechanism=task["mechanism"],
                simultaneous=task["kind"] == "both",
                **fields,
            ),
        )
        for src, dst in ends
    ]


def blank_result():
    """Give the result fields of a pair or chain about which nothing is known."""
    return {
        "can_access": None,
        "outcome": "error",
        "class": None,
        "reason": None,
        "copies_checked": 0,
        "bytes_checked": 0,
        "largest_bytes": 0,
        "wrong_copies": 0,
        "wrong_bytes": 0,
        "never_written_bytes": 0,
        "zeroed_bytes": 0,
        "scrambled_bytes": 0,
        "guard_wrong_bytes": 0,
        "failures": [],
        "gb_s": None,
        "log_from": None,
        "log_to": None,
    }
