"""Load a configuration from layers, later ones winning, and report every problem at once.

Layers, from the lowest: schema defaults, presets of the chosen model, task and method (the base method, then its
modifiers), the environment (RLVR_DATA_DIR), `--config` files from left to right, each over the files that it includes,
`--method` / `--task` / `--model`, dotted overrides.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

from rlvr_cli.config.checks import cross_field_problems
from rlvr_cli.config.keys import KEYS
from rlvr_cli.config.schema import Config
from rlvr_cli.config.user_files import Imports, strip_folders
from rlvr_cli.core.errors import ConfigError, UserError
from rlvr_cli.core.include import load_source_files
from rlvr_cli.core.keys import Schema
from rlvr_cli.core.layers import Layer, Merged, order_overrides, override_label, parse_override, validate
from rlvr_cli.core.recipes import config_file
from rlvr_cli.core.section import Section
from rlvr_cli.core.version import FORMAT, FORMAT_KEY
from rlvr_cli.core.yaml import YamlDocument, dump, parse, read_text
from rlvr_cli.methods.names import BASES, nearest_method, parse_method_name, presets_of
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.tasks import Task
from rlvr_cli.tasks.data import PUBLIC, is_fetched
from rlvr_cli.tasks.sets import check_folder, data_sets, is_generated, task_kinds

DATA_DIR_VARIABLE = "RLVR_DATA_DIR"
PRESETS = Path(__file__).parent / "presets"
PRESET_FOLDERS = {"model": "models", "task": "tasks"}
ABOUT_THE_MODEL = ("hub", "architecture", "tasks")


@dataclass(frozen=True)
class LoadedConfig:
    """A configuration with the origins of its values."""

    config: Config
    merged: Merged

    def origin(self, *path: str) -> str:
        """Return the origin of a key, as `origin("method", "policy_loss", "n")`; by default `default`."""
        return str(self.merged.origin(path) or "default")


@dataclass(frozen=True)
class SweepRow:
    """A row of a sweep file as a configuration file, `FILE:ROW`. ``layers``: its values, over those of ``files``."""

    files: tuple[Path, ...]
    layers: tuple[Layer, ...]


def load_config(
    config_files: Sequence[Path | SweepRow] = (),
    method: str | None = None,
    task: str | None = None,
    model: str | None = None,
    overrides: Sequence[str] = (),
    import_files: bool = False,
    of_task: bool = True,
    from_start: bool = False,
) -> Config:
    """Load the configuration of a run.

    Args:
        from_start: whether relative paths in a run's configuration are resolved from the folder where the run was
            started. Otherwise they stay as written, for comparing runs.
        import_files: whether to import user files, as commands that train, sample or judge do. Otherwise such a task
            and method have unchecked keys, and no problems, prompts, verdicts or gradients.
        of_task: whether a model's name selects its preset for the task, as `lab` for `lab-countdown`.
    Raises:
        ConfigError: a UserError with every problem, each with the file and line, option or override of the value.
    """
    return load(config_files, method, task, model, overrides, import_files, of_task, from_start).config


def load(
    config_files: Sequence[Path | SweepRow] = (),
    method: str | None = None,
    task: str | None = None,
    model: str | None = None,
    overrides: Sequence[str] = (),
    import_files: bool = False,
    of_task: bool = True,
    from_start: bool = False,
) -> LoadedConfig:
    problems: list[tuple[str, str]] = []
    written: dict[str, str] = {}
    paths = written if from_start else None
    imports = Imports(allowed=import_files)
    files, of_sources = list[Layer](), list[Layer]()
    for source in config_files:
        row = source if isinstance(source, SweepRow) else SweepRow((source,), ())
        of_row = list(_file_layers(row.files, problems, imports, paths))
        files += of_row
        # A row's layers rank as overrides, which they are in the run of its trial.
        of_sources += [*of_row, *map(imports.layer, row.layers)]
    user_layers = [
        *of_sources,
        *(
            imports.layer(Layer(f"--{section} {name}", {section: {"name": name}}))
            for section, name in (("method", method), ("task", task), ("model", model))
            if name is not None
        ),
        *map(imports.layer, order_overrides(KEYS, list(_override_layers(overrides, problems)))),
    ]
    merged = _merge(imports.schema, user_layers, presets=tuple(_preset_layers(imports, user_layers, of_task)))
    if of_task:
        _apply_task_preset(merged)
    _add_environment(merged, files)
    unchecked = not import_files and imports.schema is not KEYS
    root = cast("type[Config]", imports.schema.root)
    # The keys of a user file are unknown until it is imported.
    config, invalid = validate(root, merged, (lambda *_: []) if unchecked else cross_field_problems)
    problems += invalid
    if problems:
        raise ConfigError(problems)
    if config.task.data in written:
        config.task._written_data = written[config.task.data]
    return LoadedConfig(config, merged)


def dump_yaml(config: Config) -> str:
    """Return the resolved configuration as YAML, from which `load_config` returns an equal one."""
    return dump({FORMAT_KEY: FORMAT, **as_plain(config)})


def as_plain(config: Config) -> dict[str, Any]:
    plain: dict[str, Any] = _to_lists(config.model_dump())
    return plain


def leaves(config: Config) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the path and plain value of every key in schema order, with file names without folders."""
    yield from _leaves(as_plain(config), config, ())


