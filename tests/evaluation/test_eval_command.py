"""`rlvr eval` from the command line."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.cli.app import run as rlvr
from rlvr_cli.core.errors import UserError
from rlvr_cli.evaluation.jobs import EvalRequest, make_jobs
from rlvr_cli.evaluation.loading import load_subject
from rlvr_cli.runs.folder import RunDir

MakeRun = Callable[..., RunDir]


@pytest.fixture
def call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def invoke(*arguments: str) -> tuple[int, str, str]:
        code = rlvr(["eval", *arguments, f"run.dir={tmp_path / 'runs'}"])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return invoke


def folder_of(run: RunDir) -> Path:
    (metrics,) = run.eval_dir.glob("*/metrics.json")
    return metrics.parent


def test_the_newest_run_is_evaluated_and_shown_by_number_of_people(make_run: MakeRun, call: Any) -> None:
    run = make_run()
    code, out, err = call("--pass-at", "1,4")
    assert code == 0
    assert out.startswith("trained step 30: kk-gen, test, 6 problems x 4 samples, temperature 1, top_p 1")
    for text in ("pass@1", "pass@4", "maj@4", "avg@4", "greedy accuracy", "mean length", "2 people", "4 people"):
        assert text in out
    assert "30 of 30 samples" in err
    assert folder_of(run).name.startswith("kk-gen-test-step-30-")
    assert str(folder_of(run)) in out


def test_average_last_averages_checkpoints_over_the_same_problems(make_run: MakeRun, call: Any) -> None:
    run = make_run()
    code, out, _ = call("--average-last", "3", "--format=json")
    assert code == 0
    result = json.loads(out)
    assert result["label"] == "average of trained step 10, trained step 20, trained step 30"
    singles = [json.loads((Path(part) / "metrics.json").read_text(encoding="utf-8")) for part in result["averaged"]]
    lengths = [single["metrics"]["length"]["value"] for single in singles]
    assert len(set(lengths)) > 1
    assert result["metrics"]["length"]["value"] == pytest.approx(sum(lengths) / 3)
    assert result["metrics"]["length"]["problems"] == 6
    assert len(list(run.eval_dir.iterdir())) == 4


def test_against_shows_before_after_and_their_paired_difference(
    make_run: MakeRun, call: Any, models: list[Path], tmp_path: Path
) -> None:
    run = make_run()
    code, out, _ = call("--against", str(models[0]))
    assert code == 0
    assert "before: model-0" in out
    assert "after: trained" in out
    assert "difference [95% interval]" in out
    assert "avg@4, 3 people" in out and "two runs" not in out
    (stored,) = run.eval_dir.glob("kk-gen-test-step-30-*/against-*.json")
    comparison = json.loads(stored.read_text(encoding="utf-8"))
    item = comparison["metrics"]["length"]
    assert item["difference"]["value"] == pytest.approx(item["after"]["value"] - item["before"]["value"])
    assert list((tmp_path / "runs" / "evals").glob("*/samples.jsonl"))


def test_a_checkpoint_that_is_gone_by_the_time_it_is_loaded(make_run: MakeRun) -> None:
    run = make_run()
    asked = make_jobs((), EvalRequest((str(run.path),)))[0][0]
    shutil.rmtree(run.checkpoints_dir / "step-30")
    with pytest.raises(UserError, match=r"step-30: this checkpoint was deleted after .* \(checkpoint\.keep="):
        load_subject(asked.target.subjects[0], asked.config, "auto", print)


def test_a_smaller_evaluation_leaves_a_larger_one_as_it_is(make_run: MakeRun, call: Any) -> None:
    run = make_run()
    _, first, err = call()
    assert "keeps its evaluation" not in err
    whole = {path.name: path.read_bytes() for path in folder_of(run).iterdir()}
    for fewer in (("--problems", "2"), ("-n", "2"), ("--problems", "2", "-n", "8")):
        code, out, err = call(*fewer)
        assert code == 0 and out != first and "keeps its evaluation of" in " ".join(err.split())
        assert {name: (folder_of(run) / name).read_bytes() for name in whole if name != "samples.jsonl"} == {
            name: content for name, content in whole.items() if name != "samples.jsonl"
        }
    assert (folder_of(run) / "samples.jsonl").read_bytes().startswith(whole["samples.jsonl"])
    for fewer in ((), ("--pass-at", "1"), ("--pass-at", "1", "eval.greedy=false")):
        code, out, _ = call(*fewer)
        assert code == 0 and out == first, "what was asked for before is kept"


def test_a_writer_that_was_killed_between_two_files_lost_no_problem(make_run: MakeRun, call: Any) -> None:
    """The larger call had written problems.jsonl and not metrics.json; a smaller one leaves that to a larger one."""
    run = make_run()
    _, whole, _ = call()
    (folder_of(run) / "problems.jsonl").write_text("")
    assert call("--problems", "2")[0] == 0
    assert json.loads((folder_of(run) / "metrics.json").read_text(encoding="utf-8"))["problems"] == 6
    assert call()[:2] == (0, whole)


def test_more_problems_are_recorded_though_fewer_had_more_samples(make_run: MakeRun, call: Any) -> None:
    run = make_run()
    assert call("--problems", "2", "-n", "8")[0] == 0
    assert call()[0] == 0
    result = json.loads((folder_of(run) / "metrics.json").read_text(encoding="utf-8"))
    assert result["problems"] == 6 and result["samples"] < 8


def test_a_smaller_average_leaves_a_larger_one_as_it_is(make_run: MakeRun, call: Any) -> None:
    run = make_run()
    assert call("--average-last", "2")[0] == 0
    (folder,) = run.eval_dir.glob("*-last-2-*")
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    code, _, err = call("--average-last", "2", "--problems", "2")
    assert code == 0 and f"{folder} keeps its evaluation of 6 problems" in " ".join(err.split())
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole


def test_out_takes_the_evaluation_elsewhere_and_refuses_anothers_folder(
    make_run: MakeRun, call: Any, tmp_path: Path
) -> None:
    run = make_run()
    out = tmp_path / "elsewhere"
    assert call("--output", str(out))[0] == 0
    assert (out / "metrics.json").exists()
    code, _, err = call(str(run.checkpoints_dir / "step-10"), "--output", str(out))
    assert code == 2
    assert "holds samples of another evaluation (different: weights)" in err


def test_several_evaluations_do_not_go_into_the_folder_of_one(make_run: MakeRun, call: Any, tmp_path: Path) -> None:
    make_run()
    out = tmp_path / "elsewhere"
    assert call("--output", str(out))[0] == 0
    before = (out / "metrics.json").read_bytes()
    code, _, err = call("--average-last", "2", "--output", str(out))
    assert code == 2
    assert "holds a single evaluation" in err
    assert (out / "metrics.json").read_bytes() == before
    assert call("--average-last", "2", "--output", str(tmp_path / "fresh"))[0] == 0
    assert (tmp_path / "fresh" / "metrics.json").exists()


def test_a_full_disk_is_one_message_and_what_was_sampled_is_kept(
    make_run: MakeRun, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlvr_cli.evaluation import sample_store

    written: list[int] = []
    append = sample_store.append_jsonl

    def fill_up(path: Path, rows: Any, *, durable: bool) -> None:
        if written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(len(rows))
        append(path, rows, durable=durable)

    run = make_run()
    monkeypatch.setattr(sample_store, "append_jsonl", fill_up)
    code, _, err = call("eval.batch=5")
    assert code == 1
    assert "No space left on device" in err
    assert "the same command continues" in err
    monkeypatch.undo()
    code, _, err = call("eval.batch=5")
    assert code == 0
    assert "5 of 30 samples on disk from before" in err
    assert folder_of(run).exists()


def test_a_length_that_is_asked_for_and_does_not_fit_is_refused_before_the_start(models: list[Path], call: Any) -> None:
    for key in ("--max-new-tokens", "eval.max_new_tokens", "rollout.max_new_tokens"):
        given = [key, "511"] if key.startswith("--") else [f"{key}=511"]
        code, _, err = call(str(models[0]), "--problems", "2", "-n", "1", *given, "run.threads=1")
        assert code == 2
        assert " ".join(given) in err and "512 positions" in err and "up to 501" in err


def test_a_length_that_nobody_asked_for_is_cut_to_what_fits(make_run: MakeRun, call: Any) -> None:
    """Of a run's configuration: other problems than the run's may have longer prompts."""
    run = make_run()
    text = run.config_path.read_text(encoding="utf-8").replace("max_new_tokens: 12", "max_new_tokens: 511")
    run.config_path.write_text(text, encoding="utf-8")
    code, out, err = call("--problems", "2", "-n", "1", "--format=json")
    assert code == 0
    length = json.loads(out)["sampling"]["max_new_tokens"]
    assert 490 < length < 511 and f"cut at {length}" in err
    records = [json.loads(line) for line in (folder_of(run) / "samples.jsonl").read_text("utf-8").splitlines()]
    assert max(record["tokens"] for record in records) <= length
