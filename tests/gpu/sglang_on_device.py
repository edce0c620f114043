"""
Real SGLang with TP=2 on two GPUs, in every variant that we judge, each judged by our plugin.

    python tests/gpu/sglang_on_device.py PACKAGES OUT [--until SECONDS] [--death]

PACKAGES holds SGLang and its needs (PYTHONPATH of the servers, not ours). Run by sglang_on_device.sh; recordings,
logs, and what /proc says of the processes go to /tmp/results. Steps, each in the log with its time:
readiness of five servers from nothing on; the whole endpoint suite for each;
GPU programs beside the running service under load; the environment and files of every rank; an idle rank.
With --death only a server that dies of memory while it is waited for: it finds its GPUs taken by another process.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_gpuinfra.connection.local import LocalConnection
from pytest_gpuinfra.endpoint.client import InferenceEndpoint
from pytest_gpuinfra.endpoint.throughput import background_load
from pytest_gpuinfra.errors import EndpointError
from pytest_gpuinfra.host.requests import OPENED
from pytest_gpuinfra.inventory.service import ServiceExpectation
from pytest_gpuinfra.on_target.bundle import packed
from pytest_gpuinfra.on_target.plan import SamplingPlan

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "pytest_gpuinfra" / "on_target" / "probe"
RESULTS = Path("/tmp/results")
MODEL = ROOT / "tests" / "tiny_model" / "model"
NEXTN = ROOT / "tests" / "tiny_model" / "nextn"
SPOILED = Path("/tmp/nextn-spoiled")
STARTED = time.monotonic()
COMMON = (
    *("--tp", "2", "--served-model-name", "tiny-times", "--attention-backend", "triton"),
    *("--sampling-backend", "pytorch", "--grammar-backend", "none", "--dtype", "bfloat16", "--enable-metrics"),
    *("--reasoning-parser", "qwen3", "--disable-cuda-graph", "--max-total-tokens", "20000"),
)
ROOMY = ("--mem-fraction-static", "0.3")
NO_CUSTOM = ("--disable-custom-all-reduce",)
HEAD = (
    *("--speculative-algorithm", "NEXTN", "--speculative-num-steps", "1"),
    *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "2"),
)
OFF = {"NCCL_P2P_DISABLE": "1"}


@dataclass(frozen=True)
class Variant:
    """One way to start SGLang, and what is expected of it."""

    name: str
    port: int
    model: Path
    arguments: tuple[str, ...]
    environment: dict[str, str]
    speculation: str

    @property
    def url(self) -> str:
        """Where it is asked."""
        return f"http://127.0.0.1:{self.port}"


STANDALONE = (
    *("--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", str(MODEL)),
    *("--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"),
)
VARIANTS = (
    Variant("plain", 30000, MODEL, (*ROOMY, *NO_CUSTOM), OFF, "enabled = false"),
    Variant(
        *("nextn", 31000, NEXTN, (*ROOMY, *HEAD, "--speculative-draft-model-path", str(NEXTN)), {}),
        'algorithm = "NEXTN", mean_accepted_length_min = 1.5',
    ),
    Variant(
        *("nextn-spoiled", 32000, SPOILED, (*ROOMY, *HEAD, "--speculative-draft-model-path", str(SPOILED)), OFF),
        'algorithm = "NEXTN", mean_accepted_length_min = 1.5',
    ),
    Variant(
        *("standalone", 33000, MODEL, (*ROOMY, *NO_CUSTOM, *STANDALONE), {}),
        'algorithm = "STANDALONE", mean_accepted_length_min = 2.0',
    ),
    Variant(
        "ngram",
        34000,
        MODEL,
        (*ROOMY, *NO_CUSTOM, "--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "4"),
        OFF,
        'algorithm = "NGRAM", mean_accepted_length_min = 1.1',
    ),
)
TAKEN = Variant("gpus-taken", 35500, MODEL, (*ROOMY, *NO_CUSTOM), OFF, "")
BALLAST = """
import sys, time
import torch
held = []
for index in range(torch.cuda.device_count()):
    free, _ = torch.cuda.mem_get_info(index)
    held.append(torch.empty(free - (600 << 20), dtype=torch.uint8, device=f"cuda:{index}"))
