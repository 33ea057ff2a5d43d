"""Load the problems of a task's data: a named set, a file, a folder or a data set of the hub."""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import local_path
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.tasks.files import ENDINGS, LISTED, BadRow, RowOrigin, is_data, parsed, raise_if, read_rows, text_problem
from rlvr_cli.tasks.hub import HubTable, hub_rows, looks_like_hub_id, split_hub_id
from rlvr_cli.tasks.problem import DataSet, DataSplit, MissingFields, Problem, Split

_SPLIT_MARK = re.compile(r"(?:^|[._-])(train|dev|validation|test)(?:[._-]|$)")
# HiTab's tables lie next to its rows.
TABLES = ("tables.jsonl", "tables.jsonl.gz")
# Files whose rows may have different fields.
_UNEQUAL = (".jsonl", ".jsonl.gz", ".json")
_PLACES_SHOWN = 3
# Where `rlvr tasks fetch` puts public sets unless --data-dir is set, and inside it the manifests.
PUBLIC, FETCHED = "data/public", "fetched"


class LeftOut(UserError):
    """A well-formed row that cannot be judged; it is skipped and counted.

    Args:
        where: its location.
        reason: follows "rows" in the message, as `without an answer`.
    """

    def __init__(self, where: str, reason: str) -> None:
        self.reason = reason
        super().__init__(f"{where}: a row {reason} cannot be judged")


class FromData:
    """A task's declarations about its rows, besides ``problem_from``; all have defaults."""

    # Columns that hold JSON in a CSV file, where a cell is text.
    json_columns: ClassVar[tuple[str, ...]] = ()
    # Whether files of a folder without a split in their names are read and divided, too.
    any_file: ClassVar[bool] = False
    # Whether all rows have the same fields, also in formats that allow others.
    rows_alike: ClassVar[bool] = False
    # Keys that select every row of the public set.
    every_row: ClassVar[Mapping[str, Any]] = {}
    # Whether a file of train rows is divided like one without a split in its name if no test rows exist.
    divides_train: ClassVar[bool] = False

    if TYPE_CHECKING:
        name: str
        data: str
        data_dir: str | None
        sets: ClassVar[Mapping[str, DataSet]]

        def problem_from(self, fields: dict[str, Any], where: str) -> Problem: ...

    def load(self, split: DataSplit) -> list[Problem]:
        """Return the problems of ``split`` in ``data``, in its order.

        A file with a split in its name has that split; rows of other files are divided. Where no dev rows exist, dev
        is an eighth of the train rows, and train the rest. ``all`` takes every row of a file or folder. Of a named set,
        ``test`` is all of its test rows, whatever the name of their file.

        Warns:
            UserWarning: rows that cannot be judged were skipped.
        Raises:
            UserError: nothing at ``data``, an unreadable file, malformed rows (each with its place), or no problem.
        """
        path = local_path(self.data)
        if self.data in self.sets:
            problems = _named(self, split)
        elif path.exists():
            problems = _of_files(self, path, _files(self, path), split)
        elif looks_like_hub_id(self.data):
            problems = _hub(self, self.data, split)
        else:
            raise UserError(
                f"task.data={self.data!r}: no such file or folder, and not a hub id (owner/name)."
                f"{did_you_mean(self.data, self.sets)} Give a file ({LISTED}), a folder of them, a hub id (owner/name, "
                f"owner/name:configuration@revision){', or one of ' if self.sets else ''}{', '.join(self.sets)}."
            )
        if not problems:
            which = "no problem" if split == "all" else f"no {split} problem"
            raise UserError(f"task.data={self.data!r}: {which} in it. Choose another split, or give other data.")
        return problems

    def row(self, record: dict[str, Any], origin: RowOrigin) -> Problem:
        """Read the problem of a row. Raises UserError naming ``origin.where``, or LeftOut."""
        return self.problem_from({"id": origin.id, **record}, origin.where)

    def record(self, value: Any) -> Any:
        """Convert a row of another shape to an object; other rows are returned unchanged."""
        return value

    def divider(self, problem: Problem) -> str:
        """Return the key whose hash decides the split of a row; problems of equal keys stay together."""
        return problem.structure or problem.question

    def in_dev(self, problem: Problem) -> bool:
        """Return whether a training row belongs to the eighth that is dev if no dev rows exist."""
        return self.part_of(problem) == "dev"

    def part_of(self, problem: Problem) -> Split:
        """Return the split of a row of a file without a split in its name."""
        return split_of(self.divider(problem))

    def file_split(self, path: Path) -> str | None:
        """Return the split in the name of a folder's file; "" = divide its rows, None = skip it."""
        return split_mark(path) or ("" if self.any_file else None)

    def place_of(self, problem: Problem, split: str) -> str:
        """Return the file in a data folder for a problem of the named set in train or test."""
        return f"{self.sets[self.data].files[split]}.jsonl"

    def hub_tables(self, hub_id: str, split: Split) -> list[HubTable]:
        """Return the tables of a hub data set that have rows of ``split``; dev rows are among those of train.

        Raises UserError where it has no such split.
        """
        source = "test" if split == "test" else "train"
        data_set = _set_on_hub(self, hub_id)[1]
        if data_set is None:
            return [HubTable(source)]
        if source not in (*data_set.files, *data_set.hub_splits):
            have = " and ".join(data_set.files)
            raise UserError(
                f"task.data={hub_id!r}: this data set has {have} problems only, and {split} ones were requested."
            )
        return [HubTable(data_set.hub_splits.get(source, source), data_set.config)]

    def hub_share(self, problems: list[Problem], split: Split) -> list[Problem]:
        """Select the problems of ``split`` from those of ``hub_tables``."""
        return problems if split == "test" else _share(self, problems, split)


