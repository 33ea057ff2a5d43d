"""An evaluation of a model behind a server: the same samples whatever the server was put through, plain messages."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.cli.app import run as rlvr
from rlvr_cli.config.load import dump_yaml, load_config
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.store.evaluation import read_samples
from tests.evaluation.serving import TestServer, running

PLANNED = 6 * (4 + 1)
CALL = ("--problems", "6", "-n", "4", "--pass-at", "1,4", "--max-new-tokens", "12", "--format=json")


@pytest.fixture(scope="session")
def loaded(models: list[Path]) -> tuple[Any, Any]:
    from rlvr_cli.models.load import load_model

    return load_model(str(models[0]))


@pytest.fixture
def server(loaded: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[TestServer]:
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.02)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with running(TestServer(*loaded)) as one:
        yield one


Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(server: TestServer, models: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    def invoke(
        *arguments: str, name: str | None = None, out: str = "out", url: str | None = None
    ) -> tuple[int, str, str]:
        where = ["--output", str(tmp_path / out)] if out else []
        asked = ["--engine", "openai", "--base-url", url or server.url]
        code = rlvr(["eval", name or str(models[0]), *asked, *CALL, *where, f"run.dir={tmp_path / 'runs'}", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return invoke


def records(folder: Path) -> dict[tuple[str, Any], dict[str, Any]]:
    rows = read_samples(folder)
    found = {(row["problem"], row["sample"]): row for row in rows}
    assert len(found) == len(rows), "counted twice"
    return found


@pytest.fixture(scope="session")
def quiet_folder(loaded: tuple[Any, Any], models: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An evaluation that nothing disturbed."""
    root = tmp_path_factory.mktemp("quiet")
    with running(TestServer(*loaded)) as server:
        asked = ["--engine", "openai", "--base-url", server.url, "--output", str(root / "quiet")]
        assert rlvr(["eval", str(models[0]), *asked, *CALL, f"run.dir={root / 'runs'}"]) == 0
    return root / "quiet"


@pytest.fixture(scope="session")
def quiet(quiet_folder: Path) -> dict[tuple[str, Any], dict[str, Any]]:
    found = records(quiet_folder)
    assert len(found) == PLANNED
    return found


def test_greedy_completions_prompts_and_verdicts_are_those_of_the_local_engine(
    quiet: dict[Any, Any], models: list[Path], tmp_path: Path
) -> None:
    assert rlvr(["eval", str(models[0]), *CALL, "--output", str(tmp_path / "local"), f"run.dir={tmp_path}"]) == 0
    local = records(tmp_path / "local")
    assert local.keys() == quiet.keys()
    assert {key: row["prompt"] for key, row in local.items()} == {key: row["prompt"] for key, row in quiet.items()}
    for key, row in local.items():
        if key[1] == "greedy":
            # This server is not one that is asked for log-probabilities.
            assert {**row, "log_prob": None} == quiet[key]
    assert len({row["text"] for row in quiet.values()}) > 6


def test_what_the_samples_are_of_is_kept_and_the_key_is_not(
    call: Call, server: TestServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "sk-secret-0123456789"
    server.behaviour.key = key
    code, _, err = call()
    assert code == 2
    assert "OPENAI_API_KEY" in err
    monkeypatch.setenv("MY_KEY", "sk-wrong")
    code, _, err = call("eval.api_key_variable=MY_KEY")
    assert code == 2
    assert "key" in err
    assert "sk-wrong" not in err
    monkeypatch.setenv("MY_KEY", key)
    code, out, err = call("eval.api_key_variable=MY_KEY")
    assert code == 0, err
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if key.encode() in path.read_bytes()]
    assert key not in out + err
    meta = json.loads((tmp_path / "out" / "meta.json").read_text(encoding="utf-8"))
    assert meta["weights"] == "unknown, behind a server"
    assert meta["server"] == {"model": "tiny", "kind": "openai", "endpoint": "completions"}
    assert server.url not in json.dumps(meta)