def _leaves(values: dict[str, Any], section: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in values.items():
        key_path, inner = (*path, key), getattr(section, key)
        if isinstance(inner, Section):
            yield from _leaves(value, inner, key_path)
        else:
            yield key_path, strip_folders(".".join(key_path), value)


def _to_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _to_lists(inner) for key, inner in value.items()}
    return list(value) if isinstance(value, tuple) else value


def preset_names(section: str) -> list[str]:
    if section == "method":
        return list(BASES)
    return sorted(path.stem for path in (PRESETS / PRESET_FOLDERS[section]).glob("*.yaml"))


@cache
def preset_document(folder: str, name: str) -> YamlDocument:
    return parse(read_text(preset_path(folder, name)))


def preset_path(folder: str, name: str) -> Path:
    return PRESETS / folder / f"{name}.yaml"


def preset_of_task(model: str, task: str) -> str:
    """Return a model's preset for a task: `lab-countdown` for `lab` with Countdown."""
    own = f"{model}-{task}"
    return own if own in preset_names("model") else model


def preset_task(model: str) -> str | None:
    name: str | None = None
    if model in preset_names("model"):
        name = preset_document("models", model).data.get("task", {}).get("name")
    return name


def _apply_task_preset(merged: Merged) -> None:
    """Replace the model's name by its preset for the task, so that a run records it."""
    name = _chosen_name(merged.data, "model")
    own = preset_of_task(name, _chosen_name(merged.data, "task"))
    if own != name:
        merged.data["model"] = {**merged.data.get("model", {}), "name": own}
        merged.layers.setdefault(("model", "name"), Layer(f"preset models/{own}.yaml", {}, preset=True))


def _merge(schema: Schema, layers: Iterable[Layer], presets: tuple[Layer, ...] = ()) -> Merged:
    merged = Merged(schema, presets)
    for layer in layers:
        merged.add(layer)
    return merged


def _file_layers(
    files: Sequence[Path], problems: list[tuple[str, str]], imports: Imports, written: dict[str, str] | None = None
) -> Iterator[Layer]:
    """Yield the layers of files, each over its includes.

    ``written``: collects resolved path -> relative path of a run started in another folder; None = keep paths.
    """
    for file in files:
        for source in load_source_files(config_file(file), tuple(Config.model_fields), problems):
            values = source.values if written is None else _resolve_from_start(source.path, source.values, written)
            layer = Layer(str(source.path), values, source.document.lines)
            yield imports.layer(layer, source.path.parent)


