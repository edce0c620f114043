"""
Runs in a process of its own, and must not import the rest of the package: a llama.cpp HTTP server.

Takes its settings as JSON in its only argument, prints {"base_url": ...} when it is ready,
and ends when its standard input ends. Needs xllamacpp.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
from typing import Any


def end_with_parent() -> None:
    """Wait for the end of standard input, and end this process at once."""
    while os.read(0, 4096):
        pass
    os._exit(0)


def parameters(settings: dict[str, Any]) -> Any:
    """Give llama.cpp's parameters for these settings (xllamacpp 2026.10)."""
    xllamacpp = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = settings["model"]
    params.model_alias = {settings["model_id"]}
    params.n_ctx, params.n_parallel = settings["context"], settings["slots"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings["threads"]
    params.hostnames, params.port = ["127.0.0.1"], settings["port"]
    params.endpoint_metrics = params.endpoint_slots = True
    if settings["api_key"]:
        params.api_keys = [settings["api_key"]]
    kinds = xllamacpp.common_speculative_type
    if settings["speculation"] == "draft":
        draft = params.speculative.draft
        draft.mparams.path, draft.n_max, draft.n_min = settings["model"], 4, 0
        params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
    elif settings["speculation"] == "ngram":
        ngram = params.speculative.ngram_simple
        ngram.size_n, ngram.size_m, ngram.min_hits = 2, 4, 1
        params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
    return params


def main() -> None:
    """Serve until the parent is gone."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever llama.cpp prints goes to the log
    threading.Thread(target=end_with_parent, daemon=True).start()
    server = importlib.import_module("xllamacpp").Server(parameters(json.loads(sys.argv[1])))
    print(json.dumps({"base_url": server.listening_address}), file=answers, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
