"""Masking, overwritten environments, witnesses and layers, transport, engine and ranks: by recorded shapes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.errors import FactUnavailable
from pytest_gpuinfra.subjects.service.drift import argument_is, diff_texts, find_argument, newer_than
from pytest_gpuinfra.subjects.service.engine import find_engine, find_ranks
from pytest_gpuinfra.subjects.service.environment import EnvironmentWitnesses, Layer
from pytest_gpuinfra.subjects.service.process import ProcessEnvironment, ServiceProcess, parse_process
from pytest_gpuinfra.subjects.service.python import PythonStart
from pytest_gpuinfra.subjects.service.transport import see_transport

sys.path.insert(0, str(Path(__file__).parents[2] / "pytest_gpuinfra/on_target/probe"))
try:
    import probe_environ
    import probe_mask
finally:
    sys.path.pop(0)

NAMES = ("NCCL_*", "CUDA_VISIBLE_DEVICES")


@pytest.mark.parametrize(
    "secret",
    [
        "Environment=HF_TOKEN=hunter22",
        'Environment="OPENAI_API_KEY=hunter22" NCCL_PROTO=LL',
        "ExecStart=/x --api-key hunter22 --port 1",
        "ExecStart=/x --api-key=hunter22",
        "password: hunter22",
        "url=https://user:hunter22@example.org/",
        "said hf_hunter22hunter22 there",
        "Authorization: Bearer hunter22",
        '{"secret": "hunter22"}',
        "AWS_SECRET_ACCESS_KEY='hunter22'",
    ],
)
def test_secret_is_masked_in_any_text(secret: str) -> None:
    """After a telling name, or of a telling form."""
    assert "hunter22" not in probe_mask.mask_text(secret)
    assert probe_mask.MASK in probe_mask.mask_text(secret)


@pytest.mark.parametrize(
    "text",
    [
        "Environment=NCCL_P2P_DISABLE=1",
        "ExecStart=/x --tokenizer-path /models/m --max-total-tokens 8192 --tool-call-parser qwen",
        "KeyringMode=private",
        "TOKENIZERS_PARALLELISM=false",
        "https://localhost:30000/v1",
        "After=network.target",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    """A mask in the wrong place hides drift."""
    assert probe_mask.mask_text(text) == text


def test_argv_is_masked_word_by_word() -> None:
    """The value stands in the next word, or behind a sign."""
    masked = probe_mask.mask_argv(["x", "--api-key", "hunter22", "--port", "1", "--hf-token=hunter22"])
    assert masked == ["x", "--api-key", "[masked]", "--port", "1", "--hf-token=[masked]"]


def test_environment_keeps_names_of_the_list_alone() -> None:
    """Every other variable stays on the target."""
    seen = probe_environ.filter_environ(b"HOME=/root\0NCCL_PROTO=LL\0HF_TOKEN=x\0NCCL_KEY=x\0", NAMES)
    assert seen == {
        "size": 47,
        "leading_nul": 0,
        "odd": 0,
        "empty": 0,
        "values": {"NCCL_PROTO": "LL", "NCCL_KEY": "[masked]"},
    }


def test_rest_of_a_torn_variable_is_no_variable() -> None:
    """After a title's padding the first piece may be the tail of another name."""
    seen = probe_environ.filter_environ(b"\0\0\0NCCL_PROTO=LL\0NCCL_ALGO=Ring\0", NAMES)
    assert (seen["leading_nul"], seen["values"]) == (3, {"NCCL_ALGO": "Ring"})


def test_environment_file_keeps_lines_of_the_list_alone() -> None:
    """Continuation lines are joined first, so that no value is cut off and shown alone."""
    text = "# c\nNCCL_PROTO=LL\nHF_TOKEN=abc\\\ndef\nexport NCCL_ALGO=Ring\nNCCL_API_KEY=x\n"
    assert probe_environ.filter_lines(text, NAMES).splitlines() == [
        "NCCL_PROTO=LL",
        "export NCCL_ALGO=Ring",
        "NCCL_API_KEY=[masked]",
    ]