# Keys that may hold a path. User files are in a run's folder `code`.
_PATHS = (
    *(("model", "name"), ("task", "data"), ("task", "data_dir"), ("method", "data"), ("launch", "deepspeed")),
    ("method", "advantage", "teacher"),
)


def _resolve_from_start(path: Path, values: dict[str, Any], written: dict[str, str]) -> dict[str, Any]:
    """Resolve the relative paths of a run's configuration from the folder where it was started."""
    start = _start_folder(path, values)
    if start is None or not start.is_dir():
        return values
    values = copy.deepcopy(values)
    for section, key, name in _relative_paths(values):
        if (start / name).exists() or Path(name).exists() or name.startswith("."):
            section[key] = os.path.normpath(start / name)
            written[section[key]] = name
    return values


def _start_folder(path: Path, values: Mapping[str, Any]) -> Path | None:
    """Return the folder where the configuration's run was started; None without a run, or if it is the current one."""
    run = RunDir(path.parent)
    start, section = run.started_in(), values.get("run")
    if start is None or start == Path.cwd():
        return None
    folder = section.get("dir") if isinstance(section, dict) else None
    below = Path(folder if isinstance(folder, str) else os.sep, run.name)
    # A project that was moved or copied as a whole has its files in the current folder.
    moved_together = not below.is_absolute() and ".." not in below.parts and below.is_dir() and below.samefile(run.path)
    return None if moved_together else start


