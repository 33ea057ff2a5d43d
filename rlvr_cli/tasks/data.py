"""The problems of a task's data: a set that has a name, a file, a folder or a data set of the hub."""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import local_path
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.tasks.files import ENDINGS, LISTED, BadRow, is_data, parsed, raise_if, read_rows, stem, text_problem
from rlvr_cli.tasks.hub import Hub, HubTable, hub_rows, looks_like_hub_id, parts_of
from rlvr_cli.tasks.problem import DataSet, DataSplit, MissingFields, Problem, Split

_SPLIT_MARK = re.compile(r"(?:^|[._-])(train|dev|validation|test)(?:[._-]|$)")
# What lies next to rows: HiTab's tables.
_COMPANIONS = ("tables.jsonl", "tables.jsonl.gz")
# Where a folder laid out as the hub's data sets are has its files.
_INSIDE = "data"
_PLACES_SHOWN = 3
# Where `rlvr tasks fetch` puts public sets when nothing else is said, and inside it the manifests of what was fetched.
PUBLIC, FETCHED = "data/public", "fetched"


@dataclass(frozen=True)
class RowOrigin:
    """Where a row stands.

    Attributes:
        where: what errors name: `file:line`, or the hub data set and the row's number.
        id: the id of its problem unless the row has one.
        number: of its line, or of the row.
        source: the file's name without its ending, or the hub data set's name.
        path: the file; None = of the hub.
        companion: what :meth:`FromData.read_companion` gave for the file.
    """

    where: str
    id: str
    number: int
    source: str
    path: Path | None = None
    companion: Any = None


class LeftOut(UserError):
    """A row that is well formed, yet cannot be judged: it is left out and counted.

    Args:
        where: its place.
        reason: goes on from "rows", as `without an answer`.
    """

    def __init__(self, where: str, reason: str) -> None:
        self.reason = reason
        super().__init__(f"{where}: a row {reason} cannot be judged")


class FromData:
    """What a task says of its rows, next to ``problem_from``; what it does not say has a default."""

    # Hub data sets whose layout is not a default configuration with splits `train` and `test`, by hub id.
    hubs: ClassVar[Mapping[str, Hub]] = {}
    # Columns that hold JSON in a CSV file, where a cell is text.
    json_columns: ClassVar[tuple[str, ...]] = ()
    # A folder is any collection of files: those whose names say no split are read and divided, too.
    any_file: ClassVar[bool] = False
    # What one row lacks, all lack, in files whose rows may have different fields, too.
    rows_alike: ClassVar[bool] = False
    # Keys with which the task takes every row of its public set.
    whole: ClassVar[Mapping[str, Any]] = {}
    # A file of train rows is divided as one that says no split, where there are no test rows.
    divides_train: ClassVar[bool] = False

    if TYPE_CHECKING:
        name: str
        data: str
        data_dir: str | None
        sets: ClassVar[Mapping[str, DataSet]]

        def problem_from(self, fields: dict[str, Any], where: str) -> Problem: ...

    def load(self, split: DataSplit) -> list[Problem]:
        """The problems of ``split`` in ``data``, in its order.

        A file whose name says its split serves that one; in one that does not, rows are divided. Where no dev rows
        exist, dev is an eighth of the train rows, and train the rest. ``all`` takes every row of a file or folder. Of a
        named set, ``test`` is all of its test rows, whatever the name of their file.

        Warns:
            UserWarning: rows that are no problem were left out.
        Raises:
            UserError: nothing at ``data``, an unreadable file, malformed rows (each with its place), or no problem.
        """
        found = _load(self, split)
        if not found:
            which = "no problem" if split == "all" else f"no {split} problem"
            raise UserError(f"task.data={self.data!r}: {which} in it. Choose another split, or give other data.")
        return found

    def row(self, record: dict[str, Any], place: RowOrigin) -> Problem:
        """The problem of a row. Raises UserError naming ``place.where``, or LeftOut."""
        return self.problem_from({"id": place.id, **record}, place.where)

    def record(self, value: Any) -> Any:
        """A row as an object, where the task's data has rows of another shape; else as it is."""
        return value

    def divider(self, problem: Problem) -> str:
        """What decides the split of a row whose file's name says none: problems of equal dividers stay together."""
        return problem.structure or problem.question

    def in_dev(self, problem: Problem) -> bool:
        """Whether a training row is of the eighth that serves as dev where no dev rows exist."""
        return self.part_of(problem) == "dev"

    def part_of(self, problem: Problem) -> Split:
        """The split of a row that no file's name puts into one."""
        return split_of(self.divider(problem))

    def file_split(self, path: Path) -> str | None:
        """The split of a folder's file by its name; "" = its rows are divided, None = it has no rows for the task."""
        if not is_data(path) or path.name in _COMPANIONS:
            return None
        return split_mark(path) or ("" if self.any_file else None)

    def place_of(self, problem: Problem, split: str) -> str:
        """The file inside a data folder that holds a problem of the named set, of the split train or test."""
        return f"{self.sets[self.data].files[split]}.jsonl"

    def read_companion(self, path: Path, wrong: list[str]) -> Any:
        """What lies next to a file, for :meth:`row`; what is wrong with that goes into ``wrong``."""
        return None

    def hub_tables(self, hub_id: str, split: Split) -> list[HubTable]:
        """The tables of a hub data set that have rows of ``split``; dev rows are among those of train.

        Raises UserError where it has no such split.
        """
        layout = self.hubs.get(hub_id, Hub("train", "test"))
        theirs = layout.test if split == "test" else layout.train
        if theirs is None:
            have = "test problems" if layout.train is None else "training problems"
            raise UserError(f"task.data={hub_id!r}: this data set has {have} only, and {split} ones were requested.")
        return [HubTable(theirs, config) for config in layout.configs]

    def hub_share(self, problems: list[Problem], split: Split) -> list[Problem]:
        """Those of ``split`` among the problems of ``hub_tables``."""
        return problems if split == "test" else _share(self, problems, split)


