"""Load the problems of a task from a named set, a file, a folder or a data set of the hub."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import local_path
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.tasks.files import (
    ENDINGS,
    LISTED,
    BadRow,
    RowOrigin,
    find_text_error,
    is_data_file,
    parse_json,
    raise_row_errors,
    read_rows,
)
from rlvr_cli.tasks.hub import HubTable, looks_like_hub_id, parse_hub_id, read_hub_tables
from rlvr_cli.tasks.problem import DataSet, DataSplit, MissingFields, Problem, Split

_SPLIT_MARK = re.compile(r"(?:^|[._-])(train|dev|validation|test)(?:[._-]|$)")
# HiTab's tables, in the folder of its rows.
TABLES = ("tables.jsonl", "tables.jsonl.gz")
_ROWS_SHOWN = 3
# The default folder of `rlvr tasks fetch`, and the manifests' folder in it.
PUBLIC, FETCHED = "data/public", "fetched"


class SkippedRow(UserError):
    """A well-formed row that cannot be judged: skipped and counted.

    ``where``: its location. ``reason``: follows "rows" in the message, as `without an answer`.
    """

    def __init__(self, where: str, reason: str) -> None:
        self.reason = reason
        super().__init__(f"{where}: a row {reason} cannot be judged")


class RowReader:
    """Reads problems from rows; a task sets the class variables and defines ``problem_from``."""

    # Columns with JSON in their cells of a CSV file.
    json_columns: ClassVar[tuple[str, ...]] = ()
    # Whether a folder's files without a split in their names are read too, and split by row.
    reads_unmarked_files: ClassVar[bool] = False
    # Keys that select every row of the public set.
    all_rows_keys: ClassVar[Mapping[str, Any]] = {}
    # Whether train files are split by row if there are no dev and test files.
    splits_train_file: ClassVar[bool] = False

    if TYPE_CHECKING:
        name: str
        data: str
        data_dir: str | None
        sets: ClassVar[Mapping[str, DataSet]]

        def problem_from(self, fields: dict[str, Any], where: str) -> Problem: ...

    def load(self, split: DataSplit) -> list[Problem]:
        """Return the problems of ``split`` in ``data``, in its order.

        The split is the one in a file's name, else it is assigned by row. Without dev files, dev is an eighth of the
        train rows. ``all`` is every row of a file or folder. For a named set, ``test`` is all of its test rows,
        independently of the file's name.

        Warns:
            UserWarning: rows that cannot be judged were skipped.
        Raises:
            UserError: ``data`` does not exist, an unreadable file, malformed rows (with locations), or no problem.
        """
        path = local_path(self.data)
        if self.data in self.sets:
            problems = _load_named_set(self, split)
        elif path.exists():
            problems = _load_files(self, path, _find_files(self, path), split)
        elif looks_like_hub_id(self.data):
            problems = _load_hub(self, self.data, split)
        else:
            raise UserError(
                f"task.data={self.data!r}: no such file or folder, and not a hub id (owner/name)."
                f"{did_you_mean(self.data, self.sets)} Use a file ({LISTED}), a folder of them, a hub id (owner/name, "
                f"owner/name:configuration@revision){', or one of ' if self.sets else ''}{', '.join(self.sets)}."
            )
        if not problems:
            which = "no problem" if split == "all" else f"no {split} problem"
            raise UserError(f"task.data={self.data!r}: has {which}. Choose another split or other data.")
        return problems

    def parse_row(self, record: dict[str, Any], origin: RowOrigin) -> Problem:
        """Return the problem of a row. Raises UserError with ``origin.where``, or SkippedRow."""
        return self.problem_from({"id": origin.id, **record}, origin.where)

    def convert_record(self, value: Any) -> Any:
        """Convert a row of another format to a JSON object; return other rows unchanged."""
        return value

    def split_key(self, problem: Problem) -> str:
        """Return the key whose hash assigns the split; problems of equal keys share a split."""
        return problem.structure or problem.question

    def belongs_to_dev(self, problem: Problem) -> bool:
        """Return whether a train row is in the eighth that is dev if there are no dev files."""
        return self.assign_split(problem) == "dev"

    def assign_split(self, problem: Problem) -> Split:
        return hash_split(self.split_key(problem))

    def file_split(self, path: Path) -> str | None:
        """Return the split in the name of a folder's file; "" = split by row, None = skip the file."""
        return split_in_name(path) or ("" if self.reads_unmarked_files else None)

    def file_name_of(self, problem: Problem, split: str) -> str:
        """Return the data folder's file for a problem of the named set in train or test."""
        return f"{self.sets[self.data].files[split]}.jsonl"

    def hub_tables(self, hub_id: str, split: Split) -> list[HubTable]:
        """Return the tables with rows of ``split``; dev rows are in those of train. Raises UserError without any."""
        source = "test" if split == "test" else "train"
        data_set = _find_hub_set(self, hub_id)[1]
        if data_set is None:
            return [HubTable(source)]
        if source not in (*data_set.files, *data_set.hub_splits):
            have = " and ".join(data_set.files)
            raise UserError(f"task.data={hub_id!r}: has only {have} problems, and {split} problems were requested.")
        split_name = data_set.hub_splits.get(source, source)
        if isinstance(data_set.config, tuple):
            return [HubTable(split_name, config, ids=config) for config in data_set.config]
        return [HubTable(split_name, data_set.config)]

    def select_split(self, problems: list[Problem], split: Split) -> list[Problem]:
        """Select the problems of ``split`` from those of ``hub_tables``."""
        return problems if split == "test" else _select_train_or_dev(self, problems, split)


