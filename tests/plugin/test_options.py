"""Options and inventory: what is wrong is refused before any host is touched, with what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugin.conftest import REFERENCE, run_pytest

USAGE_ERROR = 4


def refused(directory: Path, *arguments: str) -> str:
    """Run pytest with wrong options; gives what it said."""
    ended = run_pytest(directory, *arguments)
    said = ended.stdout + ended.stderr
    assert ended.returncode == USAGE_ERROR, said
    assert "Traceback" not in said
    return said


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--gpu-host=", "--gpu-host is empty"),
        ("--gpu-host=all", "matches no alias; known: none (there is no gpuinfra.toml)"),
        ("--gpu-host=node-*", "matches no alias"),
        ("--gpu-host=-oProxyCommand=x", "does not begin with a dash"),
        ("--gpu-host=root@a b", "holds no space"),
        ("--gpu-host=replay:nothing.json", "nothing.json: cannot be read"),
    ],
)
def test_wrong_host_is_refused(tmp_path: Path, option: str, said: str) -> None:
    """Each wrong form says what is wrong with it."""
    assert said in refused(tmp_path, option)


def test_slip_of_an_alias_is_not_taken_for_a_destination(tmp_path: Path) -> None:
    """A name that is nearly an alias is a slip; the message says how to mean it."""
    (tmp_path / "gpuinfra.toml").write_text('[hosts.node-a]\naddress = "root@192.0.2.10"\n')
    said = refused(tmp_path, "--gpu-host=node-b")
    assert "did you mean 'node-a'?" in said
    assert "ssh://node-b" in said


def test_damaged_recording_is_refused(tmp_path: Path) -> None:
    """A recording that was cut off, and a JSON file that is none, are named as such."""
    whole = (REFERENCE / "recording.json").read_text()
    (tmp_path / "cut.json").write_text(whole[: len(whole) // 2])
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "newer.json").write_text(whole.replace('"version": 1', '"version": 99'))
    assert "cut.json: the recording is damaged" in refused(tmp_path, "--gpu-host=replay:cut.json")
    assert "other.json: not a recording of pytest-gpuinfra" in refused(tmp_path, "--gpu-host=replay:other.json")
    assert "version 99; this pytest-gpuinfra reads version 1" in refused(tmp_path, "--gpu-host=replay:newer.json")


def test_wrong_inventory_names_file_key_and_remedy(tmp_path: Path) -> None:
    """An unknown key is refused with the nearest known one."""
    (tmp_path / "gpuinfra.toml").write_text("[hosts.node-a.expect]\nkernel_comand_line = {}\n")
    said = refused(tmp_path, "--gpu-host=node-a")
    assert "gpuinfra.toml" in said
    assert "hosts.node-a.expect.kernel_comand_line: unknown key; did you mean 'kernel_command_line'?" in said
    assert "gpuinfra schema" in said


def test_missing_inventory_is_refused(tmp_path: Path) -> None:
    """A named file that is not there is an error, not an empty inventory."""
    assert "no.toml: cannot be read" in refused(tmp_path, "--gpu-host=local", "--gpu-inventory=no.toml")


@pytest.mark.parametrize("value", ["0", "-1", "soon", "nan"])
def test_wrong_seconds_are_refused(tmp_path: Path, value: str) -> None:
    """A deadline is a number of seconds above 0."""
    said = refused(tmp_path, "--gpu-host=local", f"--gpu-deadline={value}")
    assert "takes a number of seconds above 0" in said


def test_unwritable_recording_is_said_and_no_success(tmp_path: Path) -> None:
    """What cannot be written down is said at the end; the run does not end with 0."""
    (tmp_path / "file").write_text("")
    ended = run_pytest(tmp_path, "--gpu-host=local", "--gpu-recording=file/x.json", "-k", "memory_kill")
    assert ended.returncode not in (0, 1)
    assert "no recording" in ended.stdout


def test_hosts_from_a_hook_join_the_inventory(tmp_path: Path) -> None:
    """A conftest can give hosts; one that is in the file already is refused."""
    (tmp_path / "conftest.py").write_text(
        "def pytest_gpuinfra_inventory(config):\n    return {'hosts': {'here': {'address': 'local'}}}\n"
    )
    (tmp_path / "test_own.py").write_text("def test_it(gpu_kernel_release):\n    assert gpu_kernel_release\n")
    ended = run_pytest(tmp_path, "--gpu-host=all", "--gpu-recording=none", "test_own.py")
    assert ended.returncode == 0, ended.stdout
    assert "here reached by local" in ended.stdout
    (tmp_path / "gpuinfra.toml").write_text('[hosts.here]\naddress = "local"\n')
    assert "'here' is in the inventory already" in refused(tmp_path, "--gpu-host=all", "test_own.py")


def test_requests_from_a_hook_come_in_the_same_round_trip(tmp_path: Path) -> None:
    """A conftest can ask for more; its tests read the answer by name."""
    (tmp_path / "conftest.py").write_text(
        "from pytest_gpuinfra.capture.capture import file, node\n"
        "def pytest_gpuinfra_requests(config):\n    return [node('mine', file('os', '/etc/os-release'))]\n"
    )
    (tmp_path / "test_own.py").write_text(
        "def test_it(gpu_facts, gpu_evidence):\n"
        "    gpu_evidence.attach('os', gpu_facts.answer('mine')['os'].require())\n"
        "    assert 'ID=' in gpu_facts.answer('mine')['os'].require()\n"
    )
    ended = run_pytest(tmp_path, "--gpu-host=local", "--gpu-recording=none", "test_own.py")
    assert ended.returncode == 0, ended.stdout
    assert "1 round trip:" in ended.stdout
