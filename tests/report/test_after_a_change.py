"""After a change: baseline, reboot, waiting, what unknown is worth, and the first inventory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pytest_gpuinfra.cli import main
from pytest_gpuinfra.inventory.inventory import read_inventory
from pytest_gpuinfra.record.recording import RecordedHost, Recording, read_recording, write_recording
from tests.plugin.conftest import run_pytest
from tests.report.made import REFERENCE, TWO_GPUS

SUITE = str(Path(__file__).parents[2] / "suites" / "host" / "test_baseline.py")


def changed(path: Path, **texts: str) -> None:
    """Write the reference recording with some texts replaced: boot id, command line."""
    document = json.loads(REFERENCE.read_text())
    boot = document["hosts"]["node-a"]["capture"]["answers"]["boot"][""]
    for name, text in texts.items():
        boot[name]["t"] = text
    path.write_text(json.dumps(document))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a folder with the host before and after a reboot with another command line."""
    line = json.loads(REFERENCE.read_text())["hosts"]["node-a"]["capture"]["answers"]["boot"][""]["cmdline"]["t"]
    (tmp_path / "before.json").write_text(REFERENCE.read_text())
    changed(tmp_path / "same-boot.json")
    changed(
        tmp_path / "after.json", boot_id="6c0f0b7e-8a3e-4a2b-9c56-3f1f6f0d7a11\n", cmdline=line.strip() + " iommu=pt\n"
    )
    return tmp_path


def judged(folder: Path, recording: str, *arguments: str) -> dict[str, str]:
    """Judge a recording against the baseline; gives outcomes by item, and the exit status."""
    ended = run_pytest(
        folder,
        f"--gpu-host=replay:{recording}",
        "--gpu-baseline=before.json",
        "--gpu-recording=out.json",
        "-q",
        "-p",
        "no:cacheprovider",
        *arguments,
        str(Path(__file__).parents[2] / "suites" / "host" / "test_baseline.py"),
    )
    results = json.loads((folder / "out.json").read_text())["results"]
    return {"": str(ended.returncode)} | {r["id"].rpartition("::")[2]: r["outcome"] for r in results}


def test_baseline_finds_what_was_not_meant(folder: Path) -> None:
    """One item an area: the command line alone differs, and the host has rebooted."""
    ended = judged(folder, "after.json", "--gpu-after-reboot")
    assert ended[""] == "1"
    assert ended["test_host_has_rebooted[node-a]"] == "passed"
    failed = [name for name, outcome in ended.items() if outcome == "failed"]
    assert failed == ["test_nothing_changed_beside_what_was_meant[node-a-command-line]"]
    assert ended["test_nothing_changed_beside_what_was_meant[node-a-iommu]"] == "passed"


def test_allowed_change_passes_and_missing_reboot_fails(folder: Path) -> None:
    """The same with the change allowed, on the boot before."""
    ended = judged(folder, "after.json", "--gpu-allow-change=command line/iommu=pt")
    assert ended[""] == "0"
    assert ended["test_host_has_rebooted[node-a]"] == "skipped"
    ended = judged(folder, "same-boot.json", "--gpu-after-reboot")
    assert (ended[""], ended["test_host_has_rebooted[node-a]"]) == ("1", "failed")


def test_page_and_terminal_tell_what_was_meant_and_what_was_not(folder: Path) -> None:
    """A reviewer sees the change beside the verdict: counts, rows, and whether the host has rebooted."""
    arguments = (
        *("--gpu-host=replay:after.json", "--gpu-baseline=before.json", "--gpu-after-reboot", "--gpu-recording=none"),
        *("--gpu-allow-change=command line/iommu=pt", "--gpu-summary=page.html", "--gpu-summary=page.md", "-q"),
        *("-p", "no:cacheprovider", SUITE),
    )
    ended = run_pytest(folder, *arguments)
    assert ended.returncode == 0, ended.stdout
    assert "since the baseline: node-a: 2 expected; " in ended.stdout
    assert "as meant: command line/iommu: absent -> pt" in ended.stdout
    page = (folder / "page.html").read_text()
    assert '<h3>Since the baseline</h3><p class="good">2 expected; ' in page.replace("\n", "")
    assert "| expected: command line/iommu | absent -&gt; pt |" in (folder / "page.md").read_text()
    in_a_worker = run_pytest(folder, *arguments, "-n1")
    assert "since the baseline: node-a: 2 expected; " in in_a_worker.stdout


