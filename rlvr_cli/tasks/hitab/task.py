"""The HiTab task: questions on tables, and verdicts by two rules."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks.base import Data, RuleKey, Task
from rlvr_cli.tasks.data import RowOrigin
from rlvr_cli.tasks.files import BadRow, read_rows, text_problem
from rlvr_cli.tasks.hitab.problems import problem_from, rendered
from rlvr_cli.tasks.hitab.reward import REASONS, judge_table_answer
from rlvr_cli.tasks.hitab.values import Conventions
from rlvr_cli.tasks.problem import DataSet, MissingFields, Problem, Verdict
from rlvr_cli.tasks.prompts import chat_prompt, has_template, leading_bos

_TABLES_FILES = ("tables.jsonl", "tables.jsonl.gz")
# ACPO (2025) trains on HiTab and prints no prompt for it. These are the project's own: table, question, the form of the
# answer, and the data's conventions for numbers, which a model cannot guess (docs/tasks/hitab.md).
_INTRODUCTION = (
    "Answer a question about a table. Column and row headers are written as paths from the outermost to the innermost "
    "level, such as `total / 2019 / women`."
)
_CONVENTIONS = (
    "Give the answer alone: a number, or a word or phrase as the table has it. Write numbers as the table has them, "
    "without units. A share, ratio or relative change that you compute is a ratio to six decimal places (0.25, not "
    "25%). Separate several answers with semicolons."
)
_FORMS = {
    "answer_tag": "First think inside <think> and </think>, then write the answer between <answer> and </answer>.",
    "boxed": "Think step by step, then write the answer within \\boxed{}.",
}


class HiTab(Task):
    """Questions on hierarchical tables."""

    sets: ClassVar = {
        "hitab": DataSet(
            "HiTab, questions on hierarchical tables.",
            {"train": "hitab/train", "test": "hitab/test"},
            None,
            "C-UDA 1.0",
            size=1584,
            length=(4096, "ours: the length of AR-Lopti's table 2"),
        ),
    }
    reasons: ClassVar = REASONS
    problem_keys: ClassVar = ("corrected",)
    json_columns: ClassVar = ("table", "answer")

    name: Literal["hitab"] = Field("hitab", description="hitab = questions on hierarchical tables.")
    style: Literal["answer_tag", "boxed"] = Field(
        "answer_tag",
        description="How prompts are written: answer_tag (the answer in <answer> after <think>), boxed (in \\boxed{}).",
    )
    data: Data = "hitab"
    tolerance: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        1e-5, description="Numbers are equal when they differ by at most this (not a share: the difference itself)."
    )
    percent: Literal["as_written", "ratio", "either"] = Field(
        "as_written",
        description="What 69.1% is: as_written = 69.1, ratio = 0.691, either = whichever of the two is right.",
    )
    sign: Literal["exact", "either"] = Field("exact", description="exact = the sign counts; either = it does not.")
    corrected: bool = Field(
        False, description="Use the HiTab maintainers' corrected questions and answers where a row has them."
    )
    rule: RuleKey = "paper"

    @property
    def conventions(self) -> Conventions:
        """When two numbers are equal."""
        return Conventions(Fraction(str(self.tolerance)), self.percent, self.sign)

    def read_companion(self, path: Path, wrong: list[str]) -> dict[str, str]:
        return _tables(path.parent, wrong)

    def row(self, record: dict[str, Any], place: RowOrigin) -> Problem:
        """The problem of a row, whose table stands in it or in a file next to it."""
        fields = dict(record)
        if self.corrected:
            # One public row has its corrected answer in the question's field; such a row stays as it was.
            for key, kind in (("question", str), ("answer", list)):
                if isinstance(record.get(f"{key}_checked"), kind):
                    fields[key] = record[f"{key}_checked"]
        if fields.get("table") is None and "table_id" in record:
            tables = place.companion or {}
            if str(record["table_id"]) not in tables:
                raise UserError(f"{place.where}: table {record['table_id']!r} is not in tables.jsonl next to this file")
            fields["table"] = tables[str(record["table_id"])]
        problem = problem_from(fields, place.where)
        if not problem.question.strip() or not problem.data["table"]:
            missing = [key for key in ("question", "table") if not fields.get(key)]
            needed = "a row needs question and table (or table_id, with tables.jsonl next to the file)"
            raise MissingFields(place.where, missing, needed, record)
        return problem

    def divider(self, problem: Problem) -> str:
        """Questions on one table stay together."""
        return str(problem.data["table"])

    def problem_wording(self, problem: Problem) -> str:
        """With the table: many tables have the same questions."""
        return f"{problem.data['table']}\n{problem.question}"

    def problem_from(self, fields: dict[str, Any], where: str) -> Problem:
        return problem_from(fields, where)

    def prompt(self, problem: Problem, tokenizer: Any) -> str:
        """The full prompt: table, question and the form of the answer."""
        text = user_text(problem.question, problem.data["table"], self.style)
        if not has_template(tokenizer):
            return f"{leading_bos(tokenizer)}User: {text}\nAssistant:"
        return chat_prompt(tokenizer, [{"role": "user", "content": text}], options=self.chat_template_kwargs)

    def judge(self, problem: Problem, response: str, *, truncated: bool = False) -> Verdict:
        """1 for the right answer, else 0. Pure; never raises; time linear in the response."""
        return judge_table_answer(problem.data["answer"], response, self.rule, self.conventions, truncated)


def user_text(question: str, table: str, style: str) -> str:
    """Table, question and instructions; without a table, for rows that have none, question and instructions."""
    shown = f"{_INTRODUCTION}\n\n## Table\n{table}\n\n" if table else ""
    return f"{shown}## Question\n{question}\n\n{_CONVENTIONS} {_FORMS[style]}"


def _tables(folder: Path, wrong: list[str]) -> dict[str, str]:
    """Rendered tables by id, of the folder's file of tables if it has one."""
    path = next((folder / name for name in _TABLES_FILES if (folder / name).is_file()), None)
    tables: dict[str, str] = {}
    for _, where, record in read_rows(path) if path is not None else ():
        try:
            if isinstance(record, BadRow):
                raise UserError(f"{where}: {record}")
            if not isinstance(record, dict) or "id" not in record:
                raise UserError(f"{where}: a table is {{id, title, texts}}")
            problem = text_problem(record)
            if problem is not None:
                raise UserError(f"{where}: {problem}")
            tables[str(record["id"])] = rendered(record, where)
        except UserError as error:
            wrong += error.problems
    return tables
