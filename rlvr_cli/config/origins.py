"""Where each value of a configuration came from, so that an error can name the file and line that set it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Path = tuple[Any, ...]

# Choosing another one of these drops what lower layers said about the one before.
NAMED_SECTIONS = ("model", "task", "method")


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
    """The layers merged: nested data (section, key) and the layer that set each key."""

    data: dict[Any, Any] = field(default_factory=dict)
    layers: dict[Path, Layer] = field(default_factory=dict)

    def origin(self, path: Path) -> Origin | None:
        """The origin of `path` (a key, or a place inside its value); None for a default."""
        layer = self.layers.get(path[:2])
        return None if layer is None else layer.origin(path)

    def places(self, paths: Iterable[Path]) -> str:
        """The distinct places that set `paths`, as text: `a.yaml:3,7, override eval.samples=4`.

        Presets are named only where nothing else took part: the user's own lines come first.
        """
        origins = [origin for origin in map(self.origin, paths) if origin is not None]
        own = [origin for origin in origins if not origin.label.startswith(PRESET)]
        lines: dict[str, list[int]] = {}
        for origin in own or origins:
            found = lines.setdefault(origin.label, [])
            if origin.line is not None and origin.line not in found:
                found.append(origin.line)
        return ", ".join(
            f"{label}:{','.join(map(str, sorted(numbers)))}" if numbers else label for label, numbers in lines.items()
        )

    def add(self, layer: Layer) -> None:
        """Lays `layer` over what is there. Keys of a section are merged; a key's value is replaced whole."""
        for section, values in layer.data.items():
            if section in NAMED_SECTIONS and values is not None and not isinstance(values, (dict, list)):
                values = {"name": values}
            self.layers[(section,)] = layer
            if values is None:
                self.data.setdefault(section, {})
                continue
            before = self.data.get(section)
            if not isinstance(values, dict) or not isinstance(before, dict):
                self._forget(section)
                self.data[section] = dict(values) if isinstance(values, dict) else values
            else:
                name = values.get("name", before.get("name"))
                if section in NAMED_SECTIONS and before.get("name", name) != name:
                    self._forget(section)
                    before = {}
                self.data[section] = {**before, **values}
            if isinstance(values, dict):
                for key in values:
                    self.layers[(section, key)] = layer

    def _forget(self, section: Any) -> None:
        for path in [path for path in self.layers if len(path) > 1 and path[0] == section]:
            del self.layers[path]