def _load_named_set(task: RowReader, split: DataSplit) -> list[Problem]:
    data_set = task.sets[task.data]
    if task.data_dir is None:
        first = next(iter(data_set.files)) if split == "all" else split
        return _load_hub(task, locate_data(task.sets, task.data, first, None), split)
    folder = local_path(task.data_dir)
    if split == "all":
        homes = {Path(locate_data(task.sets, task.data, home, folder)): home for home in data_set.files}
        problems = _read_files(
            task, [file for path, home in homes.items() for file in _all_files(task, find_set_files(task, path, home))]
        )
    else:
        home = "train" if split == "dev" else split
        path = Path(locate_data(task.sets, task.data, split, folder))
        problems = _load_files(task, path, find_set_files(task, path, home), split)
    return drop_conflicting(problems) if data_set.repeated else problems


def find_set_files(task: RowReader, path: Path, home: str) -> dict[str, list[Path]]:
    """Return the files by split at ``path``, the location of a named set's split ``home``. Raises UserError."""
    files = task.sets[task.data].files
    shared = path.is_dir() and len(set(files.values())) < len(files)
    return _find_files(task, path, "" if shared else home)


def _find_files(task: RowReader, path: Path, home: str = "") -> dict[str, list[Path]]:
    """Return the files by split of a file or folder; "" = split by row.

    ``home``: the split of files without a split in their names. Raises UserError without a file.
    """
    files: dict[str, list[Path]] = {"train": [], "dev": [], "test": [], "": []}
    if is_data_file(path):
        files[home or split_in_name(path) or ""].append(path)
    elif not path.is_dir():
        raise UserError(f"task.data={str(path)!r}: the name of a file of rows must end in {LISTED}.")
    else:
        # The layout of the hub's data sets.
        subfolder = path / "data"
        for file in sorted([*path.iterdir(), *(subfolder.iterdir() if subfolder.is_dir() else ())]):
            if not is_data_file(file) or file.name in TABLES:
                continue
            mark = home if home and split_in_name(file) in (None, home) else task.file_split(file)
            if mark is not None:
                files[mark].append(file)
        if not any(files.values()):
            raise UserError(
                f"task.data={str(path)!r}: no file of rows in this folder ({LISTED}; train, dev or test in its name)."
            )
    if task.splits_train_file and not files["dev"] and not files["test"]:
        files[""], files["train"] = sorted(files[""] + files["train"]), []
    return files


def _all_files(task: RowReader, files: dict[str, list[Path]]) -> list[Path]:
    every = [file for group in files.values() for file in group]
    return sorted(every) if task.reads_unmarked_files else every


def _load_files(task: RowReader, path: Path, files: dict[str, list[Path]], split: DataSplit) -> list[Problem]:
    if split == "all":
        return _read_files(task, _all_files(task, files))
    source = "train" if split == "dev" and not files["dev"] else split
    if not files[source] and not files[""]:
        have = " and ".join(mark for mark in files if files[mark])
        raise UserError(
            f"task.data={str(path)!r}: by its file names it has only {have} problems, and {split} problems were "
            "requested. Choose another split, or use the file of that split or a folder with both."
        )
    problems = _read_files(task, files[source])
    if split != "test" and not files["dev"]:
        problems = _select_train_or_dev(task, problems, split)
    return problems + [problem for problem in _read_files(task, files[""]) if task.assign_split(problem) == split]


