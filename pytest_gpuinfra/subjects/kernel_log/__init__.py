"""The kernel's log and the faults in it."""
