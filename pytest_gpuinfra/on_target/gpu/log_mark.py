"""
Where the kernel's log stands: the number of its youngest record, so that a message belongs to the copies it fell into.

This file imports nothing of ours and runs on Python 3.6 and later with the standard library only.
It reads /dev/kmsg and writes nothing there. Times would not do: printk's clock and CLOCK_MONOTONIC drift apart by
seconds in a month. Source: Linux Documentation/ABI/testing/dev-kmsg.
"""

import os
import stat


class LogMark:
    """A reader of the kernel's log of its own, which tells numbers only."""

    def __init__(self, path="/dev/kmsg"):
        self.descriptor = None
        self.last = None
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            return  # not root, or a container without one
        found = os.fstat(descriptor)
        # In containers the name may stand for a console, which is not to be read from.
        if stat.S_ISCHR(found.st_mode) and found.st_rdev == os.makedev(1, 11):
            self.descriptor = descriptor
        else:
            os.close(descriptor)

    def now(self):
        """Give the number of the youngest record; None where the log cannot be read."""
        while self.descriptor is not None:
            try:
                record = os.read(self.descriptor, 16384)
                self.last = int(record.split(b";", 1)[0].split(b",")[1])
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # records were overwritten before they were read
            except (OSError, ValueError, IndexError):
                os.close(self.descriptor)
                self.descriptor = self.last = None
        return self.last