def _load(task: FromData, split: DataSplit) -> list[Problem]:
    data = task.data
    if data in task.sets:
        return _named(task, data, split, local_path(task.data_dir) if task.data_dir is not None else None)
    path = local_path(data)
    if path.is_dir() and not is_data(path):
        return _folder(task, path, split)
    if path.exists():
        return _file(task, path, split)
    if looks_like_hub_id(data):
        return _hub(task, data, split)
    raise UserError(
        f"task.data={data!r}: no such file or folder, and not a hub id (owner/name).{did_you_mean(data, task.sets)} "
        f"Give a file ({LISTED}), a folder of them, a hub id (owner/name, owner/name:configuration@revision)"
        f"{', or one of ' if task.sets else ''}{', '.join(task.sets)}."
    )


def _named(task: FromData, name: str, split: DataSplit, folder: Path | None) -> list[Problem]:
    one = task.sets[name]
    if folder is None:
        return _hub(
            task, data_location(task.sets, name, next(iter(one.files)) if split == "all" else split, None), split
        )
    distinct = agreed if _repeated(task, one.hub) else list
    shared = len(set(one.files.values())) < len(one.files)
    if split == "all":
        places = {Path(data_location(task.sets, name, part, folder)): part for part in one.files}
        paths: list[Path] = []
        for path, part in places.items():
            paths += _every(task, _files(task, path, "" if shared else part)) if path.is_dir() else [path]
        return distinct(_read(task, paths))
    home = "train" if split == "dev" else split
    path = Path(data_location(task.sets, name, split, folder))
    if path.is_dir():
        return distinct(_folder(task, path, split, "" if shared else home))
    found = distinct(_read(task, [path]))
    return found if split == "test" else _share(task, found, split)


def _files(task: FromData, folder: Path, home: str = "") -> dict[str, list[Path]]:
    """The folder's files by split, undivided ones under "".

    Args:
        home: the split that the folder is the place of, and so are its files whose name says none; "" = of several.
    Raises:
        UserError: there is none.
    """
    files: dict[str, list[Path]] = {"train": [], "dev": [], "test": [], "": []}
    inside = folder / _INSIDE
    for path in sorted([*folder.iterdir(), *(inside.iterdir() if inside.is_dir() else ())]):
        mark = task.file_split(path)
        if home and not mark and split_at_home(path, home):
            mark = home
        if mark is not None:
            files[mark].append(path)
    if not any(files.values()):
        raise UserError(
            f"task.data={str(folder)!r}: no file of rows in this folder ({LISTED}; train, dev or test in its name)."
        )
    return files


