"""Files of the user's: read with what they import from their folder, imported by path, and their errors in one line."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.user_code import (
    edited_file_warnings,
    find_user_file,
    guard,
    load_module,
    read_user_file,
    save_copies,
    strip_folder,
)

FILES = {
    "mine.py": "import math, numpy, helpers\nfrom parts.deep.first import Z\n"
    "from pack.inner import deep as found\nfrom pack import *\n"
    "def late():\n    from lazily import VALUE\n    return VALUE\ndef bad():\n    return helpers.fails()\n",
    "helpers.py": "import mine_too\nfrom dataclasses import dataclass\nX = mine_too.X + 1\n"
    "@dataclass\nclass Kept:\n    x: 'int' = 1\ndef fails():\n    return 1 / 0\n",
    "mine_too.py": "import helpers\nX = 1\ndef back():\n    return helpers.X\n",
    "pack/__init__.py": "from . import inner\n__all__ = ['starred']\nstarred = 5\n",
    "pack/inner.py": "from .other import Y\ndeep = Y\n",
    "pack/other.py": "Y = 7\n",
    "lazily.py": "VALUE = 11\n",
    # A package without __init__.py; the installed one of that name wins over the other.
    "parts/deep/first.py": "from parts.second import Z\n",
    "parts/second.py": "Z = 13\n",
    "numpy/mine.py": "1 / 0\n",
    "json.py": "1 / 0\n",
    "unused.py": "1 / 0\n",
}


def written(folder: Path, files: dict[str, str] = FILES) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder / "mine.py"


def test_what_is_imported_from_the_folder_is_copied_and_imported_from_the_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, run = tmp_path / "own", tmp_path / "run"
    file = read_user_file(written(folder))
    assert sorted(file.imports) == sorted({*FILES} - {"mine.py", "json.py", "unused.py", "numpy/mine.py"})
    manifest = save_copies([file], run)
    assert edited_file_warnings(manifest) == []
    (folder / "pack" / "other.py").write_text("Y = 8\n")
    (line,) = edited_file_warnings(manifest)
    assert "mine.py or a module that it imports was edited since" in line
    with pytest.raises(UserError, match=r"mine.py: has changed since it was recorded .*no copy"):
        find_user_file(file.reference)
    # The current folder has modules of the same names.
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend("")
    copy = find_user_file(file.reference, run)
    assert copy.path == run / "code" / file.digest / "mine.py" and copy.digest == file.digest
    module = load_module(copy)
    assert (module.helpers.X, module.found, module.starred, module.late(), module.Z) == (2, 7, 5, 11, 13)
    assert module.helpers.mine_too.back() == 2 and module.helpers.Kept().x == 1
    with (
        pytest.raises(RunError, match=r"helpers.py:8: bad raised ZeroDivisionError: division by zero"),
        guard(copy, "bad"),
    ):
        module.bad()
    for path in folder.rglob("*.py"):
        path.unlink()
    assert edited_file_warnings(manifest) == [] and load_module(find_user_file(file.reference, run)) is module


def test_this_package_is_no_module_of_a_file_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the root of an editable checkout, which is on `sys.path` and often the current folder."""
    files = {
        "mine.py": "import rlvr_cli.core.errors\nimport helpers\n",
        "helpers.py": "",
        "rlvr_cli/__init__.py": "1 / 0\n",
    }
    path = written(tmp_path, files)
    monkeypatch.setattr(
        sys, "path", [str(tmp_path), *(name for name in sys.path if not (Path(name) / "rlvr_cli").is_dir())]
    )
    file, package = read_user_file(path), sys.modules["rlvr_cli"]
    assert list(file.imports) == ["helpers.py"]
    assert load_module(file).rlvr_cli is package is sys.modules["rlvr_cli"]


def test_a_late_import_finds_the_module_of_its_file(tmp_path: Path) -> None:
    """Of two files with modules of one name, called in turn; each module is executed once."""
    late = "def late():\n    import helpers\n    helpers.CALLS.append(1)\n    return helpers.X, len(helpers.CALLS)\n"
    for name in ("a", "b"):
        written(tmp_path / name, {"mine.py": late, "helpers.py": f"X = {name!r}\nCALLS = []\n"})
    called = []
    files = [read_user_file(tmp_path / name / "mine.py") for name in ("a", "b")]
    modules = [load_module(file) for file in files]
    for number in (0, 1, 0):
        with guard(files[number], "late"):
            called.append(modules[number].late())
    assert called == [("a", 1), ("b", 1), ("a", 2)]


def test_the_texts_that_were_hashed_are_executed(tmp_path: Path) -> None:
    """Those of a package too, which a function imports late, whatever the files are by now."""
    text = "\ufeffX = 1\r\nY = 'é'\r\ndef late():\n    from pack.other import Y\n    return Y\n"
    files = {"mine.py": text.replace("1", "spaces.deep.X", 1), "pack/__init__.py": "", "pack/other.py": "Y = 7\n"}
    files |= {"mine.py": f"import spaces.deep\r\n{files['mine.py'][1:]}", "spaces/deep.py": "X = 1\n"}
    file = read_user_file(written(tmp_path, files))
    for name in files:
        (tmp_path / name).write_text("X = Y = 2\n")
    (tmp_path / "pack" / "other.py").unlink()
    shutil.rmtree(tmp_path / "spaces")
    module = load_module(file)
    assert (module.X, module.late()) == (1, 7) and strip_folder(file.reference) == f"mine.py@{file.digest}"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"x = 1\ny = '\xe9'\n", r"mine.py:2: is not UTF-8 text"),
        (b"x = (\n", r"mine.py:1: syntax error: '\(' was never closed"),
        (b"x = 1\n1 / 0\n", r"mine.py:2: the file raised ZeroDivisionError"),
        (b"import no_such_module\n", r"mine.py:1: the file raised ModuleNotFoundError"),
        (b"from . import x\n", r"mine.py:1: the file raised ImportError: .*relative import"),
        (b"import sys\nsys.exit(0)\n", r"mine.py:2: the file raised SystemExit: 0"),
        (b"while True:\n    pass\n", r"mine.py:\d: the file took more than 0.5 s"),
    ],
)
def test_a_file_that_cannot_be_imported(tmp_path: Path, text: bytes, line: str) -> None:
    before = set(sys.modules)
    (tmp_path / "mine.py").write_bytes(text)
    with pytest.raises(UserError, match=line) as error:
        load_module(read_user_file(tmp_path / "mine.py"), 0.5)
    assert len(error.value.problems) == 1
    assert not any(name.startswith("rlvr_user") for name in set(sys.modules) - before)


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.py")
    (tmp_path / "folder.py").mkdir()
    for name, line in (
        ("fifo.py", "is not a regular file"),
        ("folder.py", "is not a regular file"),
        ("mien.py", "no such file"),
    ):
        with pytest.raises(UserError, match=line):
            read_user_file(tmp_path / name)