def node(argv: list[str], environ: bytes, *, trailing: int = 1, exe: str = "/usr/bin/python3.11") -> dict[str, Reading]:
    """Give the readings of a process."""
    seen = json.dumps(probe_environ.filter_environ(environ, NAMES))
    return {
        "stat": Reading("/proc/7/stat", "7 (python3) S 1 " + " ".join(["0"] * 17) + " 4200 0 0\n"),
        "argv": Reading("/proc/7/cmdline", json.dumps({"argv": argv, "trailing_nul": trailing})),
        "environ": Reading("/proc/7/environ", seen),
        "exe": Reading("/proc/7/exe", exe),
        "opened": Reading("/proc/7/fd", "[]"),
    }


def test_renamed_rank_is_told_from_a_main_process() -> None:
    """As /proc shows SGLang's: a title, blanks, and an environment whose first part is gone."""
    main = parse_process(7, node(["/usr/bin/python3", "-m", "sglang.launch_server"], b"HOME=/\0NCCL_PROTO=LL\0"))
    rank = parse_process(8, node(["sglang::scheduler_TP0"], b"\0" * 40 + b"=x\0NCCL_CUMEM_ENABLE=0\0", trailing=90))
    blanks = parse_process(9, node(["sglang::scheduler_TP1     "], b"\0\0A=1\0NCCL_CUMEM_ENABLE=0\0"))
    assert main
    assert rank
    assert blanks
    assert main.environment
    assert rank.environment
    assert (main.renamed, main.environment.whole) == (False, True)
    assert (rank.renamed, rank.environment.whole, rank.title) == (True, False, "sglang::scheduler_TP0")
    assert (blanks.renamed, blanks.title) == (True, "sglang::scheduler_TP1")
    assert rank.environment.values == {"NCCL_CUMEM_ENABLE": "0"}


def test_process_that_ended_meanwhile_is_left_out() -> None:
    """It is neither wrong nor unknown."""
    gone = {**node([], b""), "stat": Reading("/proc/7/stat", None, "ESRCH: No such process")}
    assert parse_process(7, gone) is None


def process(
    pid: int,
    parent: int = 1,
    values: dict[str, str] | None = None,
    *,
    whole: bool = True,
    title: str = "python3 -m x",
    exe: str = "/usr/bin/python3",
    opened: tuple[str, ...] | None = (),
    readable: bool = True,
) -> ServiceProcess:
    """Give a process."""
    environment = ProcessEnvironment(values or {}, whole, 100) if readable else None
    error = "" if readable else "EACCES: Permission denied"
    renamed = "::" in title
    argv = (title,) if renamed else tuple(title.split())
    return ServiceProcess(pid, parent, "x", argv, renamed, environment, error, exe, "", False, "S", 0, opened)


SITE = {"sitecustomize": "/etc/python3/sitecustomize.py"}


def start(pid: int, values: dict[str, str]) -> PythonStart:
    """Give a start of the service's Python."""
    return PythonStart(pid, "3.11.2", "/usr/bin/python3", "/usr", SITE, {"sitecustomize": 1.0}, values)


def witnesses(*processes: ServiceProcess, made: PythonStart | None, newer: bool = False) -> EnvironmentWitnesses:
    """Give all that tells of a service's environment."""
    layers = [
        Layer("environment file", "/etc/default/x", {"NCCL_B": "file"}),
        Layer("drop-in", "/etc/x.service.d/o.conf", {"NCCL_C": "drop"}),
        Layer("unit", "/etc/x.service", {"NCCL_A": "unit", "NCCL_B": "unit", "NCCL_C": "unit"}),
    ]
    error = "" if made else "it did not start"
    return EnvironmentWitnesses(processes, processes[0], made, error, layers, [["/opt/run.sh"]], start_is_newer=newer)


BASE = {"NCCL_A": "unit", "NCCL_B": "file", "NCCL_C": "drop", "NCCL_W": "wrapped"}
FULL = {**BASE, "NCCL_S": "site"}


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("NCCL_A", "unit /etc/x.service"),
        ("NCCL_B", "environment file /etc/default/x"),
        ("NCCL_C", "drop-in /etc/x.service.d/o.conf"),
        ("NCCL_S", "sitecustomize /etc/python3/sitecustomize.py"),
        ("NCCL_W", "none of its files as they are now: what starts it (/opt/run.sh ...), or an older version of them"),
    ],
)
def test_layer_that_set_a_variable_is_named(name: str, layer: str) -> None:
    """The strongest that says what is in effect."""
    seen = witnesses(process(10, values=BASE), made=start(10, FULL)).of(name)
    assert seen.layer == layer
    assert seen.values[0].value == FULL[name]
    assert seen.values[0].known


