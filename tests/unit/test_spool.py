"""The folder of captures: made when it is needed, gone with the run, whatever still ends beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpuinfra.capture.spool import Spool


@pytest.mark.parametrize("before", [0, 1])
def test_what_ends_after_the_run_leaves_nothing(before: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Captures of an interrupted run end in threads, before, while and after its folder is removed."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    spool = Spool()
    for number in range(before):
        spool.write(f"{number}.json", number)
        assert spool.read(f"{number}.json") == number
        assert list(tmp_path.iterdir()) == [spool.directory]
    spool.close()
    spool.write("late.json", 1)
    assert list(tmp_path.iterdir()) == []


def test_folder_of_another_process_stays(tmp_path: Path) -> None:
    """A worker of xdist reads and writes there; the controller removes it."""
    spool = Spool(tmp_path)
    spool.write("a.json", {"a": 1})
    spool.close()
    assert Spool(tmp_path).read("a.json") == {"a": 1}
