"""Many real sshd hosts in one run: each ends exactly as it should, whatever its neighbours do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_gpuinfra.inventory.inventory import Inventory
from pytest_gpuinfra.session.select import hosts_of_share, select_hosts
from tests.plugin.conftest import run_pytest

from .fleet import ONE_TEST, Fleet, mixed_fleet

pytestmark = pytest.mark.lab

COUNTS = {"normal": 12, "slow-shell": 2, "port-closed": 2, "hanging-shell": 2, "flooding": 2, "no-python": 2}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Give 22 hosts, 8 of which cannot be asked."""
    with mixed_fleet(COUNTS, tmp_path_factory.mktemp("fleet")) as started:
        yield started


def judge(directory: Path, fleet: Fleet, *arguments: str) -> tuple[int, str, dict[str, object]]:
    """Judge hosts of the fleet by one check each; gives exit status, output and recording."""
    (directory / "test_one.py").write_text(ONE_TEST)
    ended = run_pytest(
        directory,
        *(f"--gpu-ssh-config={fleet.ssh_config}", "--gpu-recording=judged.json", "-p", "no:cacheprovider"),
        *("test_one.py", *arguments),
    )
    output = ended.stdout + ended.stderr
    assert "Traceback" not in output
    return ended.returncode, output, json.loads((directory / "judged.json").read_text())


def test_each_host_ends_as_it_should(tmp_path: Path, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dead, slow, flooding ones beside good ones, four at a time: right endings, named while it takes, nothing left."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    first = fleet.hosts["normal"][0]
    before = first.processes()
    status, output, recording = judge(
        tmp_path, fleet, f"--gpu-host={fleet.hostlist}", "--gpu-parallel=4", "--gpu-connect-timeout=15"
    )
    assert fleet.faults(recording) == []
    assert status == 6
    assert re.search(r"gpuinfra: \d+ of 22 hosts done; .*slow: hanging-shell-001 \(\d+ s\)", output)
    assert "14 of 22 hosts reached" in output
    assert first.processes() == before
    assert list((tmp_path / "tmp").glob("gpuinfra*")) == []


def test_workers_of_xdist_take_over_the_same_captures(tmp_path: Path, fleet: Fleet) -> None:
    """The same endings with -n; no host is asked twice."""
    aliases = "port-closed-[001-002],normal-[001-008],no-python-001"
    status, _, recording = judge(tmp_path, fleet, f"--gpu-host={aliases}", "-n", "2")
    outcomes = {result["host"]: result["outcome"] for result in recording["results"]}  # type: ignore[attr-defined]
    assert status == 6
    assert {alias for alias, outcome in outcomes.items() if outcome == "error"} == {
        *("port-closed-001", "port-closed-002", "no-python-001")
    }
    assert len(outcomes) == 11
    hosts = recording["hosts"]
    assert {alias: host["capture"]["round_trips"] for alias, host in hosts.items() if "normal" in alias} == {  # type: ignore[attr-defined]
        f"normal-{number:03d}": 1 for number in range(1, 9)
    }


def test_deadline_for_all_ends_what_is_not_done(tmp_path: Path, fleet: Fleet) -> None:
    """Those that have answered are judged; one under way and one in the queue are ERROR with the reason of each."""
    status, output, recording = judge(
        tmp_path,
        fleet,
        *("--gpu-host=normal-[001-002],hanging-shell-[001-002]", "--gpu-parallel=1", "--gpu-level=passive"),
        *("--gpu-deadline-all=12", "--gpu-connect-timeout=100"),
    )
    messages = {result["host"]: (result["outcome"], result["message"]) for result in recording["results"]}  # type: ignore[attr-defined]
    assert status == 6
    assert [messages[alias][0] for alias in ("normal-001", "normal-002")] == ["passed", "passed"]
    for alias in ("hanging-shell-001", "hanging-shell-002"):
        assert messages[alias][0] == "error"
        assert re.search(r"had not come|was not done when the 12 s for all hosts were over", messages[alias][1])
        assert "--gpu-deadline-all" in messages[alias][1]
    assert "hanging-shell-001 NOT REACHED" in output


def test_shares_make_up_the_whole(tmp_path: Path, fleet: Fleet) -> None:
    """Each host is in exactly one share; each share says what it is."""
    seen: list[str] = []
    for share in (1, 2):
        status, output, recording = judge(tmp_path, fleet, "--gpu-host=normal-[001-012]", f"--gpu-shard={share}/2")
        hosts = list(recording["hosts"])  # type: ignore[call-overload]
        assert status == 0
        assert f"gpuinfra: share {share}/2, {len(hosts)} of 12 hosts" in output
        seen += hosts
    assert sorted(seen) == [host.alias for host in fleet.hosts["normal"]]


def test_share_of_nobody_is_no_success(tmp_path: Path) -> None:
    """It says so, touches no host, and ends as a run that collected nothing."""
    (tmp_path / "test_one.py").write_text(ONE_TEST)
    (host,) = select_hosts(["nosuchhost.invalid"], Inventory(), "")
    empty = next(share for share in (1, 2) if not hosts_of_share([host], share, 2))
    ended = run_pytest(tmp_path, "--gpu-host=nosuchhost.invalid", f"--gpu-shard={empty}/2", "test_one.py")
    assert ended.returncode == 5
    assert f"share {empty}/2, 0 of 1 hosts: nothing is judged here" in ended.stdout + ended.stderr
    assert not (tmp_path / "reports").exists()