def test_overwritten_environment_is_never_not_set() -> None:
    """The main process speaks for what is missing from a rank's, and is named."""
    main = process(10, values=BASE)
    rank = process(11, 10, {"NCCL_CUMEM_ENABLE": "0"}, whole=False, title="sglang::scheduler_TP0")
    seen = witnesses(main, rank, made=start(10, FULL))
    told = seen.of("NCCL_S").values[1]
    assert (told.value, told.known) == ("site", True)
    assert "inherited from 10" in told.witness
    assert seen.of("NCCL_A").wrong("unit") == ()
    assert [value.value for value in seen.of("NCCL_CUMEM_ENABLE").values] == [None, "0"]


def test_overwritten_main_process_is_unknown() -> None:
    """Nobody above it tells, so nobody knows."""
    main = process(10, values={}, whole=False, title="x::main")
    seen = witnesses(main, made=start(10, {})).of("NCCL_A")
    assert seen.unknown == seen.values
    assert "no process above it tells" in seen.values[0].witness


def test_environment_that_cannot_be_read_is_unknown() -> None:
    """Not root: the reason is the kernel's."""
    seen = witnesses(process(10, readable=False), made=None).of("NCCL_A")
    assert "EACCES" in seen.unknown[0].witness


def test_missing_start_leaves_a_missing_variable_unknown() -> None:
    """A sitecustomize may set it; what is there is known all the same."""
    seen = witnesses(process(10, values=BASE), made=None)
    assert seen.of("NCCL_A").unknown == ()
    assert "it did not start" in seen.of("NCCL_S").unknown[0].witness


def test_sitecustomize_changed_since_tells_nothing_of_what_runs() -> None:
    """What it sets now was perhaps not set then; what it does not touch is known."""
    seen = witnesses(process(10, values=BASE), made=start(10, FULL), newer=True)
    assert "was changed after the process started" in seen.of("NCCL_S").unknown[0].witness
    assert seen.of("NCCL_A").unknown == ()


def test_sitecustomize_that_overrides_counts() -> None:
    """The block shows one value, a program finds another."""
    seen = witnesses(process(10, values=BASE), made=start(10, {**FULL, "NCCL_A": "other"})).of("NCCL_A")
    assert seen.wrong("unit")[0].value == "other"


def test_shell_wrapper_is_not_judged() -> None:
    """It exports for its child, and its own block does not show it."""
    shell = process(10, values={}, title="/bin/bash /opt/run.sh", exe="/usr/bin/bash")
    seen = witnesses(shell, process(11, 10, BASE), made=start(11, BASE)).of("NCCL_W")
    assert [value.value for value in seen.values] == ["wrapped"]


def test_child_that_is_no_python_shows_its_own() -> None:
    """A compiled helper has no sitecustomize."""
    seen = witnesses(process(10, values=BASE), process(11, 10, BASE, exe="/bin/x"), made=start(10, FULL)).of("NCCL_S")
    assert [value.value for value in seen.values] == ["site", None]


def test_known_variables_of_a_rank_are_listed() -> None:
    """For the judgement of the service's path between its GPUs."""
    rank = process(11, 10, {}, whole=False, title="x::TP0")
    known = witnesses(process(10, values=BASE), rank, made=start(10, FULL)).known_in(rank, "NCCL_")
    assert known == FULL


def rank(number: int, *names: str, readable: bool = True) -> ServiceProcess:
    """Give a rank with some of NCCL's files open."""
    opened = tuple(f"/dev/shm/nccl-{name}" for name in names) if readable else None
    return process(20 + number, title=f"sglang::scheduler_TP{number}", opened=opened)


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([rank(0, "a", "b", "c"), rank(1, "a", "b", "d", "d")], "SHM"),
        ([rank(0, "4efeQa", "f6A3wc"), rank(1, "82JdCN", "gF9pxV")], "not SHM"),
        ([rank(0, "a"), rank(1, "a"), rank(2, "x")], "mixed"),
    ],
)
def test_transport_is_seen_by_shared_files(ranks: list[ServiceProcess], words: str) -> None:
    """As on two H200s: shared under SHM, each its own otherwise."""
    assert see_transport(ranks, "x").words == words