def _named(task: FromData, split: DataSplit) -> list[Problem]:
    data_set = task.sets[task.data]
    if task.data_dir is None:
        first = next(iter(data_set.files)) if split == "all" else split
        return _hub(task, data_location(task.sets, task.data, first, None), split)
    folder = local_path(task.data_dir)
    if split == "all":
        homes = {Path(data_location(task.sets, task.data, home, folder)): home for home in data_set.files}
        problems = _read(
            task, [file for path, home in homes.items() for file in _all(task, set_files(task, path, home))]
        )
    else:
        home = "train" if split == "dev" else split
        path = Path(data_location(task.sets, task.data, split, folder))
        problems = _of_files(task, path, set_files(task, path, home), split)
    return agreed(problems) if data_set.repeated else problems


def set_files(task: FromData, path: Path, home: str) -> dict[str, list[Path]]:
    """Return the files by split at ``path``, the location of a named set's split ``home``; undivided ones under "".

    Raises UserError without any.
    """
    places = task.sets[task.data].files
    shared = path.is_dir() and len(set(places.values())) < len(places)
    return _files(task, path, "" if shared else home)


def _files(task: FromData, path: Path, home: str = "") -> dict[str, list[Path]]:
    """Return the files by split of a file or folder, undivided ones under "".

    Args:
        home: the split of ``path`` if it is a file, and of files without a split in their names.
    Raises:
        UserError: no file.
    """
    files: dict[str, list[Path]] = {"train": [], "dev": [], "test": [], "": []}
    if is_data(path):
        files[home or split_mark(path) or ""].append(path)
    elif not path.is_dir():
        raise UserError(f"task.data={str(path)!r}: not a file of rows. Its name must end in {LISTED}.")
    else:
        # The layout of the hub's data sets.
        inside = path / "data"
        for file in sorted([*path.iterdir(), *(inside.iterdir() if inside.is_dir() else ())]):
            if not is_data(file) or file.name in TABLES:
                continue
            mark = home if home and split_mark(file) in (None, home) else task.file_split(file)
            if mark is not None:
                files[mark].append(file)
        if not any(files.values()):
            raise UserError(
                f"task.data={str(path)!r}: no file of rows in this folder ({LISTED}; train, dev or test in its name)."
            )
    if task.divides_train and not files["dev"] and not files["test"]:
        files[""], files["train"] = sorted(files[""] + files["train"]), []
    return files


def _all(task: FromData, files: dict[str, list[Path]]) -> list[Path]:
    every = [file for group in files.values() for file in group]
    return sorted(every) if task.any_file else every


def _of_files(task: FromData, path: Path, files: dict[str, list[Path]], split: DataSplit) -> list[Problem]:
    if split == "all":
        return _read(task, _all(task, files))
    source = "train" if split == "dev" and not files["dev"] else split
    if not files[source] and not files[""]:
        have = " and ".join(mark for mark in files if files[mark])
        raise UserError(
            f"task.data={str(path)!r}: by its file names this holds {have} problems, and {split} ones were requested. "
            "Choose another split, give the file of that split, or a folder with both."
        )
    problems = _read(task, files[source])
    if split != "test" and not files["dev"]:
        problems = _share(task, problems, split)
    return problems + [problem for problem in _read(task, files[""]) if task.part_of(problem) == split]


def _share(task: FromData, train: list[Problem], split: DataSplit) -> list[Problem]:
    """Select the dev eighth of train rows, or the rest."""
    return [problem for problem in train if task.in_dev(problem) == (split == "dev")]