def _select_train_or_dev(task: RowReader, train: list[Problem], split: DataSplit) -> list[Problem]:
    return [problem for problem in train if task.belongs_to_dev(problem) == (split == "dev")]


def _read_files(task: RowReader, files: Iterable[Path]) -> list[Problem]:
    files = tuple(files)
    tables = (file.with_name(name) for file in files for name in TABLES)
    stats = [(path, path.stat()) for path in (*files, *tables) if path.exists()]
    versions = tuple((path, stat.st_size, stat.st_mtime_ns, stat.st_ino) for path, stat in stats)
    kind: Any = type(task)
    problems, messages = _read_versions(kind, task.model_dump_json(), files, versions)  # type: ignore[attr-defined]
    for message in messages:
        warnings.warn(message, stacklevel=2)
    return list(problems)


# A command reads its files several times, and 50,000 rows take half a second.
@lru_cache(maxsize=4)
def _read_versions(
    kind: Any, keys: str, files: tuple[Path, ...], versions: tuple[tuple[Path, int, int, int], ...]
) -> tuple[tuple[Problem, ...], tuple[str, ...]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        problems = _parse_rows(kind.model_validate_json(keys), map(read_rows, files))
    return tuple(problems), tuple(str(warning.message) for warning in caught)


def _load_hub(task: RowReader, data: str, split: DataSplit) -> list[Problem]:
    if split == "all":
        raise UserError(f"task.data={data!r}: split `all` is for local files. Choose train, dev or test.")
    return task.select_split(_load_hub_tables(task, data, split), split)


def load_hub_problems(task: RowReader, data: str, split: str) -> list[Problem]:
    if split == "test":
        return _load_hub(task, data, "test")
    problems = _load_hub_tables(task, data, "train")
    return task.select_split(problems, "train") + task.select_split(problems, "dev")


def _load_hub_tables(task: RowReader, data: str, split: Split) -> list[Problem]:
    hub_id, config, revision = parse_hub_id(data)
    tables = [replace(table, config=config or table.config) for table in task.hub_tables(hub_id, split)]
    name, data_set = _find_hub_set(task, hub_id)
    repeated = data_set is not None and data_set.repeated
    elsewhere = ""
    if name:
        elsewhere = f" With a network, `rlvr tasks fetch {name}` downloads it to {PUBLIC}. Searched: {PUBLIC}, "
        elsewhere += f"RLVR_DATA_DIR and the folder of --data-dir.{generated_hint(task.sets)}"
    problems = _parse_rows(task, read_hub_tables(hub_id, tables, revision, repeated=repeated, elsewhere=elsewhere))
    return drop_conflicting(problems) if repeated else problems


def _find_hub_set(task: RowReader, hub_id: str) -> tuple[str, DataSet | None]:
    return next(((name, data_set) for name, data_set in task.sets.items() if data_set.hub == hub_id), ("", None))


def _parse_rows(task: RowReader, sources: Iterable[Iterable[tuple[Any, RowOrigin]]]) -> list[Problem]:
    problems: list[Problem] = []
    errors: list[str] = []
    origins: dict[str, str] = {}
    skipped: dict[str, list[str]] = {}
    for source in sources:
        for value, origin in source:
            try:
                problem = task.parse_row(_parse_record(task, value, origin), origin)
            except SkippedRow as error:
                skipped.setdefault(error.reason, []).append(origin.where)
                continue
            except UserError as error:
                errors += error.problems
                if isinstance(error, MissingFields) and len(errors) == 1:
                    errors[0] += f" Rows are read as problems of task {task.name}: use another --task, or a --reward."
                if isinstance(error, MissingFields):
                    break  # the other rows may lack it too
                continue
            if problem.id in origins:
                errors.append(
                    f"{origin.where}: id {problem.id!r} is also that of {origins[problem.id]}; ids must be distinct"
                )
            origins.setdefault(problem.id, origin.where)
            problems.append(problem)
    raise_row_errors(list(dict.fromkeys(errors)))
    for reason, where in skipped.items():
        locations = ", ".join(where[:_ROWS_SHOWN]) + (" ..." if len(where) > _ROWS_SHOWN else "")
        warnings.warn(f"{len(where)} rows {reason} were left out ({locations})", stacklevel=2)
    return problems


def _parse_record(task: RowReader, value: Any, origin: RowOrigin) -> dict[str, Any]:
    if isinstance(value, BadRow):
        raise UserError(f"{origin.where}: {value}")
    record = task.convert_record(value)
    if not isinstance(record, dict):
        raise UserError(f"{origin.where}: not a JSON object; a row is an object with the fields of a problem")
    if origin.path is not None and origin.path.name.endswith(".csv"):
        record |= {name: _parse_json_cell(record[name]) for name in task.json_columns if name in record}
    if (unwritable := find_text_error(record)) is not None:
        raise UserError(f"{origin.where}: {unwritable}")
    return {key: value for key, value in record.items() if key != "id" or value not in (None, "")}


def _parse_json_cell(text: str) -> Any:
    """Parse a CSV cell of a JSON column: an empty cell is null, invalid JSON is text."""
    try:
        return parse_json(text.encode("utf-8", "surrogatepass")) if text.strip() else None
    except BadRow:
        return text


def drop_conflicting(problems: list[Problem]) -> list[Problem]:
    """Deduplicate problems by question, without questions whose rows have different answers; warn of these."""
    answers: dict[str, set[str]] = {}
    for problem in problems:
        answers.setdefault(problem.question, set()).add(str(problem.data["answer"]))
    first = {problem.question: problem for problem in reversed(problems)}
    alike = [question for question, texts in answers.items() if len(texts) == 1]
    if len(alike) < len(answers):
        count = len(answers) - len(alike)
        warnings.warn(f"{count} questions whose rows have different answers were left out", stacklevel=2)
    return [first[question] for question in alike]


def locate_data(sets: Mapping[str, DataSet], name: str, split: str, folder: Path | None) -> str:
    """Return the location of ``split`` (dev is a subset of train): a path in ``folder`` (None = the hub), or a hub id.

    Raises UserError if the set or the folder lacks the split, or the set is not on the hub.
    """
    data_set = sets[name]
    source = "train" if split == "dev" else split
    if source not in data_set.files:
        have = " and ".join(data_set.files)
        others = ", ".join(other for other, others in sets.items() if source in others.files) or "none"
        hint = " Its dev problems are some of them (validation.split=dev, eval.split=dev)." if source == "test" else ""
        raise UserError(
            f"task.data={name}: has only {have} problems, and {split} problems are needed.{hint} Data sets of the task "
            f"with {split} problems: {others}."
        )
    if folder is None:
        if data_set.hub is None:
            raise UserError(
                f"task.data={name}: is not on the hub. Set the folder that has "
                f"{data_set.files[source]}.jsonl (or .jsonl.gz) by --data-dir, task.data_dir or RLVR_DATA_DIR."
                f"{generated_hint(sets)}"
            )
        return data_set.hub
    path = find_split_file(data_set, source, folder)
    if path is None:
        files = data_set.files[source]
        problem = f"no {files} ({LISTED}, or a folder) in it" if folder.is_dir() else "no such folder"
        hub = f" To load {data_set.hub} from the hub, set task.data_dir=null." if data_set.hub is not None else ""
        raise UserError(
            f"task.data_dir={str(folder)!r}: {problem}, and {split} problems of {name} are needed "
            f"(set by --data-dir, task.data_dir or RLVR_DATA_DIR).{hub}{generated_hint(sets)}"
        )
    return str(path)


def find_split_file(data_set: DataSet, split: str, folder: Path) -> Path | None:
    """Find the file or folder of ``split`` in a data folder; None if missing."""
    name = data_set.files.get(split)
    paths = [folder / f"{name}{ending}" for ending in ("", *ENDINGS)] if name is not None else []
    return next((path for path in paths if path.exists()), None)


def is_fetched(data_set: DataSet) -> bool:
    return any(find_split_file(data_set, split, Path(PUBLIC)) for split in data_set.files)


def generated_hint(sets: Mapping[str, DataSet]) -> str:
    names = [name for name, data_set in sets.items() if data_set.generated]
    return f" Generated alternative: {names[0]}." if names else ""


def split_in_name(path: Path) -> str | None:
    """Return the split in a file's name (`my.test.jsonl`), or None; `validation` is dev."""
    mark = _SPLIT_MARK.search(path.name)
    return mark and mark[1].replace("validation", "dev")


def hash_split(key: str) -> Split:
    """Assign a split to a key by its SHA-256: test 1/8, dev 1/8, train 6/8."""
    bucket = int(text_digest(key)[:2], 16) % 8
    return "test" if bucket == 0 else "dev" if bucket == 1 else "train"
