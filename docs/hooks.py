"""What `make site` adds to the pages of docs/: links that leave docs/, and the reference made from the code.

A file outside docs/ that a page links to (README.md, a source file, a recipe) becomes a page under repository/. A line
`<!-- site: NAME -->` becomes what ``REFERENCE[NAME]`` returns; GitHub shows the page without it.
"""

from __future__ import annotations

import contextlib
import io
import json
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
DOCS = "docs/"
OUTSIDE = "repository/"
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)(?=[)#])")
MARKER = re.compile(r"^<!-- site: (\w+) -->$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
IMAGES = (".svg", ".png")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".json": "json", ".toml": "toml", ".cff": "yaml"}


def on_config(config: Any) -> Any:
    """Anchors as GitHub makes them; a notebook stands in the nav as its page."""
    from pymdownx.slugs import slugify

    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")
    config.nav = json.loads(json.dumps(config.nav).replace(".ipynb", ".md"))
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of notebooks and of what lies outside docs/."""
    for notebook in sorted((ROOT / DOCS).rglob("*.ipynb")):
        uri = notebook.relative_to(ROOT / DOCS).with_suffix(".md").as_posix()
        files.append(File.generated(config, uri, content=_notebook(notebook)))
    waiting = [f"{DOCS}{file.src_uri}" for file in files.documentation_pages()]
    while waiting:
        origin = waiting.pop()
        for target in _linked(origin):
            if _uri(target).startswith(OUTSIDE) and files.get_file_from_path(_uri(target)) is None:
                if target.endswith(IMAGES):
                    files.append(File.generated(config, _uri(target), abs_src_path=str(ROOT / target)))
                    continue
                files.append(File.generated(config, _uri(target), content=_page(target)))
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """The page with its links to pages of the site, and with its part of the reference."""
    uri = page.file.src_uri
    origin = uri.removeprefix(OUTSIDE) if uri.startswith(OUTSIDE) else f"{DOCS}{uri}"
    if not uri.startswith(OUTSIDE) or (ROOT / origin).is_file():
        markdown = _rewritten(markdown, origin, uri)
    return MARKER.sub(lambda match: REFERENCE[match[1]](), markdown)


def _linked(origin: str) -> Iterator[str]:
    """The paths in the repository that a page links to; the files of a folder."""
    path = ROOT / origin
    if path.is_dir():
        yield from sorted(f"{origin}/{one.name}" for one in path.iterdir() if one.is_file())
    elif path.suffix == ".md" and path.is_file():
        for match in LINK.finditer(FENCED.sub("", path.read_text(encoding="utf-8"))):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), match[1]))
            if (ROOT / target).exists():
                yield target


def _uri(target: str) -> str:
    """Where a path of the repository stands in the site."""
    if target.startswith(DOCS):
        target = f"{target}/README.md" if (ROOT / target).is_dir() else target
        return target.removeprefix(DOCS).replace(".ipynb", ".md")
    return f"{OUTSIDE}{target if target.endswith(('.md', *IMAGES)) else f'{target}.md'}"


def _rewritten(text: str, origin: str, uri: str) -> str:
    def link(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), match[1]))
        return posixpath.relpath(_uri(target), posixpath.dirname(uri) or ".")

    return LINK.sub(link, text)


def _page(target: str) -> str:
    """A page for a file or folder outside docs/."""
    path = ROOT / target
    if path.is_dir():
        rows = [
            f"- [{one.name}]({path.name}/{posixpath.basename(_uri(one.name))})"
            for one in sorted(path.iterdir())
            if one.is_file()
        ]
        return "\n".join([f"# {target}", "", *rows, ""])
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    head = "---\nsearch:\n  exclude: true\n---\n"
    return f"{head}# {target}\n\n````{LANGUAGES.get(path.suffix, 'text')}\n{text}\n````\n"


def _notebook(path: Path) -> str:
    """The cells of a notebook as Markdown, with what they printed."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in cell.get("outputs", ()):
            shown = output.get("text") or output["data"]["text/plain"]
            parts.append(f"```text\n{''.join(shown).rstrip()}\n```")
    return "\n\n".join([*parts, ""])


def _table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in lines
    )


def _text(text: str) -> str:
    """Plain text in Markdown: what stands in backticks is code already."""
    parts = text.split("`")
    return "`".join(
        part if number % 2 else re.sub(r"([<>*_\[\]#])", r"\\\1", part) for number, part in enumerate(parts)
    )