@pytest.mark.parametrize("variable", ["OPENAI_API_KEY", "HF_TOKEN"])
def test_a_key_goes_only_to_a_server_that_the_command_line_names(
    variable: str,
    server: TestServer,
    make_run: Callable[..., RunDir],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run's configuration may come from anyone: it gets no variable of the environment sent to where it likes."""
    run = make_run(steps=(10,))
    served = {"engine": "openai", "base_url": server.url, "api_key_variable": variable}
    config = load_config([run.config_path], overrides=[f"eval.{key}={value}" for key, value in served.items()])
    run.config_path.write_text(dump_yaml(config), encoding="utf-8")
    monkeypatch.setenv(variable, "hf_secret-0123456789")
    for name in ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ADMIN_KEY"):
        monkeypatch.setenv(name, "ambient")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Gateway: ambient\nAuthorization: ambient")
    call = ["eval", str(run.path), *CALL]
    filtered = [
        "tasks",
        "filter",
        "kk",
        "--model",
        str(run.path),
        "--output",
        str(run.path / "kept.jsonl"),
        "--problems",
        "2",
    ]
    for line in (call, [*call, f"eval.api_key_variable={variable}"], filtered):
        assert rlvr(line) == 2
        said = capsys.readouterr().err
        assert f"Use --base-url {server.url}" in said and "hf_secret" not in said
    assert not server.keys
    assert rlvr([*call, "--base-url", server.url]) == 0
    printed = capsys.readouterr()
    assert f"the key in {variable} is sent to {server.url}" in printed.err and "hf_secret" not in printed.err
    assert set(server.keys) == {"Bearer hf_secret-0123456789"}
    monkeypatch.delenv(variable)
    assert not [value for headers in server.headers for value in headers.values() if "ambient" in value]
    if variable == "OPENAI_API_KEY":
        # A server that wants none may be named by the run.
        server.keys.clear()
        assert rlvr(["5" if word == "4" else word for word in call]) == 0
        assert set(server.keys) == {None}


def every_third_fails(number: int, body: dict[str, Any]) -> tuple[Any, ...] | None:
    faults: list[tuple[Any, ...]] = [
        ("status", 500, {}),
        ("status", 429, {"retry-after": "0.1"}),
        ("hang up",),
        ("truncate",),
        ("status", 503, {}),
    ]
    return faults[number // 3 % len(faults)] if number % 3 == 0 else None


def test_faults_that_pass_leave_no_trace_in_the_samples(
    call: Call, server: TestServer, quiet: dict[Any, Any], tmp_path: Path
) -> None:
    server.behaviour.fault = every_third_fails
    code, _, err = call()
    assert code == 0, err
    assert records(tmp_path / "out") == quiet
    assert "a request failed and is sent again" in err


def test_a_server_that_dies_and_comes_back_loses_and_repeats_nothing(
    call: Call, server: TestServer, quiet: dict[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.2)
    started = threading.Timer(1.0, server.start)

    def die(number: int, body: dict[str, Any]) -> tuple[Any, ...] | None:
        if number >= base + 12 and not started.is_alive() and not started.finished.is_set():
            started.start()
            threading.Thread(target=server.kill).start()
            return ("sleep", 0.3)
        return None

    base = len(server.bodies)
    server.behaviour.fault = die
    code, _, err = call()
    started.join()
    assert code == 0, err
    assert started.finished.is_set()
    assert records(tmp_path / "out") == quiet


def test_an_evaluation_that_gave_up_continues_with_the_gaps_alone(
    call: Call, server: TestServer, quiet: dict[Any, Any], tmp_path: Path
) -> None:
    base = len(server.bodies)
    server.behaviour.fault = lambda number, body: ("status", 503, {}) if number > base + 15 else None
    code, _, err = call("eval.retries=2")
    assert code == 1
    assert "503" in err and "sent up to 3 times (eval.retries)" in err.replace("\n", " ")
    assert "same command" in err
    kept = records(tmp_path / "out")
    assert 0 < len(kept) < PLANNED
    server.behaviour.fault = lambda number, body: None
    base = len(server.bodies)
    code, _, err = call()
    assert code == 0, err
    assert records(tmp_path / "out") == quiet
    # One token at the start, one to compare the prompts, and the gaps.
    assert len(server.bodies) - base == 2 + PLANNED - len(kept)
    base = len(server.bodies)
    assert call()[0] == 0
    assert len(server.bodies) - base == 1


def test_many_requests_are_in_flight_and_no_more_than_asked_for(
    call: Call, server: TestServer, quiet: dict[Any, Any], tmp_path: Path
) -> None:
    server.behaviour.fault = lambda number, body: ("sleep", 0.05)
    server.most_at_once = 0
    assert call("eval.concurrency=5")[0] == 0
    assert 2 <= server.most_at_once <= 5
    assert records(tmp_path / "out") == quiet


@pytest.mark.parametrize(
    ("change", "arguments", "said"),
    [
        ({"names": ["a", "b"]}, (), "--model-name: http://127.0.0.1:PORT/v1 serves 2 models; name one. Served: a, b."),
        (
            {},
            ("--model-name", "tinny"),
            "--model-name tinny: not served by http://127.0.0.1:PORT/v1. Did you mean `tiny`?",
        ),
        ({"extra_prompt_tokens": 3}, (), "It serves a different model, or adds tokens."),
        ({"model_entry": {"max_model_len": 20}, "owner": "vllm"}, (), "more than the 20 tokens of"),
        ({"models": False, "completions": False, "chat": False}, (), "Check that --base-url ends where the API begins"),
    ],
    ids=["several models", "wrong model", "another tokenizer", "too long", "not an API"],
)
def test_a_server_that_does_not_fit_is_one_message_before_anything_is_sampled(
    call: Call, server: TestServer, tmp_path: Path, change: dict[str, Any], arguments: tuple[str, ...], said: str
) -> None:
    for name, value in change.items():
        setattr(server.behaviour, name, value)
    code, _, err = call(*arguments)
    assert code == 2, err
    assert said.replace("PORT", str(server.port)) in err.replace("\n", " ")
    assert "Traceback" not in err
    assert not records(tmp_path / "out")


def test_an_unreachable_server_is_one_message(call: Call, server: TestServer) -> None:
    server.kill()
    code, _, err = call()
    assert code == 2
    assert "cannot be reached" in err
    assert "server" in err


def test_a_refusal_in_the_middle_is_one_message_and_keeps_what_came(
    call: Call, server: TestServer, tmp_path: Path
) -> None:
    said = "This model's maximum context length is 16 tokens."
    server.behaviour.fault = lambda number, body: ("status", 400, {}, said) if number > 12 else None
    # One request at a time: with several in flight, the refusal may come before any answer.
    code, _, err = call("eval.concurrency=1")
    assert code == 1
    assert said in err
    assert "--max-new-tokens" in err
    assert err.count(said) == 1
    assert 0 < len(records(tmp_path / "out")) < PLANNED


def test_another_model_after_a_restart_is_not_mixed_in(call: Call, server: TestServer, tmp_path: Path) -> None:
    def swap(number: int, body: dict[str, Any]) -> None:
        if number == 12:
            server.behaviour.answers_as = "another"

    server.behaviour.fault = swap
    # One request at a time: with several in flight, a slow machine may have none answered before the change.
    code, _, err = call("eval.concurrency=1")
    assert code == 1
    assert "another" in err and "tiny" in err
    kept = records(tmp_path / "out")
    assert 0 < len(kept) < PLANNED
    # The whole server is another one now: its samples have no place in this folder.
    server.behaviour.fault = lambda number, body: None
    code, _, err = call()
    assert code == 2
    assert "different: server.model" in err
    assert records(tmp_path / "out") == kept


def test_the_same_folder_is_refused_for_another_name_and_taken_at_another_address(
    call: Call, server: TestServer, loaded: tuple[Any, Any], quiet: dict[Any, Any], quiet_folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(quiet_folder, tmp_path / "quiet")
    with running(TestServer(*loaded)) as moved:
        assert call(out="quiet", url=moved.url)[0] == 0
        moved.behaviour.names = ["other"]
        code, _, err = call(out="quiet", url=moved.url)
    assert code == 2
    assert "server.model" in err
    assert records(tmp_path / "quiet") == quiet


def test_token_ids_and_log_probabilities_where_a_server_gives_them(
    call: Call, server: TestServer, quiet: dict[Any, Any], tmp_path: Path
) -> None:
    server.behaviour.owner, server.behaviour.token_ids = "vllm", True
    base = len(server.bodies)
    code, _, err = call()
    assert code == 0, err
    found = records(tmp_path / "out")
    assert all(row["log_prob"] < 0 for row in found.values())
    # Told by ids, special tokens stay in the text, as with a model in this process; the plain API drops them.
    bare = {key: row["text"].replace("<unk> ", "").removesuffix(" <unk>") for key, row in found.items()}
    assert bare == {key: row["text"] for key, row in quiet.items()}
    assert {key: row["tokens"] for key, row in found.items()} == {key: row["tokens"] for key, row in quiet.items()}
    asked = server.bodies[base + 2 :]
    assert all(isinstance(body["prompt"], list) and body["top_k"] == -1 for body in asked)
    # One seed for each sample of each problem.
    assert len({body["seed"] for body in asked}) == len(asked) == PLANNED


def test_without_usage_tokens_are_unknown_and_the_prompts_are_unchecked(
    call: Call, server: TestServer, quiet: dict[Any, Any], tmp_path: Path
) -> None:
    server.behaviour.usage = False
    code, _, err = call()
    assert code == 0
    assert "is not checked" in err
    found = records(tmp_path / "out")
    assert {key: row["text"] for key, row in found.items()} == {key: row["text"] for key, row in quiet.items()}
    assert {row["tokens"] for row in found.values()} == {None}


def test_a_server_that_does_not_sample_is_noticed(call: Call, server: TestServer) -> None:
    def same(number: int, body: dict[str, Any]) -> None:
        body["seed"] = 0

    server.behaviour.fault = same
    code, _, err = call()
    assert code == 0
    assert "samples of each problem are identical" in err.replace("\n", " ")


# --- chat


def test_a_prompt_that_chat_cannot_say_is_refused(call: Call, server: TestServer) -> None:
    code, _, err = call("eval.endpoint=chat")
    assert code == 2
    assert "plain text" in err.replace("\n", " ")
    code, _, err = call("eval.endpoint=chat", "task.style=logic_rl")
    assert code == 2
    assert "end in '<think>' for the model to continue" in err.replace("\n", " ")


def test_a_model_that_only_the_server_knows_is_asked_by_chat(call: Call, server: TestServer, tmp_path: Path) -> None:
    server.behaviour.names = ["some-model"]
    code, _, err = call("--benchmark", "math-story-gen", name="some-model")
    assert code == 0, err
    assert "prompts are sent as chat messages, because the model's tokenizer is unknown" in err.replace("\n", " ")
    messages = server.bodies[-1]["messages"]
    assert [message["role"] for message in messages] == ["user"]
    assert "\\boxed{}" in messages[0]["content"]
    meta = json.loads((tmp_path / "out" / "meta.json").read_text(encoding="utf-8"))
    assert meta["server"] == {"model": "some-model", "kind": "openai", "endpoint": "chat"}


def test_thoughts_that_a_server_cut_out_are_put_back(call: Call, server: TestServer, tmp_path: Path) -> None:
    server.behaviour.message = {"content": "<answer> 3 </answer>", "reasoning_content": "1 + 2"}
    assert call("--benchmark", "math-story-gen", name="tiny")[0] == 0
    texts = {row["text"] for row in records(tmp_path / "out").values()}
    assert texts == {"<think>1 + 2</think><answer> 3 </answer>"}
