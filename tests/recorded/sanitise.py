"""
Replace what identifies a machine in a recording: `python -m tests.recorded.sanitise FROM TO`.

UUIDs and serial numbers become counted ones, consistently over the file; nothing else is changed.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TAGGED = re.compile(
    r"(<(serial|board_part_number|gpu_part_number|pdi|chassis_serial_number|module_id|host_id|chassis_physical_slot_number"
    r"|clusterUuid|system_serial_number)>)([^<]*)(</\2>)"
)


def sanitise(text: str) -> str:
    """Give the text with identities replaced."""
    seen: dict[str, str] = {}

    def counted(match: re.Match[str]) -> str:
        return seen.setdefault(match[0], f"00000000-0000-4000-8000-{len(seen) + 1:012d}")

    text = _UUID.sub(counted, text)
    return _TAGGED.sub(lambda match: f"{match[1]}{'N/A' if match[3] == 'N/A' else '0'}{match[4]}", text)


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(sanitise(Path(sys.argv[1]).read_text()))