def _config() -> str:
    from rlvr_cli.config.keys import KEYS
    from rlvr_cli.core.yaml import yaml_text

    sections: dict[str, list[tuple[str, ...]]] = {}
    for key in KEYS.keys:
        default = yaml_text(list(key.default) if isinstance(key.default, tuple) else key.default)
        kinds = f"{', '.join(f'`{kind}`' for kind in key.kinds)}: " if key.kinds else ""
        row = (f"`{key.name}`<br>`{default}`", f"{kinds}{_text(key.meaning)}<br><small>{_text(key.type)}</small>")
        sections.setdefault(key.name.partition(".")[0], []).append(row)
    head = ("key and default", "meaning and values")
    return "\n\n".join(f"## {name}\n\n{_table(head, rows)}" for name, rows in sections.items())


def _metrics() -> str:
    from rlvr_cli.store.metrics import METRICS, metric

    forms = {name: metric(name) for name in ("avg@n", "pass@8", "maj@8")}
    rows = []
    for name, one in {**METRICS, **forms}.items():
        unit = "share, differences in percentage points" if one.share else one.unit
        where = [f"every step of {kind}" for kind in one.training] + ["each sample"] * (one.of_sample is not None)
        rows.append(
            (f"`{name.replace('8', 'K')}`", one.label.replace("8", "K"), unit, one.better or "", ", ".join(where))
        )
    return _table(("name", "label", "unit", "better", "recorded in"), rows)


def _command_line() -> str:
    import typer

    from rlvr_cli.cli.app import app

    return "\n\n".join(_commands(typer.main.get_command(app), "rlvr"))


def _commands(command: Any, name: str) -> Iterator[str]:
    context = command.make_context(name, [], resilient_parsing=True)
    with contextlib.redirect_stdout(io.StringIO()):
        command.get_help(context)  # fills in what options that stand for keys say
    if hasattr(command, "commands"):
        for one, inner in command.commands.items():
            yield from _commands(inner, f"{name} {one}")
        return
    from rich.text import Text

    rows = []
    for one in command.params:
        argument = one.param_type_name == "argument"
        names = one.display_name_raw if argument else ", ".join([*one.opts, *one.secondary_opts])
        value = "" if argument or getattr(one, "is_flag", False) else f" {one.display_type_rich(ctx=context) or ''}"
        rows.append((f"`{names}{value}`", _text(Text.from_markup(one.help or "").plain)))
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    yield f"## {name}\n\n{_text(command.help or '')}\n\n    {usage}\n\n{_table(('', ''), rows)}"


def _python() -> str:
    import rlvr_cli

    named = [name for name in dir(rlvr_cli) if name.endswith("Trainer") and name != "PolicyTrainer"]
    rows = [(f"`{name}`", (getattr(rlvr_cli, name).__doc__ or "").partition("\n")[0]) for name in named]
    parts = [f"{rlvr_cli.__name__}.{place}.{name}" for name, place in sorted(rlvr_cli._MODULES.items())]
    parts = [part for part in parts if ".methods." in part]
    return "\n\n".join(
        [
            "## Trainings",
            *(_documented(f"rlvr_cli.training.start.{name}", name=f"rlvr_cli.{name}") for name in ("train", "resume")),
            "## Results",
            *(
                _documented(f"rlvr_cli.store.frames.{name}", name=f"rlvr_cli.store.{name}")
                for name in ("runs", "arms", "steps", "evaluations", "last", "problems", "samples")
            ),
            _documented("rlvr_cli.compare.compare", name="rlvr_cli.compare.compare"),
            "## Trainers",
            "All of them are imported from `rlvr_cli`.",
            _documented("rlvr_cli.training.trainer.PolicyTrainer", members=False),
            "Each of these is `PolicyTrainer` with the method of its name:",
            _table(("trainer", "method"), rows),
            "## Parts of methods",
            "For `PolicyTrainer(method=...)`, from `rlvr_cli`. [Keys](config.md#method): bounds and defaults.",
            *(_documented(part, members=False) for part in parts),
            "## For a method or task of your own",
            _documented("rlvr_cli.methods.base.Tokens"),
            _documented("rlvr_cli.methods.base.Rollout"),
            _documented("rlvr_cli.tasks.base.Task", members=["generate", "prompt", "judge", "solutions"]),
            _documented("rlvr_cli.tasks.problem.Problem"),
            _documented("rlvr_cli.tasks.problem.Verdict"),
        ]
    )


def _documented(path: str, *, name: str = "", members: bool | list[str] | None = None) -> str:
    """What mkdocstrings reads."""
    options = {
        "heading": name or path.rpartition(".")[2],
        "toc_label": (name or path).rpartition(".")[2],
        "members": members,
    }
    lines = [f"      {key}: {json.dumps(value)}" for key, value in options.items() if value is not None]
    return "\n".join([f"::: {path}", "    options:", *lines])


REFERENCE: dict[str, Callable[[], str]] = {
    "config": _config,
    "metrics": _metrics,
    "cli": _command_line,
    "python": _python,
}
