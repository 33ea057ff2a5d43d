"""Against a server that is not ours: `transformers serve` with the lab's model, killed and started again."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.core.files import read_jsonl
from rlvr_cli.models.source import PRESETS
from rlvr_cli.store.evaluation import read_samples

# A busy machine gives such a server few tokens a second.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

NEEDS = ("fastapi", "uvicorn", "openai")
PROBLEMS, SAMPLES = 30, 4
CALL = ("--problems", str(PROBLEMS), "-n", str(SAMPLES), "--pass-at", "1,4", "--max-new-tokens", "160", "--format=json")


class Served:
    """`transformers serve` on a port of this machine."""

    def __init__(self, log: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url, self.log = f"http://127.0.0.1:{self.port}/v1", log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        program = Path(sys.executable).parent / "transformers"
        where = ["--host", "127.0.0.1", "--port", str(self.port)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [str(program), "serve", str(PRESETS["lab"]), "--device", "cpu", "--dtype", "float32", *where],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"},
            )

    def wait(self) -> None:
        assert self.process is not None
        while True:
            assert self.process.poll() is None, self.log.read_text(encoding="utf-8")
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).close()
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"transformers serve needs {', '.join(missing)}: pip install 'transformers[serving]'")
    server = Served(tmp_path / "server.log")
    server.start()
    try:
        server.wait()
        yield server
    finally:
        server.kill()


def evaluate(tmp_path: Path, name: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rlvr_cli", "eval", "lab", *CALL, "--output", str(tmp_path / name), *arguments],
        cwd=tmp_path,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def result(process: subprocess.Popen[str]) -> tuple[dict[str, Any], str]:
    out, err = process.communicate(timeout=900)
    assert process.returncode == 0, err
    return json.loads(out), err


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_the_accuracy_is_the_local_engines_though_the_server_is_killed_and_started_again(
    served: Served, tmp_path: Path
) -> None:
    local, _ = result(evaluate(tmp_path, "local"))
    planned = PROBLEMS * (SAMPLES + 1)
    process = evaluate(tmp_path, "served", "--engine", "openai", "eval.server=transformers", "--base-url", served.url)
    samples = tmp_path / "served" / "samples.jsonl"
    while lines(samples) < planned // 3:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    served.kill()
    before = lines(samples)
    assert before < planned
    threading.Timer(1.0, served.start).start()
    answered, err = result(process)
    assert "sent again" in err

    rows = read_jsonl(samples)
    assert len(rows) == len({(row["problem"], row["sample"]) for row in rows}) == planned
    mine = {(row["problem"], row["sample"]): row for row in read_samples(tmp_path / "local")}
    assert {(row["problem"], row["sample"]) for row in rows} == mine.keys()
    for row in rows:
        key = row["problem"], row["sample"]
        assert row["prompt"] == mine[key]["prompt"]
        if row["sample"] == "greedy":
            assert row["text"] == mine[key]["text"]
    assert answered["metrics"]["greedy"]["value"] == local["metrics"]["greedy"]["value"]
    for metric in (f"avg@{SAMPLES}", "pass@4", "length"):
        one, other = answered["metrics"][metric], local["metrics"][metric]
        assert one["low"] <= other["value"] <= one["high"], metric

    # A second call generates nothing; an evaluation here pairs with it problem by problem.
    compared, _ = result(
        evaluate(tmp_path, "served", "--engine", "openai", "eval.server=transformers", "--base-url", served.url)
    )
    assert compared["metrics"] == answered["metrics"]
    assert lines(samples) == planned


def test_a_model_that_it_does_not_serve_is_one_message(served: Served, tmp_path: Path) -> None:
    process = evaluate(
        tmp_path,
        "wrong",
        "--engine",
        "openai",
        "eval.server=transformers",
        "--base-url",
        served.url,
        "--model-name",
        "Qwen/Qwen2.5-7B",
    )
    _, err = process.communicate(timeout=900)
    assert process.returncode == 2
    assert "Server is pinned to" in err
    assert "Traceback" not in err
