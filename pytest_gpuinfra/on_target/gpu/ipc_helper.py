"""
Copies that another process makes: the helper that opens the owner's buffers by CUDA IPC, and the owner's side of it.

This file imports supervisor.py, driver.py, device_memory.py and copy_buffers.py only
and runs on Python 3.6 and later with the standard library only.
"""

import ctypes
import json

from copy_buffers import GUARD, launch_copy
from device_memory import enumerate_devices
from driver import DEVICE_POINTER, IPC_LAZY_PEER_ACCESS, Driver, IpcHandle, open_devices
from supervisor import TroubleError


class Helper:
    """The owner's side of the helper: copies that another process makes through CUDA IPC."""

    def __init__(self, channel, buffers):
        self.stream = channel.makefile("rw", encoding="utf-8", newline="\n")
        self.buffers = buffers
        self.known = False

    def ask(self, request):
        """Send a request and wait for the answer."""
        self.stream.write(json.dumps(request) + "\n")
        self.stream.flush()
        line = self.stream.readline()
        if not line:
            raise TroubleError("program", "the process that opens the IPC mappings ended")
        answer = json.loads(line)
        if answer.get("trouble"):
            raise TroubleError(answer["kind"], "in the other process: " + answer["trouble"])
        return answer

    def prepare(self, src, dst, on):
        """Open both buffers in the context of device `on`."""
        if not self.known:
            handles = {}
            for pci, buffers in self.buffers.items():
                handles[pci] = [buffers.handle(buffers.source), buffers.handle(buffers.destination)]
            self.ask({"handles": handles})
            self.known = True
        self.ask({"open": [src, dst], "on": on})

    def copy(self, case, src, dst, on, count):
        """Copy so many times; gives the seconds that the device took."""
        return self.ask({"copy": case, "src": src, "dst": dst, "on": on, "count": count})["seconds"]


def help_owner(_port, plan, channel):
    """Be the helper: open the owner's buffers and copy as asked, until the owner ends."""
    driver = Driver()
    devices = {device.pci: device for device in enumerate_devices(driver, plan)}
    open_devices(list(devices.values()), plan["ptx"])
    stream = channel.makefile("rw", encoding="utf-8", newline="\n")
    handles = {}
    mappings = {}

    def mapped(on, pci, which):
        key = (on, pci, which)
        if key not in mappings:
            devices[on].current()
            handle = IpcHandle()
            ctypes.memmove(ctypes.byref(handle), bytes.fromhex(handles[pci][which]), 64)
            address = DEVICE_POINTER()
            code = driver.function("cuIpcOpenMemHandle_v2", "cuIpcOpenMemHandle")(
                ctypes.byref(address), handle, ctypes.c_uint(IPC_LAZY_PEER_ACCESS)
            )
            if code:
                driver.refuse("cuIpcOpenMemHandle", code)
            mappings[key] = address.value
        return mappings[key]

    def answer(request):
        if "handles" in request:
            handles.update(request["handles"])
            return {}
        device = devices[request["on"]]
        if device.trouble:
            raise device.trouble
        if "open" in request:
            src, dst = request["open"]
            mapped(request["on"], src, 0)
            mapped(request["on"], dst, 1)
            return {}
        case = request["copy"]
        source = mapped(request["on"], request["src"], 0) + case["src_offset"]
        destination = mapped(request["on"], request["dst"], 1) + GUARD + case["dst_offset"]
        begin, end = device.event(), device.event()
        device.record(begin)
        launch_copy(device, case, destination, source, request["count"])
        device.record(end)
        device.finish()
        return {"seconds": device.seconds(begin, end)}

    for line in stream:
        try:
            reply = answer(json.loads(line))
        except TroubleError as trouble:
            reply = {"trouble": str(trouble), "kind": trouble.kind}
        stream.write(json.dumps(reply) + "\n")
        stream.flush()
