"""Kills, damages and full disks: is anything of a run lost in silence, or its name blocked?

    python -m benchmarks.run_safety [--kills 60] [--damages 70] [--disks 30] [--folder DIR]

Trains a tiny run of the lab's model, with evaluations on the way, undisturbed; then
- kills trainings (kill -9) at random moments and continues them, until each is finished;
- truncates, alters or deletes one file of a run that was killed, or of a finished evaluation, and continues it;
- as root, starts trainings on disks (tmpfs) that are full after ever more bytes, and continues them with more room.
Every run must come to the bytes of the undisturbed one, or be refused with the name of the file. Prints one table, and
ends with 1 where anything did neither.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from rlvr_cli.cli.app import run as rlvr
from rlvr_cli.runs.folder import RunDir

SETTINGS = (
    *("train.rollouts=3", "rollout.prompts=2", "rollout.group_size=4", "rollout.max_new_tokens=24"),
    *("update.mini_batches=2", "checkpoint.every=1", "checkpoint.keep=2", "task.train_size=16", "optimizer.lr=1e-3"),
    *("validation.every=1", "validation.problems=4", "validation.samples=0", "run.threads=1"),
)
STEPS = 6
# Imported before children are forked, which then begin at once.
HEAVY = (
    "trl",
    "rlvr_cli.training.build",
    "rlvr_cli.training.run",
    "rlvr_cli.launch.command",
    "rlvr_cli.evaluation.run",
)
FACTS = ("seed", "method", "task", "model", "learning_rate", "steps_total", "status")
KILLED = -int(signal.SIGKILL)


class Child:
    """One command line of rlvr in a process of its own; what it says goes to a file."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.output = folder / "said.txt"
        self.pid = os.fork()
        if self.pid:
            return
        said = os.open(self.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(said, 1)
        os.dup2(said, 2)
        code = 70
        try:
            code = rlvr(list(arguments))
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        finally:
            os._exit(code)

    def wait(self) -> int:
        """Until it has ended; returns its exit code, negative for a signal."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def kill_after(self, seconds: float) -> int:
        """Kill it then, if it is still there; returns its exit code."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.002)
        os.kill(self.pid, signal.SIGKILL)
        return self.wait()

    def said(self) -> str:
        """What it has printed."""
        return self.output.read_text(errors="replace")


def begin(folder: Path, root: Path) -> Child:
    """Start a training of the run `run` in ``root``."""
    return Child(folder, "train", *SETTINGS, f"run.dir={root}", "run.name=run")


def go_on(folder: Path, root: Path) -> Child:
    """The run `run` in ``root``: continued where there is one, else begun."""
    run = root / "run"
    return Child(folder, "train", "--resume", str(run)) if run.exists() else begin(folder, root)


def ending(run: Path) -> dict[str, bytes]:
    """The bytes that a run comes to: metrics, rollouts, evaluations on the way, the last checkpoint's weights."""
    kept = [run / "metrics.jsonl", run / "checkpoints" / f"step-{STEPS}" / "model.safetensors"]
    kept += [path for part in ("rollouts", "eval/in-training") for path in (run / part).rglob("[!.]*")]
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in kept if path.is_file()}


def contents(run: Path) -> dict[str, bytes]:
    """Every file of a run, but for those of programs."""
    files = (path for path in run.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in files}


def kills(folder: Path, count: int, expected: dict[str, bytes], seconds: float, rng: random.Random) -> Counter[str]:
    """Kill trainings ``count`` times, each continued until it is finished."""
    found: Counter[str] = Counter()
    made = number = 0
    while made < count:
        number += 1
        root = folder / f"kills-{number}"
        child, code = begin(folder, root), KILLED
        while made < count and code == KILLED:
            # Every fourth kill falls into the start.
            code = child.kill_after(rng.uniform(0, 1.1 * seconds if made % 4 else 0.2 * seconds))
            if code == KILLED:
                made += 1
                where = "before the run was there" if not (root / "run").exists() else "later"
                found[f"killed {where}"] += 1
                child = go_on(folder, root)
        code = child.wait() if code == KILLED else code
        same = code == 0 and ending(root / "run") == expected
        found["run finished with the same bytes" if same else f"BAD: exit code {code}: {child.said()[-300:]}"] += 1
        shutil.rmtree(root)
    return found


DAMAGES: dict[str, Callable[[Path, random.Random], object]] = {
    "truncated": lambda path, rng: path.write_bytes(path.read_bytes()[: rng.randrange(max(1, path.stat().st_size))]),
    "altered": lambda path, rng: _alter(path, rng),
    "deleted": lambda path, rng: path.unlink(),
}