def test_after_reboot_without_a_baseline_is_refused(folder: Path) -> None:
    """Nobody knows the boot before."""
    ended = run_pytest(folder, "--gpu-host=replay:after.json", "--gpu-after-reboot")
    assert ended.returncode == 4
    assert "--gpu-after-reboot needs --gpu-baseline" in ended.stderr + ended.stdout


def test_no_traceback_without_a_baseline(folder: Path) -> None:
    """The baseline's items skip, and say how to have them judged."""
    ended = run_pytest(
        folder, "--gpu-host=replay:after.json", "--gpu-recording=none", "-q", "-rs", "-k", "test_baseline"
    )
    assert ended.returncode == 6
    assert "name an earlier recording" in ended.stdout


ITEM = "test_nothing_changed_beside_what_was_meant"


@pytest.mark.parametrize(
    ("level", "outcome", "words"),
    [
        ("active", "error", "nothing of it was looked at before this check"),
        ("passive", "skipped", "this run is passive"),
    ],
)
def test_what_this_run_did_not_look_at_is_never_unchanged(level: str, outcome: str, words: str, tmp_path: Path) -> None:
    """The baseline has GPU pairs and all-reduces; this run has none of them."""
    host = read_recording(TWO_GPUS).hosts["h200"]
    write_recording(tmp_path / "after.json", Recording({"h200": RecordedHost(host.spec, host.capture)}))
    run_pytest(
        tmp_path,
        *("--gpu-host=replay:after.json", f"--gpu-baseline={TWO_GPUS}", f"--gpu-level={level}", "-q"),
        *("--gpu-recording=out.json", "-p", "no:cacheprovider", SUITE),
    )
    results = {r["id"].rpartition("::")[2]: r for r in json.loads((tmp_path / "out.json").read_text())["results"]}
    for area in ("pair", "all-reduce"):
        ended = results[f"{ITEM}[h200-{area}]"]
        assert (ended["outcome"], words in ended["message"]) == (outcome, True), ended
    assert results[f"{ITEM}[h200-pci]"]["outcome"] == "passed"


def test_firmware_and_clocks_of_a_gpu_are_compared(tmp_path: Path) -> None:
    """Another VBIOS, another GSP firmware, a lower highest clock: each is a change of that GPU."""
    text = TWO_GPUS.read_text()
    for old, new in (
        ("<vbios_version>96.00.A5.00.1A<", "<vbios_version>96.00.A5.00.1B<"),
        ("<gsp_firmware_version>580.159.04<", "<gsp_firmware_version>580.95.05<"),
        ("<max_clocks>\\n\\t\\t\\t<graphics_clock>1980 MHz<", "<max_clocks>\\n\\t\\t\\t<graphics_clock>1410 MHz<"),
    ):
        assert old in text
        text = text.replace(old, new, 1)
    (tmp_path / "after.json").write_text(text)
    run_pytest(
        tmp_path,
        *("--gpu-host=replay:after.json", f"--gpu-baseline={TWO_GPUS}", "-q"),
        *("--gpu-recording=out.json", "-p", "no:cacheprovider", SUITE),
    )
    results = {r["id"].rpartition("::")[2]: r for r in json.loads((tmp_path / "out.json").read_text())["results"]}
    ended = results[f"{ITEM}[h200-gpu]"]
    assert ended["outcome"] == "failed"
    for word in ("VBIOS", "96.00.A5.00.1B", "GSP firmware", "580.95.05", "highest clock", "1410 MHz"):
        assert word in ended["message"]