print("taken", flush=True)
sys.stdin.read()
"""
GPUS: list[str] = []


def say(text: str) -> None:
    """Write one line with the time."""
    print(f"[{time.monotonic() - STARTED:6.1f} s] {text}", flush=True)


@contextlib.contextmanager
def step(name: str) -> Iterator[None]:
    """Do one step; its failure is told and does not keep the others from being done."""
    began = time.monotonic()
    try:
        yield
    except Exception:
        say(f"{name} FAILED:\n{traceback.format_exc()}")
    say(f"{name}: {time.monotonic() - began:.1f} s")


def start(variant: Variant, packages: str) -> subprocess.Popen[bytes]:
    """Start a server on its own packages."""
    argv = [sys.executable, "-m", "sglang.launch_server", "--port", str(variant.port)]
    argv += ["--model-path", str(variant.model), *COMMON, *variant.arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NCCL_P2P")}
    environment |= {"PYTHONPATH": packages, "HF_HUB_OFFLINE": "1", "NCCL_DEBUG": "INFO", **variant.environment}
    log = (RESULTS / f"{variant.name}.log").open("wb")
    return subprocess.Popen(argv, env=environment, stdout=log, stderr=log, start_new_session=True, cwd="/")


def end(server: subprocess.Popen[bytes]) -> None:
    """End a server with all its ranks."""
    with contextlib.suppress(OSError):
        os.killpg(server.pid, signal.SIGTERM)
    try:
        server.wait(5)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(OSError):
            os.killpg(server.pid, signal.SIGKILL)


def inventory(alias: str, url: str, *, model: str = "", speculation: str = "", more: str = "") -> Path:
    """Write an inventory."""
    lines = [
        f"[hosts.{alias}]",
        'address = "local"',
        f'endpoint = "{url}"',
        f"[hosts.{alias}.expect]",
        'peer_access = "correct"',
        f"[[hosts.{alias}.expect.devices]]",
        f"pci = {json.dumps(GPUS)}",
        'driver = "nvidia"',
        f"[hosts.{alias}.expect.model]",
        model,
        f"speculation = {{ {speculation} }}" if speculation else "",
        more,
    ]
    path = RESULTS / f"{alias}.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


SGLANG = 'id = "tiny-times"\ntp_size = 2\ndtype = "bfloat16"'
BAND = "participation = { memory_min_mib = 500.0, memory_max_mib = 20000.0 }"


def judge(name: str, alias: str, *arguments: str, selected: str, wait_s: float = 0.0) -> dict[str, Any]:
    """Run our plugin; gives its recording."""
    began = time.monotonic()
    recording = RESULTS / f"{name}.json"
    argv = [sys.executable, "-m", "pytest", "-p", "pytest_gpuinfra.plugin", f"--gpu-host={alias}"]
    argv += [f"--gpu-inventory={RESULTS / alias}.toml", f"--gpu-recording={recording}", "-p", "no:cacheprovider", "-rA"]
    argv += ["-q", "-k", selected, *([f"--gpu-wait={wait_s:g}"] if wait_s else []), *arguments]
    ended = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, timeout=420, check=False)
    (RESULTS / f"{name}.txt").write_text(ended.stdout + ended.stderr)
    if not recording.exists():
        say(f"{name}: no recording, status {ended.returncode}: {(ended.stdout + ended.stderr)[-1500:]}")
        return {}
    document: dict[str, Any] = json.loads(recording.read_text())
    counts: dict[str, int] = {}
    for result in document["results"]:
        counts[result["outcome"]] = counts.get(result["outcome"], 0) + 1
    say(f"{name}: status {ended.returncode}, {counts}, {time.monotonic() - began:.1f} s")
    for result in document["results"]:
        if result["outcome"] in ("failed", "error"):
            say(f"  {result['outcome']} {result['id'].rpartition('::')[2]}: {result['message'][:600]}")
    return document


def readiness(variants: Sequence[Variant]) -> None:
    """Start everything, and climb every ladder from nothing on, at the same time."""
    threads = []
    for variant in variants:
        inventory(variant.name, variant.url, model=SGLANG, speculation=variant.speculation, more=BAND)
        wait_s = 80.0 if variant is TAKEN else 240.0
        threads.append(
            threading.Thread(
                target=judge,
                args=(f"ready-{variant.name}", variant.name),
                kwargs={"selected": "endpoint_is_ready", "wait_s": wait_s},
            )
        )
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def baseline(document: dict[str, Any], alias: str) -> str:
    """Give the speed of a run as the baseline of others."""
    measured = {one["streams"]: one for one in document["hosts"][alias]["gathered"]["endpoint"]["throughput"]}
    speeds = {streams: one["tokens"] / one["wall_s"] for streams, one in measured.items()}
    say(f"speed of {alias}: {speeds}")
    return f"throughput = {{ one_stream_tokens_per_s = {speeds[1]:.2f}, eight_streams_tokens_per_s = {speeds[8]:.2f} }}"


def beside(variant: Variant) -> None:
    """Run the GPU programs beside the running service, under load, and count what the service loses."""
    said: list[str] = []
    inventory("beside", variant.url, model=SGLANG)
    sampling = LocalConnection("h200")
    plan = SamplingPlan(60.0, 0.2, variant.port).document()
    thread = threading.Thread(
        target=lambda: said.append(sampling.run_program(packed("sampler"), plan, timeout_s=90).stdout), daemon=True
    )
    with InferenceEndpoint(variant.url) as endpoint, background_load(endpoint, streams=4) as results:
        time.sleep(1.0)
        before = len(results)
        thread.start()
        began = time.monotonic()
        judge("beside", "beside", f"--gpu-python={sys.executable}", selected="peer_copies or all_reduce")
        took_s, during = time.monotonic() - began, len(results) - before
    failed = [str(one.reason) for one in results if isinstance(one, EndpointError)]
    wrong = [one.answer.answer for one in results if not isinstance(one, EndpointError) and not one.answer.answer]
    thread.join(70.0)
    sampling.close()
    (RESULTS / "beside.jsonl").write_text("".join(said))
    words = {"seconds": took_s, "answered_meanwhile": during, "answered": len(results) - len(failed), "lost": failed}
    (RESULTS / "beside-load.json").write_text(json.dumps({**words, "empty": len(wrong)}, indent=1))
    say(f"GPU programs beside the service: {words}, {len(wrong)} empty answers")


def look_at_processes(variant: Variant, main: int) -> None:
    """Keep what /proc says of a server's processes, by the probe's own functions."""
    sys.path.insert(0, str(TARGET))  # the probe's modules import each other as neighbours
    probe_service, runner = (importlib.import_module(name) for name in ("probe_service", "runner"))
    names = ServiceExpectation().names
    pids = sorted({main, *runner.descendants(main)})
    found = {
        "main": main,
        "processes": {str(pid): probe_service.read_process(pid, names, OPENED) for pid in pids},
        "python": probe_service.start_python(main, pids, names),
    }
    (RESULTS / f"proc-{variant.name}.json").write_text(json.dumps(found, indent=1, sort_keys=True))


def idle_rank() -> None:
    """Judge the two-rank server of our own: both at work, then one of them idled."""
    for name, port, more in (("two-ranks", 36000, ()), ("idle-rank", 37000, ("--idle-rank", "1"))):
        log = (RESULTS / f"{name}.log").open("wb")
        server = subprocess.Popen(
            [sys.executable, str(ROOT / "tests/gpu/idle_rank_server.py"), str(port), *more],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            inventory(name, f"http://127.0.0.1:{port}", model='id = "two-ranks"', more=BAND.replace("500.0", "100.0"))
            judge(name, name, selected="endpoint_is_ready or participation", wait_s=60)
        finally:
            end(server)


def death(packages: str) -> None:
    """Judge a server that dies of memory while it is waited for."""
    with contextlib.ExitStack() as stack, step(TAKEN.name):
        ballast = subprocess.Popen([sys.executable, "-c", BALLAST], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        stack.callback(ballast.communicate)
        assert ballast.stdout
        say(f"GPUs: {ballast.stdout.readline().decode().strip() or 'nothing was taken'}")
        server = start(TAKEN, packages)
        stack.callback(end, server)
        readiness((TAKEN,))
        say(f"{TAKEN.name} {'still runs' if server.poll() is None else f'had ended with {server.returncode}'}")


def main() -> None:
    """Do everything."""
    until_s = float(sys.argv[sys.argv.index("--until") + 1]) if "--until" in sys.argv else 560.0
    RESULTS.mkdir(exist_ok=True)
    listed = subprocess.run(
        ["nvidia-smi", "--query-gpu=pci.bus_id", "--format=csv,noheader"], capture_output=True, text=True, check=True
    )
    GPUS.extend(line.strip().lower()[4:] for line in listed.stdout.splitlines())
    say(f"GPUs {GPUS}")
    if "--death" in sys.argv:
        death(sys.argv[1])
        return
    subprocess.run([sys.executable, str(ROOT / "tests/tiny_model/spoil_head.py"), str(NEXTN), str(SPOILED)], check=True)
    servers = {variant.name: start(variant, sys.argv[1]) for variant in VARIANTS}
    try:
        with step("readiness"):
            readiness(VARIANTS)
        with step("processes"):
            for variant in VARIANTS:
                look_at_processes(variant, servers[variant.name].pid)
        speed = ""
        for variant in VARIANTS:
            if time.monotonic() - STARTED > until_s - 100:
                say(f"no time for {variant.name}")
                continue
            with step(f"judge {variant.name}"):
                inventory(
                    variant.name,
                    variant.url,
                    model=SGLANG,
                    speculation=variant.speculation,
                    more=f"{BAND}\n{speed}",
                )
                document = judge(variant.name, variant.name, selected="test_endpoint or participation", wait_s=20)
                speed = speed or baseline(document, variant.name)
            if variant.name == "plain":
                with step("GPU programs beside the service"):
                    beside(variant)
    finally:
        for name, server in servers.items():
            say(f"{name} {'still runs' if server.poll() is None else f'had ended with {server.returncode}'}")
            end(server)
    if time.monotonic() - STARTED < until_s - 45:
        with step("idle rank"):
            idle_rank()
    with step("kernel log"):
        said = subprocess.run(["dmesg"], capture_output=True, text=True, check=False).stdout
        (RESULTS / "dmesg.txt").write_text(said)


if __name__ == "__main__":
    main()
