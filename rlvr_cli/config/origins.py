"""Where each value of a configuration came from, so that an error can name the file and line that set it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlvr_cli.config.tree import Path, discriminator, key_of, plain_key, variants
from rlvr_cli.methods.names import canonical_name

PRESET = "preset "


@dataclass(frozen=True)
class Origin:
    """A place that sets values: a file (`label`, with a line), an option or an override."""

    label: str
    line: int | None = None

    def __str__(self) -> str:
        return self.label if self.line is None else f"{self.label}:{self.line}"


@dataclass
class Layer:
    """Values from one place, as nested mappings, and the line of each path in it (empty for options)."""

    label: str
    data: dict[Any, Any]
    lines: Mapping[Path, int] = field(default_factory=dict)

    def origin(self, path: Path) -> Origin:
        """Where in this layer `path` was set: the line of the longest prefix that has one."""
        for length in range(len(path), -1, -1):
            line = self.lines.get(path[:length])
            if line is not None:
                return Origin(self.label, line)
        return Origin(self.label)


@dataclass
class Merged:
    """The layers merged: nested data and the layer that set each section and key.

    Attributes:
        presets: the lowest layers, which stay when a section is given another name: they are those of the last one.
    """

    presets: tuple[Layer, ...] = ()
    data: dict[Any, Any] = field(default_factory=dict)
    layers: dict[Path, Layer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for layer in self.presets:
            self.add(layer)

    def origin(self, path: Path) -> Origin | None:
        """The origin of `path` (a section, a key, or a place inside a key's value); None for a default."""
        layer = self.layers.get(key_of(path))
        return None if layer is None else layer.origin(path)

    def set_by_user(self, path: Path) -> bool:
        """Whether something else than a preset or a default set the key at `path`."""
        layer = self.layers.get(path)
        return layer is not None and not layer.label.startswith(PRESET)

    def places(self, paths: Iterable[Path]) -> str:
        """The distinct places that set `paths`, as text: `a.yaml:3,7, override eval.samples=4`.

        Presets are named only where nothing else took part: the user's own lines come first. What the preset of a
        method set was set by who named the method.
        """
        origins = [origin for origin in map(self._blamed, paths) if origin is not None]
        own = [origin for origin in origins if not origin.label.startswith(PRESET)]
        lines: dict[str, list[int]] = {}
        for origin in own or origins:
            found = lines.setdefault(origin.label, [])
            if origin.line is not None and origin.line not in found:
                found.append(origin.line)
        return ", ".join(
            f"{label}:{','.join(map(str, sorted(numbers)))}" if numbers else label for label, numbers in lines.items()
        )

    def _blamed(self, path: Path) -> Origin | None:
        origin, name = self.origin(path), ("method", "name")
        by_name = path[0] == "method" and (origin is None or origin.label.startswith(PRESET)) and self.set_by_user(name)
        return self.origin(name) if by_name else origin

    def add(self, layer: Layer) -> None:
        """Lays `layer` over what is there. Sections are merged at any depth; a key's value is replaced whole.

        A plain value for a section chooses its variant (`weight: dgpo`), or sets its main key (`reweight: 0.3`).
        Another choice than before drops what lower layers said of the choice before.
        """
        self._lay((), self.data, layer.data, layer)

    def _lay(self, path: Path, below: dict[Any, Any], values: dict[Any, Any], layer: Layer) -> None:
        chooser = discriminator(path)
        if chooser and chooser in values and chooser in below and _tag(path, values[chooser]) != below[chooser]:
            if path == ("model",):
                # The other keys say how a model is loaded and trained, whichever it is.
                below.pop("revision", None)
                self.layers.pop((*path, "revision"), None)
            else:
                self._forget(path)
                below.clear()
                if len(path) == 1:
                    for preset in self.presets:
                        self._lay(path, below, preset.data.get(path[0], {}), preset)
        for key, value in values.items():
            place = (*path, key)
            self.layers[place] = layer
            if not variants(place):
                below[key] = _tag(path, value) if key == chooser else value
                continue
            plain = plain_key(place)
            if plain and not isinstance(value, (dict, list)) and (value is not None or not discriminator(place)):
                value = {plain: value}
            if value is None:
                below.setdefault(key, {})
            elif not isinstance(value, dict):
                self._forget(place)
                below[key] = value
            else:
                if not isinstance(below.get(key), dict):
                    self._forget(place)
                    below[key] = {}
                self._lay(place, below[key], value, layer)

    def _forget(self, path: Path) -> None:
        for place in [place for place in self.layers if len(place) > len(path) and place[: len(path)] == path]:
            del self.layers[place]


def _tag(path: Path, value: Any) -> Any:
    """A choice as it is compared and stored: a method's name in its canonical spelling."""
    if path == ("method",) and isinstance(value, str):
        try:
            return canonical_name(value)
        except ValueError:
            return value
    return value