def test_served_host_is_compared_after_its_endpoint_was_asked(tmp_path: Path) -> None:
    """The baseline's items come last; model and rung are facts, tokens a second are numbers."""
    recorded = read_recording(REFERENCE.parents[1] / "sglang" / "recording.json").hosts["nextn"]
    slow = json.loads(json.dumps(dict(recorded.gathered)))
    for measured in slow["endpoint"]["throughput"]:
        measured["wall_s"] *= 2
    for name, gathered in (("before", recorded.gathered), ("after", slow)):
        write_recording(
            tmp_path / f"{name}.json", Recording({"nextn": RecordedHost(recorded.spec, recorded.capture, gathered)})
        )
    ended = run_pytest(
        tmp_path,
        *("--gpu-host=replay:after.json", "--gpu-baseline=before.json", "--gpu-recording=out.json", "-q"),
        *("-p", "no:cacheprovider", "-k", "baseline or endpoint_is_ready"),
    )
    results = json.loads((tmp_path / "out.json").read_text())["results"]
    assert results[-1]["id"].partition("[")[0].endswith(ITEM), ended.stdout
    (endpoint,) = [r for r in results if r["id"].endswith(f"{ITEM}[nextn-endpoint]")]
    assert endpoint["outcome"] == "failed"
    assert "endpoint/1 stream tokens/s" in endpoint["message"]
    assert "(-50 %)" in endpoint["message"]


UNKNOWN = "import pytest_gpuinfra as g\ndef test_a(gpu_kernel_release):\n    assert gpu_kernel_release\n"
UNREAD = "def test_b(gpu_kernel_release):\n    raise g.FactUnavailable('x', 'no permission')\n"


@pytest.mark.parametrize(("worth", "status"), [("error", 6), ("fail", 1), ("allow", 0)])
def test_unknown_is_worth_what_is_said(folder: Path, worth: str, status: int) -> None:
    """6 by default; 1 and 0 where somebody asks for it."""
    (folder / "test_own.py").write_text(UNKNOWN + UNREAD)
    arguments = ("--gpu-host=replay:after.json", "--gpu-recording=none", f"--gpu-unknown={worth}", "test_own.py")
    ended = run_pytest(folder, *arguments)
    assert ended.returncode == status, ended.stdout
    if worth == "allow":
        assert "nothing wrong seen, not all was" in ended.stdout


def test_nothing_observed_is_never_allowed(folder: Path) -> None:
    """A host of which nothing at all was seen is no success, whatever was allowed; nor is a failure."""
    (folder / "test_own.py").write_text(f"import pytest_gpuinfra as g\n{UNREAD}")
    arguments = ("--gpu-host=replay:after.json", "--gpu-recording=none", "--gpu-unknown=allow", "test_own.py")
    assert run_pytest(folder, *arguments).returncode == 6


@pytest.mark.parametrize(("file", "alias"), [(REFERENCE, "node-a"), (TWO_GPUS, "h200")])
def test_first_inventory_is_true_on_its_host(tmp_path: Path, file: Path, alias: str) -> None:
    """Written from a recording, read without a fault, and nothing of it fails there."""
    recording = read_recording(file)
    write_recording(tmp_path / "good.json", Recording(recording.hosts))
    ended = CliRunner().invoke(
        main, ["init", f"--gpu-host=replay:{tmp_path / 'good.json'}", "-o", str(tmp_path / "gpuinfra.toml")]
    )
    assert ended.exit_code == 0, ended.output
    expect = read_inventory(tmp_path / "gpuinfra.toml").hosts[alias].expect
    assert expect.devices
    judged_by = run_pytest(
        tmp_path,
        "--gpu-host=replay:good.json",
        "--gpu-recording=none",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        "not iommu_fault and not delivers_every_byte and not torch",
    )
    assert judged_by.returncode == 0, judged_by.stdout[-3000:]
    again = CliRunner().invoke(main, ["init", "--gpu-host=local", "-o", str(tmp_path / "gpuinfra.toml")])
    assert again.exit_code == 2
    assert "exists" in again.output


def test_first_inventory_finds_what_changes(folder: Path) -> None:
    """The host after the change fails on what was written down before it."""
    CliRunner().invoke(
        main, ["init", f"--gpu-host=replay:{folder / 'before.json'}", "-o", str(folder / "gpuinfra.toml")]
    )
    ended = run_pytest(folder, "--gpu-host=replay:after.json", "--gpu-recording=none", "-q", "-k", "command_line")
    assert ended.returncode == 1
    assert "iommu=pt" in ended.stdout