def _every(task: FromData, files: dict[str, list[Path]]) -> list[Path]:
    every = [path for group in files.values() for path in group]
    return sorted(every) if task.any_file else every


def _folder(task: FromData, folder: Path, split: DataSplit, home: str = "") -> list[Problem]:
    files = _files(task, folder, home)
    if task.divides_train and not files["dev"] and not files["test"]:
        files[""], files["train"] = sorted(files[""] + files["train"]), []
    if split == "all":
        return _read(task, _every(task, files))
    source = "train" if split == "dev" and not files["dev"] else split
    if not files[source] and not files[""]:
        have = ", ".join(mark for mark in files if files[mark])
        raise UserError(
            f"task.data={str(folder)!r}: no file of {source} rows in this folder (it has {have}). Choose another split."
        )
    found = _read(task, files[source])
    if split != "test" and not files["dev"]:
        found = _share(task, found, split)
    return found + _divided(task, _read(task, files[""]), split) if files[""] else found


def _file(task: FromData, path: Path, split: DataSplit) -> list[Problem]:
    if not is_data(path):
        raise UserError(f"task.data={str(path)!r}: not a file of rows. Its name must end in {LISTED}.")
    mark = split_mark(path)
    if mark == "train" and task.divides_train:
        mark = None
    if mark is not None and split not in (mark, "all") and (mark, split) != ("train", "dev"):
        raise UserError(
            f"task.data={str(path)!r}: by its name this file holds {mark} problems, and {split} ones were requested. "
            "Give a folder with both, or the file of that split."
        )
    found = _read(task, [path])
    if split == "all":
        return found
    if mark is None:
        return _divided(task, found, split)
    return _share(task, found, split) if mark == "train" else found


def _share(task: FromData, train: list[Problem], split: DataSplit) -> list[Problem]:
    """The dev eighth of train rows, or the rest."""
    return [problem for problem in train if task.in_dev(problem) == (split == "dev")]


def _divided(task: FromData, problems: list[Problem], split: DataSplit) -> list[Problem]:
    """Those of ``split`` among rows whose file says no split."""
    return [problem for problem in problems if task.part_of(problem) == split]


PlacedRows = Iterable[tuple[Any, RowOrigin]]


# What was read last: a command asks for the rows of its files several times, and 50,000 take half a second each time.
_READ: dict[Any, tuple[list[Problem], list[str]]] = {}
_KEPT = 4


def _read(task: FromData, paths: Iterable[Path]) -> list[Problem]:
    """The problems of files; those of files that were read before and did not change are not read again."""
    files = list(paths)
    key = type(task), task.model_dump_json(), tuple(map(_version, files))  # type: ignore[attr-defined]
    if key not in _READ:
        wrong: list[str] = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            found = _problems(task, (_file_rows(task, path, wrong) for path in files), wrong)
        while len(_READ) >= _KEPT:
            del _READ[next(iter(_READ))]
        _READ[key] = found, [str(one.message) for one in caught]
    problems, said = _READ[key]
    for message in said:
        warnings.warn(message, stacklevel=2)
    return list(problems)


def _version(path: Path) -> tuple[Any, ...]:
    """What changes when a file, or what lies in the folder of a saved data set or next to the file, does."""
    near = [path, *(path.iterdir() if path.is_dir() else (path.parent / name for name in _COMPANIONS))]
    found = [(one, one.stat()) for one in near if one.exists()]
    return tuple((str(one), stat.st_size, stat.st_mtime_ns, stat.st_ino) for one, stat in found)


def _hub(task: FromData, data: str, split: DataSplit) -> list[Problem]:
    if split == "all":
        raise UserError(f"task.data={data!r}: split `all` is for local files; choose train, dev or test.")
    return task.hub_share(_hub_tables(task, data, split), split)


def hub_problems(task: FromData, data: str, split: str) -> list[Problem]:
    """The test problems of a hub data set, or those of train with dev. Raises UserError."""
    if split == "test":
        return _hub(task, data, "test")
    found = _hub_tables(task, data, "train")
    return task.hub_share(found, "train") + task.hub_share(found, "dev")


