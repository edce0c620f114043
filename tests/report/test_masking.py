"""Secrets: twenty kinds, planted everywhere, found nowhere; and nothing else is masked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pytest_gpuinfra.cli import main
from pytest_gpuinfra.masking import Masker, mask_data, mask_text
from pytest_gpuinfra.on_target.probe.probe_names import MASK
from tests.plugin.conftest import run_pytest
from tests.report.made import REFERENCE, TWO_GPUS
from tests.report.secrets import SECRETS, TEXTS, found_in


def test_every_kind_is_planted() -> None:
    """Twenty kinds; each stands in one of the texts."""
    assert len(SECRETS) == 20
    assert sorted(found_in("\n".join(TEXTS.values()))) == sorted(SECRETS)


@pytest.mark.parametrize("where", TEXTS)
def test_text_holds_no_secret_afterwards(where: str) -> None:
    """Each text loses its secrets, keeps the rest, and stays as it is when masked again."""
    masked = mask_text(TEXTS[where])
    assert found_in(masked) == []
    assert MASK in masked
    assert mask_text(masked) == masked


def test_json_stays_json_and_answers_stay_answers() -> None:
    """A server's body can be parsed after masking; pieces of text called tokens are no secrets."""
    body = json.loads(mask_text(TEXTS["server body"]))
    assert body["api_key"] == MASK
    assert (body["usage"], body["bos_token"], body["token"]) == ({"total_tokens": 3}, "<s>", "Paris")
    stream = f"data: {TEXTS['server body']}\n\ndata: [DONE]\n"
    lines = mask_text(stream).splitlines()
    assert json.loads(lines[0].removeprefix("data: "))["api_key"] == MASK
    assert lines[2] == "data: [DONE]"


@pytest.mark.parametrize("file", [REFERENCE, TWO_GPUS])
def test_recording_of_a_host_without_secrets_is_untouched(file: Path) -> None:
    """Masking changes no fact."""
    document = json.loads(file.read_text())
    assert mask_data(document) == document


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens=16 total_tokens: 3",
        "NCCL_P2P_DISABLE=1 api_key_env=MY_KEY",
        "pad_token_id: 151643",
        "keyboard=us auth=no",
        "PWD=/srv/model",
        "http://localhost:30000/v1/models?limit=10",
        "BOOT_IMAGE=/boot/vmlinuz-6.14.11-4-pve root=/dev/mapper/pve-root ro quiet amd_iommu=on",
        "ssh: Permission denied (publickey,password).",
    ],
)
def test_what_is_no_secret_is_left_alone(text: str) -> None:
    """Numbers, switches, paths, and names of variables."""
    assert mask_text(text) == text


def test_known_value_is_masked_whatever_it_looks_like() -> None:
    """The endpoint's own key has no form; it is known by value."""
    assert Masker(["plainword"]).text("the server said: plainword is wrong") == f"the server said: {MASK} is wrong"


def test_argument_lists_are_masked_word_by_word() -> None:
    """An option's value stands in the next word."""
    assert mask_data(["serve", "--api-key", "abc", "--tp", "4"]) == ["serve", "--api-key", MASK, "--tp", "4"]


OWN_TESTS = """
import json
import pathlib
from pytest_gpuinfra import FactUnavailable

TEXTS = json.loads(pathlib.Path(__file__).with_name("texts.json").read_text())

def test_prints(gpu_kernel_release):
    print(TEXTS["environment"])
    assert gpu_kernel_release == TEXTS["unit"]

def test_attaches(gpu_evidence):
    for name, text in TEXTS.items():
        gpu_evidence.attach(name, text)

def test_unknown(gpu_kernel_release):
    raise FactUnavailable("journalctl", "it said " + TEXTS["journal"] + TEXTS["addresses"])

def test_says_everything(gpu_kernel_release):
    import pytest
    assert not "\\n".join(TEXTS.values()), "; ".join(TEXTS.values())

def test_skips(gpu_kernel_release):
    import pytest
    pytest.skip(TEXTS["command line"] + TEXTS["file"] + TEXTS["server body"])

def test_known(gpu_kernel_release):
    assert gpu_kernel_release == "no-form-at-all-1"
"""


