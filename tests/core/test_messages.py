"""What is wrong with plain data: every key once, with the part of its value that is to blame."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from rlvr_cli.core.keys import schema_of
from rlvr_cli.core.messages import Fault, read_section
from rlvr_cli.core.section import Choice, Count, FromList, Section


class _Shape(Choice):
    """A family."""


class _Circle(_Shape):
    """With a radius."""

    kind: Literal["circle"] = Field("circle", description="circle = round.")
    radius: Annotated[float, Field(gt=0.0)] = 1.0


class _Square(_Shape):
    """With a side."""

    kind: Literal["square"] = Field("square", description="square = four sides.")
    side: Annotated[float, Field(gt=0.0)] = 1.0


class _Step(Section):
    """One of a list."""

    name: str
    count: Count = 1

    @model_validator(mode="after")
    def _no_dog(self) -> _Step:
        if self.name == "dog":
            raise ValueError("is no dog")
        return self


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class _Whole(Section):
    """The root."""

    shape: _Shape = _Circle()
    steps: Annotated[tuple[_Step, ...], FromList] = ()
    first: Annotated[_Step, BeforeValidator(_named)] | None = Field(None, title="a name, or a mapping")
    sizes: Annotated[tuple[Count, ...], FromList] = ()
    by: Literal["a", "b"] = Field("a", alias="as")


def test_a_fault_names_key_place_and_remedy() -> None:
    for data, place, said in [
        ({"shap": 1}, ("shap",), "shap: unknown key. Did you mean `shape`? Keys of it: shape, steps, first, sizes, as"),
        ({"as": "c"}, ("as",), 'as: must be one of a, b; got "c"'),
        ({"shape": {"kind": "circel"}}, ("shape", "kind"), 'unknown shape kind "circel". Did you mean `circle`?'),
        ({"shape": {"kind": "circle", "side": 2}}, ("shape", "side"), "shape kind circle has no side; square has."),
        ({"shape": {"kind": "circle", "radius": 0}}, ("shape", "radius"), "shape.radius: must be a number, above 0"),
        ({"steps": [{"name": "a"}, {"count": 0}]}, ("steps", 1), "steps.1.name: is missing; must be text"),
        ({"steps": [{"name": "a", "cuont": 2}]}, ("steps", 0, "cuont"), "steps.0.cuont: unknown key. Did you mean"),
        ({"steps": 3}, ("steps",), "steps: must be a list of values, each a mapping with the keys name, count; got 3"),
        ({"first": 3}, ("first",), "first: must be a name, or a mapping; got 3"),
        ({"sizes": [1, "x"]}, ("sizes", 1), "sizes: must be a list of values, each a whole number, at least 1"),
        ([], (), "must be a mapping with the keys shape, steps, first, sizes, as; got []"),
    ]:
        section, faults = read_section(_Whole, data, "it")
        assert section is None, (data, place, said)
        found = faults[0]
        assert (found.value_path[: len(place)], said in str(found)) == (place, True), found


def test_all_at_once_and_the_data_stay_as_they_are() -> None:
    data = {"as": 1, 3: 4, "sizes": [0, "x"], "shape": {"kind": "square", "side": -1}}
    before = repr(data)
    _, faults = read_section(_Whole, data)
    assert {fault.path for fault in faults} == {("as",), (3,), ("sizes",), ("shape", "side")}
    assert repr(data) == before
    assert str(Fault((), (), "is empty")) == "is empty"


def test_keys_of_a_schema() -> None:
    schema = schema_of(_Whole)
    assert schema.key_names == (
        "shape.kind",
        "shape.radius",
        "shape.side",
        "steps",
        "first.name",
        "first.count",
        "sizes",
        "as",
    )
    (side,) = [key for key in schema.keys if key.name == "shape.side"]
    assert (side.kinds, side.type, side.default) == (("square",), "a number, above 0", 1.0)
    assert schema.is_choice(("shape",)) and not schema.is_choice(("first",))