def _hub_tables(task: FromData, data: str, split: Split) -> list[Problem]:
    """The problems of the tables that have rows of ``split``."""
    hub_id, config, revision = parts_of(data)
    tables = [replace(table, config=config or table.config) for table in task.hub_tables(hub_id, split)]
    records = hub_rows(hub_id, tables, revision, repeated=_repeated(task, hub_id), elsewhere=_elsewhere(task, hub_id))
    found = _problems(task, [((value, RowOrigin(*place)) for value, place in table) for table in records], [])
    return agreed(found) if _repeated(task, hub_id) else found


def _elsewhere(task: FromData, hub_id: str) -> str:
    """What else has the problems of a hub data set that cannot be loaded, or some of their kind."""
    named = [name for name, one in task.sets.items() if one.hub == hub_id]
    if not named:
        return ""
    looked = (
        f" `rlvr tasks fetch {named[0]}`, where there is a network, puts it into {PUBLIC}; it is looked for there, in "
        "RLVR_DATA_DIR and in the folder of --data-dir."
    )
    return looked + generated_hint(task.sets)


def _repeated(task: FromData, hub_id: str | None) -> bool:
    return hub_id is not None and hub_id in task.hubs and task.hubs[hub_id].repeated


def _file_rows(task: FromData, path: Path, wrong: list[str]) -> PlacedRows:
    companion = task.read_companion(path, wrong)
    for number, where, value in read_rows(path):
        if path.name.endswith(".csv") and isinstance(value, dict):
            value = {name: _cell(cell, name in task.json_columns) for name, cell in value.items()}
        yield value, RowOrigin(where, f"{path.name}:{number}", number, stem(path), path, companion)


def _cell(text: str, is_json: bool) -> Any:
    """The value of a CSV cell; where JSON is expected, an empty one is null and what is no JSON is text."""
    if not is_json:
        return text
    try:
        return parsed(text.encode("utf-8", "surrogatepass")) if text.strip() else None
    except BadRow:
        return text


def _problems(task: FromData, sources: Iterable[PlacedRows], wrong: list[str]) -> list[Problem]:
    """The problems of rows. Raises UserError with everything that is wrong, what is in ``wrong`` first."""
    found: list[Problem] = []
    places: dict[str, str] = {}
    left_out: dict[str, list[str]] = {}
    for source in sources:
        for value, place in source:
            try:
                problem = task.row(_record(task, value, place), place)
            except LeftOut as error:
                left_out.setdefault(error.reason, []).append(place.where)
                continue
            except UserError as error:
                wrong += error.problems
                if isinstance(error, MissingFields) and len(wrong) == 1:
                    wrong[0] += f" Rows are read as problems of task {task.name}: give another --task, or a --reward."
                # Rows of a table have the same columns: what the first one lacks, all lack.
                unequal = place.path is not None and place.path.name.endswith(_UNEQUAL) and not task.rows_alike
                if isinstance(error, MissingFields) and not unequal:
                    break
                continue
            if problem.id in places:
                again = f"{place.where}: id {problem.id!r} is also that of {places[problem.id]}; ids must be distinct"
                wrong.append(again)
            places.setdefault(problem.id, place.where)
            found.append(problem)
    raise_if(list(dict.fromkeys(wrong)))
    for reason, where in left_out.items():
        shown = ", ".join(where[:_PLACES_SHOWN]) + (" ..." if len(where) > _PLACES_SHOWN else "")
        warnings.warn(f"{len(where)} rows {reason} were left out ({shown})", stacklevel=2)
    return found


# Files whose rows may have different fields.
_UNEQUAL = (".jsonl", ".jsonl.gz", ".json")


def _record(task: FromData, value: Any, place: RowOrigin) -> dict[str, Any]:
    """A row as an object that can be written; an id of null, or of an empty cell, is none. Raises UserError."""
    if isinstance(value, BadRow):
        raise UserError(f"{place.where}: {value}")
    record = task.record(value)
    if not isinstance(record, dict):
        raise UserError(f"{place.where}: not a JSON object; a row is an object with the fields of a problem")
    problem = text_problem(record)
    if problem is not None:
        raise UserError(f"{place.where}: {problem}")
    return {key: part for key, part in record.items() if key != "id" or part not in (None, "")}


