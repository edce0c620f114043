"""The net holds: the same recording gives the same items, and what came, went or changed is named."""

from __future__ import annotations

import json
from pathlib import Path

from .__main__ import TERMINAL, differences, items_of
from .kept import Replay, committed, is_recording, keep_from, made


def _two_gpus() -> Replay:
    return next(replay for replay in committed() if replay.name == "h200/two-gpus.json")


def test_items_of_a_recording_are_written_without_time_and_path(tmp_path: Path) -> None:
    """Two runs in two directories give the same lines, with the endings in pytest's words."""
    first, again = items_of(_two_gpus()), items_of(_two_gpus())
    assert first == again
    assert {item["ending"] for item in first if item["id"] != TERMINAL} >= {"passed", "skipped"}
    assert len(first) > 100
    (terminal,) = (item for item in first if item["id"] == TERMINAL)
    assert "h200" in terminal["message"]


def test_difference_names_item_and_both_messages() -> None:
    """One that changed, one that went, one that came."""
    before = [_row("a", "passed", ""), _row("b", "failed", "x\ny"), _row("c", "error", "z")]
    after = [_row("a", "failed", "no"), _row("b", "failed", "x\ny"), _row("d", "skipped", "")]
    assert list(differences(before, before)) == []
    assert list(differences(before, after)) == [
        "changed: r: a",
        "  - passed: ",
        "  + failed: no",
        "went: r: c",
        "  - error: z",
        "came: r: d",
        "  + skipped: ",
    ]


def test_inputs_are_kept_and_what_was_judged_of_them_is_not(tmp_path: Path) -> None:
    """A made recording is kept once, with its inventory; a committed one is replayed anyway."""
    text = json.loads(_two_gpus().files["hosts.json"])
    other = {**text, "hosts": {"other": text["hosts"]["h200"]}, "results": []}
    folder = tmp_path / "t" / "one"
    folder.mkdir(parents=True)
    (folder / "made.json").write_text(json.dumps(other))
    (folder / "judged.json").write_text(json.dumps({**other, "results": [{}], "plugin": "longer than the other"}))
    (folder / "committed.json").write_text(json.dumps(text))
    (folder / "gpuinfra.toml").write_text("[hosts.other]\n")
    assert is_recording((folder / "made.json").read_text())
    (tmp_path / "kept").mkdir()
    assert keep_from(tmp_path / "t", tmp_path / "kept") == 1
    (replay,) = made(tmp_path / "kept")
    assert replay.files.keys() == {"hosts.json", "gpuinfra.toml"}


def _row(name: str, ending: str, message: str) -> str:
    return json.dumps({"recording": "r", "id": name, "ending": ending, "message": message})