def planted() -> dict[str, Any]:
    """Give the reference recording with secrets in command line, log, way to the host, endpoint, and results."""
    document: dict[str, Any] = json.loads(REFERENCE.read_text())
    host = document["hosts"]["node-a"]
    host["spec"] = {"api_key_env": "OUR_KEY"}
    host["capture"]["answers"]["boot"][""]["cmdline"]["t"] += " " + TEXTS["command line"].partition(" ")[2]
    host["capture"]["answers"]["kernel_log"][""]["kmsg"]["t"] += "".join(
        f"6,{number},{number},-;{line}\n" for number, line in enumerate("\n".join(TEXTS.values()).splitlines(), 100)
    )
    host["capture"]["reached_by"] = f"ssh -o SetEnv=HF_TOKEN={SECRETS['Hugging Face']} node-a"
    host["gathered"] = {
        "endpoint": {
            "address": f"http://user:{SECRETS['in an address']}@localhost:1",
            "readiness": {
                "base_url": "http://localhost:1",
                "rungs": [],
                "stop": "deadline",
                "waited_s": 1.0,
                "wait_s": 1.0,
                "expected_model": None,
                "models": [],
                "unit": None,
                "history": [],
            },
            "exchanges": [
                {
                    "method": "GET",
                    "path": f"/v1?sig={SECRETS['in a query']}",
                    "request": "",
                    "status": 200,
                    "headers": {},
                    "pieces": list(TEXTS.values()),
                }
            ],
        }
    }
    document["results"] = [
        {
            "id": f"host/test_x.py::test_{number}[node-a]",
            "host": "node-a",
            "outcome": "failed" if number % 2 else "error",
            "message": f"node-a: {name}\n  observed: {text}",
            "took_s": 0.0,
        }
        for number, (name, text) in enumerate(TEXTS.items())
    ]
    return document


@pytest.mark.parametrize(
    "command",
    [
        *(["compare", "before.json", "after.json", f"--format={form}"] for form in ("terminal", "markdown", "json")),
        ["compare", "before.json", "after.json", "-o", "out.html"],
        ["report", "after.json"],
        ["report", "after.json", "-o", "out.html", "-o", "out.md"],
        ["init", "--gpu-host=replay:after.json"],
    ],
    ids=" ".join,
)
def test_commands_show_no_secret_of_a_recording_that_was_never_masked(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recording may come from an older version, or from an editor."""
    (tmp_path / "before.json").write_text(REFERENCE.read_text())
    (tmp_path / "after.json").write_text(json.dumps(planted()))
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(main, command)
    assert ended.exit_code in (0, 1), ended.output
    shown = ended.output + "".join(file.read_text() for file in tmp_path.glob("out.*"))
    assert len(shown) > 300
    assert found_in(shown.replace('\\"', '"').replace("&amp;", "&").replace("&quot;", '"')) == []
    assert found_in(shown) == []


def test_progress_shows_no_secret(pytester: pytest.Pytester) -> None:
    """Lines about long work tell what a target said."""
    pytester.makeconftest(
        f"""
        from pytest_gpuinfra.report.work import WorkProgress

        def pytest_sessionstart(session):
            WorkProgress(session.config)({"; ".join(TEXTS.values())!r})
        """
    )
    ended = pytester.runpytest_subprocess()
    assert "gpuinfra: " in ended.stdout.str()
    assert found_in(ended.stdout.str()) == []


def test_no_secret_is_in_anything_that_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recording, Allure, JUnit, Markdown, HTML and the terminal of a run whose target is full of secrets."""
    (tmp_path / "host.json").write_text(json.dumps(planted()))
    (tmp_path / "texts.json").write_text(json.dumps(TEXTS))
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "texts.json").write_text(json.dumps(TEXTS))
    (folder / "test_own.py").write_text(OWN_TESTS)
    monkeypatch.setenv("OUR_KEY", "no-form-at-all-1")
    ended = run_pytest(
        folder,
        "--gpu-host=replay:../host.json",
        "--gpu-recording=out/recording.json",
        "--gpu-summary=out/summary.md",
        "--gpu-summary=out/summary.html",
        "--junitxml=out/junit.xml",
        "--alluredir=out/allure",
        "-p",
        "no:cacheprovider",
        "-rA",
        "test_own.py",
    )
    assert ended.returncode == 1, ended.stdout
    assert "4 failed" not in ended.stdout.splitlines()[-1]
    written = [file for file in (folder / "out").rglob("*") if file.is_file()]
    assert {file.suffix for file in written} >= {".json", ".md", ".html", ".xml", ".txt", ".properties"}
    for file in written:
        text = file.read_text()
        unescaped = text.replace('\\"', '"').replace("&amp;", "&").replace("&quot;", '"')
        assert (str(file.relative_to(folder)), found_in(text), found_in(unescaped)) == (
            str(file.relative_to(folder)),
            [],
            [],
        )
    shown = ended.stdout + ended.stderr
    assert found_in(shown) == []
    recording = (folder / "out" / "recording.json").read_text()
    assert "no-form-at-all-1" not in recording
    assert MASK in recording