def agreed(problems: list[Problem]) -> list[Problem]:
    """The first of each question's problems; none of a question that has different answers.

    Warns:
        UserWarning: questions were left out because their rows do not agree.
    """
    answers: dict[str, set[str]] = {}
    for problem in problems:
        answers.setdefault(problem.question, set()).add(str(problem.data["answer"]))
    first = {problem.question: problem for problem in reversed(problems)}
    alike = {question for question, found in answers.items() if len(found) == 1}
    if len(alike) < len(answers):
        count = len(answers) - len(alike)
        warnings.warn(f"{count} questions whose rows have different answers were left out", stacklevel=2)
    return [first[question] for question in answers if question in alike]


def data_location(sets: Mapping[str, DataSet], name: str, split: str, folder: Path | None) -> str:
    """Where the problems of ``split`` of a named data set are: a path inside ``folder``, or a hub id.

    Args:
        sets: those of the task.
        split: train, test, or dev, which is a part of train.
        folder: a folder of data sets; None = the hub.
    Raises:
        UserError: the set has no such problems, the folder does not have them, or it is not on the hub.
    """
    one = sets[name]
    source = "train" if split == "dev" else split
    if source not in one.files:
        have = " and ".join(one.files)
        others = ", ".join(other for other, others in sets.items() if source in others.files) or "none"
        hint = " Its dev problems are a part of them (eval.split=dev, --split dev)." if source == "test" else ""
        raise UserError(
            f"task.data={name}: has {have} problems only, and {split} ones are needed.{hint} Data sets of the task "
            f"that have {split} problems: {others}."
        )
    if folder is None:
        if one.hub is None:
            raise UserError(
                f"task.data={name}: is not on the hub. Give the folder that has "
                f"{one.files[source]}.jsonl (or .jsonl.gz) with --data-dir, task.data_dir or RLVR_DATA_DIR."
                f"{generated_hint(sets)}"
            )
        return one.hub
    found = file_of(one, source, folder)
    if found is None:
        what = f"no {one.files[source]} ({LISTED}, or a folder) in it" if folder.is_dir() else "no such folder"
        hub = f" To load {one.hub} from the hub, set task.data_dir=null." if one.hub is not None else ""
        raise UserError(
            f"task.data_dir={str(folder)!r}: {what}, and {split} problems of {name} are needed "
            f"(set by --data-dir, task.data_dir or RLVR_DATA_DIR).{hub}{generated_hint(sets)}"
        )
    return str(found)


def file_of(one: DataSet, split: str, folder: Path) -> Path | None:
    """The file or folder with the problems of ``split`` inside a data folder; None where there is none."""
    name = one.files.get(split)
    places = [folder / f"{name}{ending}" for ending in ("", *ENDINGS)] if name is not None else []
    return next((place for place in places if place.exists()), None)


def is_public(one: DataSet) -> bool:
    """Whether a data set lies where `rlvr tasks fetch` puts them when nothing else is said."""
    return any(file_of(one, split, Path(PUBLIC)) for split in one.files)


def generated_hint(sets: Mapping[str, DataSet]) -> str:
    """What the generated problems are called that may stand in for a data set."""
    made = [name for name, one in sets.items() if one.generated]
    return f" Generated problems of its kind have the name {made[0]}." if made else ""


def split_mark(path: Path) -> str | None:
    """The split that a file's name says (`my.test.jsonl`), if it says one; `validation` is dev."""
    mark = _SPLIT_MARK.search(path.name)
    return None if mark is None else "dev" if mark[1] == "validation" else mark[1]


def split_at_home(path: Path, home: str) -> bool:
    """Whether a file has rows of ``home``, in a folder that is the place of that split alone."""
    return is_data(path) and path.name not in _COMPANIONS and split_mark(path) in (None, home)


def split_of(key: str) -> Split:
    """The split that a key belongs to: test 1/8, dev 1/8, train 6/8, by SHA-256."""
    bucket = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()[0] % 8
    return "test" if bucket == 0 else "dev" if bucket == 1 else "train"
