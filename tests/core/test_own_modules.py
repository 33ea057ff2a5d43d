"""Files of the user's own that import others next to them: found, hashed, executed from their copies."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.own_code import OwnFile, blamed, changed, copied_file, import_own, read_own_file

FILES = {
    "mine.py": "import math, helpers\nfrom pack.inner import deep as found\nfrom pack import *\n"
    "def late():\n    from lazily import VALUE\n    return VALUE\ndef bad():\n    return helpers.fails()\n",
    "helpers.py": "import mine_too\nfrom dataclasses import dataclass\nX = mine_too.X + 1\n"
    "@dataclass\nclass Kept:\n    x: 'int' = 1\ndef fails():\n    return 1 / 0\n",
    "mine_too.py": "import helpers\nX = 1\ndef back():\n    return helpers.X\n",
    "pack/__init__.py": "from . import inner\n__all__ = ['starred']\nstarred = 5\n",
    "pack/inner.py": "from . import other\nfrom .other import Y\nfrom space.far import FAR\ndeep = Y\n",
    "pack/other.py": "Y = 7\n",
    "space/far.py": "FAR = 9\n",
    "lazily.py": "VALUE = 11\n",
    "json.py": "1 / 0\n",
    "unused.py": "1 / 0\n",
}


def written(folder: Path, files: dict[str, str] = FILES) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder / "mine.py"


def test_what_is_imported_from_the_folder_is_copied_and_found_in_the_copies(tmp_path: Path) -> None:
    path = written(tmp_path)
    source = read_own_file(path, "reward")
    assert sorted(source.imports) == sorted({*FILES} - {"mine.py", "json.py", "unused.py"})
    for name in FILES:
        (tmp_path / name).unlink()
    before = list(sys.path), set(sys.modules)
    again = copied_file({"of": "reward", "file": str(path), "text": source.text, "imports": dict(source.imports)})
    assert again == source
    module = import_own(source, "rlvr_own_mine")
    assert (module.helpers.X, module.found, module.starred, module.late()) == (2, 7, 5, 11)
    assert module.helpers.mine_too.back() == 2 and module.helpers.Kept().x == 1
    assert sys.path == before[0] and "helpers" not in sys.modules
    with pytest.raises(ZeroDivisionError) as raised:
        module.bad()
    assert blamed(raised.value, path) == f"{tmp_path / 'helpers.py'}:8: ZeroDivisionError: division by zero"


def test_two_files_may_each_have_a_module_of_one_name(tmp_path: Path) -> None:
    for name in ("a", "b"):
        written(tmp_path / name, {"mine.py": "from helpers import X\n", "helpers.py": f"X = {name!r}\n"})
    first, second = (read_own_file(tmp_path / name / "mine.py", "task") for name in ("a", "b"))
    assert first.text == second.text and first.code != second.code
    assert [import_own(one, f"rlvr_{one.code}").X for one in (first, second)] == ["a", "b"]


def test_an_edited_import_is_another_version_and_is_named(tmp_path: Path) -> None:
    path = written(tmp_path)
    source = read_own_file(path, "method")
    assert changed([source]) == []
    (tmp_path / "pack" / "other.py").write_text("Y = 8\n")
    (said,) = changed([source])
    assert said.startswith(f"{tmp_path / 'pack/other.py'} was changed since") and "copy of the method" in said
    (tmp_path / "mine.py").write_text("x = 1\n")
    assert "mine.py, " in changed([source])[0] and " were changed since" in changed([source])[0]
    assert read_own_file(path, "method").code != source.code
    path.unlink()
    assert changed([source]) == []


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"mine.py": "from . import helpers\n"}, r"mine.py:1: `from \. import ...` is relative"),
        ({"mine.py": "x = 1\nfrom .helpers import x\n"}, r"mine.py:2: .*Write `from helpers import ...`"),
        ({"mine.py": "import helpers\n", "helpers.py": "from . import x\n"}, r"helpers.py:1: .*relative"),
        ({"mine.py": "import helpers\n", "helpers.py": "x = '" + "a" * 150_000 + "'\n"}, r"mine.py: .*\(helpers.py\)"),
    ],
)
def test_what_cannot_be_copied_is_refused(tmp_path: Path, files: dict[str, str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        read_own_file(written(tmp_path, files), "task")


def test_a_malformed_copy_is_refused() -> None:
    block = {"of": "task", "file": "a.py", "text": ""}
    assert copied_file(block) == OwnFile("task", "a.py", "")
    for wrong in ({"imports": []}, {"imports": {"a": 1}}, {"imports": {1: "a"}}, {"more": "x"}):
        assert copied_file({**block, **wrong}) is None