@pytest.mark.parametrize("ranks", [[], [rank(0, "a")], [rank(0), rank(1)], [rank(0, "a"), rank(1, readable=False)]])
def test_transport_that_cannot_be_seen_is_unknown(ranks: list[ServiceProcess]) -> None:
    """One rank, no file at all, or no right to look."""
    with pytest.raises(FactUnavailable):
        see_transport(ranks, "x")


@pytest.mark.parametrize(
    ("title", "engine"),
    [
        ("/opt/venv/bin/python -m sglang.launch_server --tp 4", "SGLang"),
        ("sglang::scheduler_TP0", "SGLang"),
        ("/usr/bin/python3 /usr/local/bin/vllm serve m", "vLLM"),
        ("VLLM::Worker_TP1", "vLLM"),
        ("text-generation-launcher --model-id m", "TGI"),
        ("/app/llama-server -m x.gguf", "llama.cpp"),
        ("python3 /usr/local/bin/trtllm-serve m", "TensorRT-LLM"),
        ("/usr/bin/python3 /opt/infer/infer.py", None),
    ],
)
def test_engine_is_known_by_its_processes(title: str, engine: str | None) -> None:
    """A name that nobody knows is no engine."""
    assert find_engine([process(10, title=title)]) == engine


def test_ranks_come_in_the_order_of_their_numbers() -> None:
    """Ten comes after two."""
    titles = ["sglang::scheduler_TP10", "sglang::detokenizer", "sglang::scheduler_TP2", "VLLM::Worker_TP0"]
    found = find_ranks([process(30 + place, title=title) for place, title in enumerate(titles)])
    assert [one.title for one in found] == ["VLLM::Worker_TP0", "sglang::scheduler_TP2", "sglang::scheduler_TP10"]


@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        (["x", "--tp", "4"], "--tp", "4"),
        (["x", "--tp=4"], "--tp", "4"),
        (["x", "--tp", "2", "--tp", "4"], "--tp", "4"),
        (["x", "--flag", "--tp", "4"], "--flag", True),
        (["x", "--flag"], "--flag", True),
        (["x", "--shift", "-1"], "--shift", "-1"),
        (["x"], "--tp", False),
    ],
)
def test_argument_in_effect_is_the_last(argv: list[str], name: str, value: str | bool) -> None:
    """With a sign, a blank, or no value."""
    assert find_argument(argv, name) == value


@pytest.mark.parametrize(
    ("observed", "expected", "right"),
    [
        ("0.75", "0.750", True),
        ("4", "4", True),
        ("NEXTN", "NEXTN", True),
        ("4", "2", False),
        (False, "4", False),
        (True, "4", False),
        ("x", True, True),
        (True, True, True),
        (False, False, True),
        ("x", False, False),
    ],
)
def test_arguments_compare_as_meant(observed: str | bool, expected: str | bool, right: bool) -> None:
    """Numbers as numbers; true for given, false for not given."""
    assert argument_is(observed, expected) is right


def test_diff_is_unified_and_names_both_sides() -> None:
    """As a person would get it by diff -u."""
    assert diff_texts("a\nb\n", "a\nc", "expected: x", "deployed: y").splitlines() == [
        "--- expected: x",
        "+++ deployed: y",
        "@@ -1,2 +1,2 @@",
        " a",
        "-b",
        "+c",
    ]
    assert diff_texts("a\n", "a", "x", "y") == ""


def test_newer_files_are_named_with_their_age() -> None:
    """In seconds, minutes, hours or days."""
    found = newer_than(1000.0, {"/a": 999.0, "/b": 1000.5, "/c": 1000.0 + 3 * 86400})
    assert found == (
        "/b was changed 0.5 s after the process started",
        "/c was changed 3 d after the process started",
    )