def _relative_paths(values: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Yield section, key and value of each relative path."""
    for *sections, key in _PATHS:
        section: Any = values
        for inner in sections:
            section = section.get(inner) if isinstance(section, dict) else None
        name = section.get(key) if isinstance(section, dict) else None
        if not isinstance(name, str) or name.startswith(("~", os.sep)):
            continue
        of_preset = sections == ["model"] and name in preset_names("model")
        if of_preset or name in data_sets() or (sections == ["launch"] and not {".", os.sep} & {*name}):
            continue
        yield section, key, name


def _override_layers(overrides: Sequence[str], problems: list[tuple[str, str]]) -> Iterable[Layer]:
    for text in overrides:
        try:
            yield parse_override(KEYS, text)
        except ValueError as error:
            problems.append((override_label(text), str(error)))


def _add_environment(merged: Merged, files: Sequence[Layer]) -> None:
    """Set the folder of a named data set unless a layer sets one, or `data_dir: null`.

    It is RLVR_DATA_DIR, else the folder of fetched public sets if it has the set; a run thus records the folder used. A
    null in the file of a run without a named data set does not apply to a data set named by a higher layer: a later
    file, an option or an override.
    """
    values = merged.data.get("task")
    task = values if isinstance(values, dict) else {}
    kind = merged.schema.choices(("task",)).get(_chosen_name(merged.data, "task"))
    data = task.get("data", kind.model_fields["data"].default if kind is not None else None)
    if not isinstance(data, str) or data not in data_sets() or is_generated(data):
        return
    folder, origin = os.environ.get(DATA_DIR_VARIABLE), f"environment {DATA_DIR_VARIABLE}"
    if not folder and is_fetched(data_sets()[data]):
        folder, origin = str(Path(PUBLIC).absolute()), f"folder {PUBLIC}"
    if not folder:
        return
    if merged.set_by_user(("task", "data_dir")):
        # Options and overrides are above all files; the layer of an unnamed data set is below all others.
        heights: dict[Any, int] = {None: -1, **{id(file): height for height, file in enumerate(files)}}
        layers = [merged.layers.get(("task", key)) for key in ("data_dir", "data")]
        of_folder, of_data = (heights.get(layer and id(layer), len(files)) for layer in layers)
        if task["data_dir"] is not None or of_folder >= of_data:
            return
    merged.add(Layer(origin, {"task": {"data_dir": folder}}))


def _preset_layers(imports: Imports, user_layers: Sequence[Layer], of_task: bool) -> Iterable[Layer]:
    chosen = _merge(imports.schema, user_layers).data
    task = _chosen_task(chosen)
    for section, folder in PRESET_FOLDERS.items():
        name = task if section == "task" else _chosen_name(chosen, section)
        name = preset_of_task(name, task) if section == "model" and of_task else name
        if name in preset_names(section):
            document = preset_document(folder, name)
            label = f"preset {folder}/{name}.yaml"
            yield Layer(label, _for_task(document.data, task), document.lines, preset=True)
            if task in document.data.get("tasks", {}):
                below = {path[2:]: line for path, line in document.lines.items() if path[:2] == ("tasks", task)}
                lines = {("task", *path): line for path, line in below.items()}
                yield Layer(label, {"task": document.data["tasks"][task]}, lines, preset=True)
    name, tables = _chosen_name(chosen, "method"), imports.tables
    if tables is None:
        return
    try:
        method = parse_method_name(name, tables)
    except ValueError as error:
        methods = (layer.data.get("method") for layer in user_layers)
        files = [file for values in methods if isinstance(values, dict) for file in values.get("files") or ()]
        if files and not imports.allowed:
            path = str(files[-1]).partition("@")[0]
            hint = f"The configuration's method is of a file: name it `{path}`, or with a modifier `{path}+lopti`"
            raise UserError(f"method.name: {error}. {hint}.") from None
        # The name is reported; the other keys are checked against the nearest method.
        method = parse_method_name(nearest_method(name, tables) or _default_name("method"), tables)
    for preset in presets_of(method, tables):
        for values in preset.values_for(task, method.base):
            yield Layer(preset.label, {"method": values}, preset=True)


def _for_task(values: dict[str, Any], name: str) -> dict[str, Any]:
    values = {section: inner for section, inner in values.items() if section not in ABOUT_THE_MODEL}
    own = values.get("task", {})
    if own.get("name", name) != name:
        return {section: inner for section, inner in values.items() if section != "task"}
    return values


def _chosen_name(chosen: dict[Any, Any], section: str) -> str:
    return _explicit_name(chosen, section) or _default_name(section)


def _explicit_name(chosen: dict[Any, Any], section: str) -> str | None:
    values = chosen.get(section)
    name = values.get("name") if isinstance(values, dict) else None
    return name if isinstance(name, str) else None


def _chosen_task(chosen: dict[Any, Any]) -> str:
    return _explicit_name(chosen, "task") or preset_task(_chosen_name(chosen, "model")) or _default_name("task")


def _default_name(section: str) -> str:
    name: str = Config.model_fields[section].get_default(call_default_factory=True).name
    return name


RULES = ("paper", "strict")


def choose_task(
    name: str, overrides: Sequence[str] = (), rule: str | None = None, model: str | None = None, generated: bool = False
) -> Task:
    """Load task ``name`` with ``overrides`` (`task.key=value`).

    ``generated``: use generated problems, unless the overrides name data. ``rule``: None = that of the overrides;
    `paper` of Knights & Knaves is the Logic-RL paper's score. ``model``: a model whose preset is a layer. Raises
    UserError for an unknown task, rule, key or value, or a folder of data without a data set's name.
    """
    foreign = [text for text in overrides if not text.startswith("task.") or text.startswith("task.name=")]
    if foreign:
        raise UserError([f"{text}: only keys of the task are set here, as task.style=..." for text in foreign])
    if rule is not None and rule not in RULES:
        raise UserError(f"--rule {rule}: must be one of {', '.join(RULES)}.")
    if generated and not any(text.startswith(("task.data=", "task.data_dir=")) for text in overrides):
        overrides = ["task.data=null", *overrides]
    if rule is not None:
        key, value = task_kinds().get(name, Task).rule_override(rule)
        if any(text.startswith(f"task.{key}=") for text in overrides):
            raise UserError(f"--rule {rule} and task.{key} cannot be combined. Remove one.")
        overrides = [*overrides, f"task.{key}={value}"]
    of_task = model is not None
    task = load_config(task=name, model=model, overrides=overrides, import_files=True, of_task=of_task).task
    check_folder(task)
    return task