def _alter(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(bytes(data))


def _victims(root: Path, folder: Path, count: int, rng: random.Random) -> list[tuple[Path, str]]:
    """Return ``count`` files below ``folder`` with a damage each, those of records before those of checkpoints."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    found = [(path.relative_to(root), damage) for path in files for damage in DAMAGES]
    rng.shuffle(found)
    return sorted(found, key=lambda victim: "checkpoints" in victim[0].parts)[:count]


def damages(folder: Path, count: int, expected: dict[str, bytes], rng: random.Random) -> Counter[str]:
    """Damage a file of a killed run, or of an evaluation, and go on."""
    found: Counter[str] = Counter()
    base = folder / "damaged-base"
    child = begin(folder, base)
    while not (base / "run" / "checkpoints" / "step-4").exists():
        time.sleep(0.001)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    evaluated = folder / "evaluated-base"
    shutil.copytree(folder / "whole", evaluated)
    evaluation = ["--problems", "4", "--samples", "2", "--pass-at", "2"]
    code = (child := Child(folder, "eval", str(evaluated / "run"), *evaluation)).wait()
    assert code == 0, child.said()
    (metrics,) = (evaluated / "run" / "eval").glob("*/metrics.json")
    numbers = metrics.read_bytes()
    tries = _victims(base, base / "run", count - 12, rng)
    tries += _victims(evaluated, metrics.parent, 12, rng)
    for path, damage in tries:
        root = folder / "damaged"
        of_evaluation = metrics.parent.name in path.parts
        shutil.copytree(evaluated if of_evaluation else base, root)
        DAMAGES[damage](root / path, rng)
        before = contents(root / "run")
        run = root / "run"
        child = Child(folder, "eval", str(run), *evaluation) if of_evaluation else go_on(folder, root)
        code = child.wait()
        if code in (1, 2):
            named = path.name in child.said() or f"{path.parent.name}" in child.said()
            left = contents(run) == before
            how = "refused by name, nothing changed" if named and left else "BAD: refused"
        elif of_evaluation:
            same = (run / metrics.relative_to(evaluated / "run")).read_bytes() == numbers
            how = "made again, the same numbers" if code == 0 and same else "BAD: other numbers"
        else:
            same = code == 0 and ending(run) == expected
            how = "same bytes at the end" if same else "BAD: another end"
            was, now = (RunDir(top / "run").read_manifest() for top in (folder / "whole", root))
            if same and any(was.get(key) != now.get(key) for key in FACTS):
                how = "BAD: a manifest with other facts"
        kind = "checkpoint" if "checkpoints" in path.parts else "evaluation" if of_evaluation else "record"
        found[f"{kind} {damage}: {how}"] += 1
        if how.startswith("BAD"):
            print(f"{path} {damage}: {how}, exit code {code}: {child.said()[-400:]}", flush=True)
        shutil.rmtree(root)
    return found


def disks(folder: Path, count: int, expected: dict[str, bytes], bytes_needed: int) -> Counter[str]:
    """Start trainings where the disk is full after a while, and again once there is room."""
    found: Counter[str] = Counter()
    disk = folder / "disk"
    disk.mkdir()
    for number in range(count):
        size = int(4096 * (bytes_needed / 4096) ** (number / max(1, count - 1)))
        root = disk / f"runs-{number}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)], check=True)
        child = begin(folder, root)
        code, said = child.wait(), child.said()
        where = "a run" if (root / "run").exists() else "no run"
        subprocess.run(["mount", "-o", "remount,size=1g", str(disk)], check=True)
        again = go_on(folder, root) if code else child
        second = again.wait() if code else 0
        same = second == 0 and ending(root / "run") == expected
        clear = code == 0 or "No space left" in said
        how = "then the same bytes" if same and clear else f"BAD: {code} {said[-200:]} / {second} {again.said()[-200:]}"
        found[f"{'enough room' if code == 0 else f'full, exit code {code}, leaves {where}'}: {how}"] += 1
        subprocess.run(["umount", str(disk)], check=True)
    return found


def main() -> None:
    """Train undisturbed, then disturb."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, count in (("kills", 60), ("damages", 70), ("disks", 30)):
        parser.add_argument(f"--{name}", type=int, default=count)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    if arguments.disks and os.geteuid():
        parser.error("small disks are mounted as root; give --disks 0")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for module in HEAVY:
        importlib.import_module(module)
    folder = Path(tempfile.mkdtemp(prefix="rlvr-safety-", dir=arguments.folder))
    started = time.monotonic()
    child = begin(folder, folder / "whole")
    assert child.wait() == 0, child.said()
    seconds = time.monotonic() - started
    expected = ending(folder / "whole" / "run")
    size = sum(path.stat().st_size for path in (folder / "whole").rglob("*") if path.is_file())
    print(f"undisturbed: {seconds:.1f} s, {len(expected)} files, {size:,} bytes", flush=True)
    rng = random.Random(arguments.seed)
    tallies: dict[str, Callable[[], Counter[str]]] = {
        "kills": lambda: kills(folder, arguments.kills, expected, seconds, rng),
        "damages": lambda: damages(folder, arguments.damages, expected, rng),
        "disks": lambda: disks(folder, arguments.disks, expected, int(1.5 * size)),
    }
    bad = 0
    for name, tally in tallies.items():
        if getattr(arguments, name):
            found = tally()
            bad += sum(number for how, number in found.items() if "BAD" in how)
            print(f"\n{name}: {getattr(arguments, name)}")
            print("\n".join(f"  {number:3d}  {how}" for how, number in sorted(found.items())), flush=True)
    shutil.rmtree(folder)
    print(f"\n{time.monotonic() - started:.0f} s; {bad} bad")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
