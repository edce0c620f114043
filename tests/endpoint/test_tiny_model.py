"""The committed model is the one that it claims to be, and multiplies."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from pytest_gpuinfra.endpoint.client import InferenceEndpoint
from pytest_gpuinfra.endpoint.embedded import MODEL_FILE, MODEL_SHA256
from pytest_gpuinfra.endpoint.judge_answers import judge_answer
from pytest_gpuinfra.endpoint.prompts import Prompt
from pytest_gpuinfra.endpoint.smoke import ask_concurrently

HERE = Path(__file__).parent.parent / "tiny_model"
PYTHON = os.environ.get("TINY_MODEL_PYTHON", "")


def _questions() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tiny_model_questions", HERE / "questions.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


QUESTIONS = _questions()


def test_hashes():
    for line in (HERE / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split()
        assert hashlib.sha256((HERE / name).read_bytes()).hexdigest() == digest, name
    assert hashlib.sha256(MODEL_FILE.read_bytes()).hexdigest() == MODEL_SHA256


def test_the_scratchpad_is_right_for_every_product():
    assert QUESTIONS.scratchpad(15, 23) == "15*23:5*3=15,1*3=03+1=04,5*2=10,1*2=02+1=03;4+0=04,0+3+0=03,0+0=0;0345"
    for a in range(100):
        for b in range(100):
            assert int(QUESTIONS.scratchpad(a, b)[-4:]) == a * b


def test_the_smoke_question_is_never_taught():
    rng = random.Random(7)
    taught = {QUESTIONS.sample(rng).reasoning.split(":")[0] for _ in range(50_000)}

    assert "15*23" not in taught
    assert len(taught) > 8000
    assert 900 < len(QUESTIONS.held_out()) < 1100


@pytest.mark.training
def test_held_out_products_are_computed(endpoint: InferenceEndpoint):
    pairs = QUESTIONS.held_out()
    random.Random(3).shuffle(pairs)
    prompts = [Prompt(f"{a}-times-{b}", f"What is {a}*{b}? Answer briefly.", str(a * b)) for a, b in pairs[:400]]
    asked = ask_concurrently(endpoint, prompts, streams=8, times=400)

    assert sum(judge_answer(item).ok for item in asked) >= 392


@pytest.mark.training
@pytest.mark.skipif(not PYTHON, reason="TINY_MODEL_PYTHON names no Python with torch, transformers and gguf")
def test_conversion_gives_the_committed_bytes(tmp_path: Path):
    made = tmp_path / "made.gguf"
    subprocess.run([PYTHON, HERE / "to_gguf.py", HERE / "model", made], check=True)

    assert hashlib.sha256(made.read_bytes()).hexdigest() == MODEL_SHA256


@pytest.mark.training
@pytest.mark.skipif(not PYTHON, reason="TINY_MODEL_PYTHON names no Python with torch, transformers and gguf")
def test_training_again_gives_the_same_accuracy(tmp_path: Path):
    environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
    subprocess.run([PYTHON, HERE / "train.py", tmp_path], check=True, env=environment)
    figures = json.loads((tmp_path / "train.json").read_text())
    right, asked = figures["heldout"]

    assert figures["params"] == 804_096
    assert (tmp_path / "tokenizer.json").read_bytes() == (HERE / "model" / "tokenizer.json").read_bytes()
    assert right / asked >= 0.97
