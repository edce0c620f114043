"""
The devices at hand, and how much of their memory the copies may take.

This file imports driver.py only and runs on Python 3.6 and later with the standard library only.
"""

from driver import Device, read_memory

MEBIBYTE = 1 << 20


def enumerate_devices(driver, plan):
    """Give the visible devices, only those that the plan names if it names any, in PCI order."""
    found = [Device(driver, index) for index in range(driver.count())]
    read_memory(found)
    wanted = plan["devices"]
    return [device for device in found if wanted is None or device.pci in wanted]


def plan_memory(plan, devices):
    """
    Decide how large copies may get on each device, so that whatever runs there keeps its memory.

    Returns:
        Bytes of the largest copy by PCI address, and the reason for each device that gets none.
        Where free memory is unknown (NVML missing, MIG, memory shared with the CPU) the smallest useful size is
        taken: 64 MiB.
    """
    memory = plan["memory"]
    largest = max(plan["sizes"] + [case["size"] for case in plan["odd_cases"]])
    capacities = {}
    reasons = {}
    for device in devices:
        if device.memory_free is None:
            capacities[device.pci] = min(largest, 64 * MEBIBYTE)
            continue
        room = device.memory_free - memory["keep_free_bytes"] - 2 * memory["context_bytes"]
        room = min(room, memory["budget_bytes"]) // 2 - MEBIBYTE
        if room < MEBIBYTE:
            reasons[device.pci] = (
                "%s: too little free memory: %d MiB are free, our two contexts take %d MiB and %d MiB are left to "
                "what runs there"
                % (
                    device.pci,
                    device.memory_free // MEBIBYTE,
                    2 * memory["context_bytes"] // MEBIBYTE,
                    memory["keep_free_bytes"] // MEBIBYTE,
                )
            )
        else:
            capacities[device.pci] = min(largest, room)
    return capacities, reasons