def _read(task: FromData, files: Iterable[Path]) -> list[Problem]:
    """Read the problems of files; unchanged files are read once."""
    files = tuple(files)
    tables = (file.with_name(name) for file in files for name in TABLES)
    stats = [(path, path.stat()) for path in (*files, *tables) if path.exists()]
    versions = tuple((path, stat.st_size, stat.st_mtime_ns, stat.st_ino) for path, stat in stats)
    kind: Any = type(task)
    problems, messages = _read_once(kind, task.model_dump_json(), files, versions)  # type: ignore[attr-defined]
    for message in messages:
        warnings.warn(message, stacklevel=2)
    return list(problems)


# A command needs the rows of its files several times, and 50,000 take half a second each time.
@lru_cache(maxsize=4)
def _read_once(
    kind: Any, keys: str, files: tuple[Path, ...], versions: tuple[tuple[Path, int, int, int], ...]
) -> tuple[tuple[Problem, ...], tuple[str, ...]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        problems = _problems(kind.model_validate_json(keys), map(read_rows, files))
    return tuple(problems), tuple(str(warning.message) for warning in caught)


def _hub(task: FromData, data: str, split: DataSplit) -> list[Problem]:
    if split == "all":
        raise UserError(f"task.data={data!r}: split `all` is for local files; choose train, dev or test.")
    return task.hub_share(_hub_tables(task, data, split), split)


def hub_problems(task: FromData, data: str, split: str) -> list[Problem]:
    """Return the test problems of a hub data set, or those of train with dev. Raises UserError."""
    if split == "test":
        return _hub(task, data, "test")
    problems = _hub_tables(task, data, "train")
    return task.hub_share(problems, "train") + task.hub_share(problems, "dev")


def _hub_tables(task: FromData, data: str, split: Split) -> list[Problem]:
    hub_id, config, revision = split_hub_id(data)
    tables = [replace(table, config=config or table.config) for table in task.hub_tables(hub_id, split)]
    name, data_set = _set_on_hub(task, hub_id)
    repeated = data_set is not None and data_set.repeated
    elsewhere = ""
    if name:
        elsewhere = f" With a network, `rlvr tasks fetch {name}` downloads it to {PUBLIC}. Searched: {PUBLIC}, "
        elsewhere += f"RLVR_DATA_DIR and the folder of --data-dir.{generated_hint(task.sets)}"
    problems = _problems(task, hub_rows(hub_id, tables, revision, repeated=repeated, elsewhere=elsewhere))
    return agreed(problems) if repeated else problems


def _set_on_hub(task: FromData, hub_id: str) -> tuple[str, DataSet | None]:
    """Return the name and the set of the task with that hub id, or "" and None."""
    return next(((name, data_set) for name, data_set in task.sets.items() if data_set.hub == hub_id), ("", None))


def _problems(task: FromData, sources: Iterable[Iterable[tuple[Any, RowOrigin]]]) -> list[Problem]:
    """Read the problems of the rows of each source. Raises UserError with every problem."""
    problems: list[Problem] = []
    wrong: list[str] = []
    places: dict[str, str] = {}
    left_out: dict[str, list[str]] = {}
    for source in sources:
        for value, origin in source:
            try:
                problem = task.row(_record(task, value, origin), origin)
            except LeftOut as error:
                left_out.setdefault(error.reason, []).append(origin.where)
                continue
            except UserError as error:
                wrong += error.problems
                if isinstance(error, MissingFields) and len(wrong) == 1:
                    wrong[0] += f" Rows are read as problems of task {task.name}: use another --task, or a --reward."
                # Rows of a table have the same columns, so the first missing field is missing in all.
                unequal = origin.path is not None and origin.path.name.endswith(_UNEQUAL) and not task.rows_alike
                if isinstance(error, MissingFields) and not unequal:
                    break
                continue
            if problem.id in places:
                wrong.append(
                    f"{origin.where}: id {problem.id!r} is also that of {places[problem.id]}; ids must be distinct"
                )
            places.setdefault(problem.id, origin.where)
            problems.append(problem)
    raise_if(list(dict.fromkeys(wrong)))
    for reason, where in left_out.items():
        locations = ", ".join(where[:_PLACES_SHOWN]) + (" ..." if len(where) > _PLACES_SHOWN else "")
        warnings.warn(f"{len(where)} rows {reason} were left out ({locations})", stacklevel=2)
    return problems


def _record(task: FromData, value: Any, origin: RowOrigin) -> dict[str, Any]:
    """Return a row as a JSON object; an id that is null or an empty cell is dropped. Raises UserError."""
    if isinstance(value, BadRow):
        raise UserError(f"{origin.where}: {value}")
    record = task.record(value)
    if not isinstance(record, dict):
        raise UserError(f"{origin.where}: not a JSON object; a row is an object with the fields of a problem")
    if origin.path is not None and origin.path.name.endswith(".csv"):
        record |= {name: _json_cell(record[name]) for name in task.json_columns if name in record}
    if (unwritable := text_problem(record)) is not None:
        raise UserError(f"{origin.where}: {unwritable}")
    return {key: value for key, value in record.items() if key != "id" or value not in (None, "")}


def _json_cell(text: str) -> Any:
    """Parse a CSV cell of a JSON column; an empty cell is null, invalid JSON stays text."""
    try:
        return parsed(text.encode("utf-8", "surrogatepass")) if text.strip() else None
    except BadRow:
        return text


def agreed(problems: list[Problem]) -> list[Problem]:
    """Return the first problem of each question, without questions whose rows have different answers.

    Warns:
        UserWarning: questions were dropped.
    """
    answers: dict[str, set[str]] = {}
    for problem in problems:
        answers.setdefault(problem.question, set()).add(str(problem.data["answer"]))
    first = {problem.question: problem for problem in reversed(problems)}
    alike = [question for question, texts in answers.items() if len(texts) == 1]
    if len(alike) < len(answers):
        count = len(answers) - len(alike)
        warnings.warn(f"{count} questions whose rows have different answers were left out", stacklevel=2)
    return [first[question] for question in alike]


def data_location(sets: Mapping[str, DataSet], name: str, split: str, folder: Path | None) -> str:
    """Return the location of ``split`` of a named set: a path in ``folder``, or a hub id.

    Args:
        sets: those of the task.
        split: train, test, or dev, which is a part of train.
        folder: a folder of data sets; None = the hub.
    Raises:
        UserError: the set or the folder has no such problems, or the set is not on the hub.
    """
    data_set = sets[name]
    source = "train" if split == "dev" else split
    if source not in data_set.files:
        have = " and ".join(data_set.files)
        others = ", ".join(other for other, others in sets.items() if source in others.files) or "none"
        hint = (
            " Its dev problems are a part of them (validation.split=dev, eval.split=dev)." if source == "test" else ""
        )
        raise UserError(
            f"task.data={name}: has {have} problems only, and {split} ones are needed.{hint} Data sets of the task "
            f"that have {split} problems: {others}."
        )
    if folder is None:
        if data_set.hub is None:
            raise UserError(
                f"task.data={name}: is not on the hub. Give the folder that has "
                f"{data_set.files[source]}.jsonl (or .jsonl.gz) with --data-dir, task.data_dir or RLVR_DATA_DIR."
                f"{generated_hint(sets)}"
            )
        return data_set.hub
    path = file_of(data_set, source, folder)
    if path is None:
        files = data_set.files[source]
        problem = f"no {files} ({LISTED}, or a folder) in it" if folder.is_dir() else "no such folder"
        hub = f" To load {data_set.hub} from the hub, set task.data_dir=null." if data_set.hub is not None else ""
        raise UserError(
            f"task.data_dir={str(folder)!r}: {problem}, and {split} problems of {name} are needed "
            f"(set by --data-dir, task.data_dir or RLVR_DATA_DIR).{hub}{generated_hint(sets)}"
        )
    return str(path)


def file_of(data_set: DataSet, split: str, folder: Path) -> Path | None:
    """Return the file or folder of ``split`` in a data folder, or None."""
    name = data_set.files.get(split)
    paths = [folder / f"{name}{ending}" for ending in ("", *ENDINGS)] if name is not None else []
    return next((path for path in paths if path.exists()), None)


def is_public(data_set: DataSet) -> bool:
    """Return whether a data set is in the default folder of `rlvr tasks fetch`."""
    return any(file_of(data_set, split, Path(PUBLIC)) for split in data_set.files)


def generated_hint(sets: Mapping[str, DataSet]) -> str:
    """Return a hint at the generated problems that can replace a data set."""
    names = [name for name, data_set in sets.items() if data_set.generated]
    return f" Generated problems of its kind have the name {names[0]}." if names else ""


def split_mark(path: Path) -> str | None:
    """Return the split in a file's name (`my.test.jsonl`), if it has one; `validation` is dev."""
    mark = _SPLIT_MARK.search(path.name)
    return mark and mark[1].replace("validation", "dev")


def split_of(key: str) -> Split:
    """Return the split of a key by its SHA-256: test 1/8, dev 1/8, train 6/8."""
    bucket = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()[0] % 8
    return "test" if bucket == 0 else "dev" if bucket == 1 else "train"
