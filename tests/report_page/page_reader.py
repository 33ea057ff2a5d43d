"""A page as its reader meets it: the elements in their order, and the text of each section."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

VOID = ("meta", "link", "br", "hr", "img", "input", "path", "rect", "line", "circle", "use", "polygon", "polyline")


class Page(HTMLParser):
    """What a browser makes of a page.

    Attributes:
        tags: every element, with its attributes, in order. text: all that is shown. styles: of style elements.
        scripts: the content of each script element.
        sections: the text of each part, by the id of its heading; what stands before the first is `answer`.
        commands: the lines of preformatted text that begin with `rlvr`.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.styles = ""
        self.scripts: list[str] = []
        self.sections: dict[str, str] = {"answer": ""}
        self.commands: list[str] = []
        self._open: list[str] = []
        self.feed(self.source)
        self.close()
        self.sections = {name: " ".join(text.split()) for name, text in self.sections.items()}

    @property
    def text(self) -> str:
        return " ".join(self.sections.values())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        if tag == "header":
            # Before it is the link over it.
            self.sections["answer"] = ""
        if tag == "h2" and attributes.get("id"):
            self.sections[str(attributes["id"])] = ""
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:
            while self._open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if "style" in self._open or "title" in self._open:
            self.styles += data if "style" in self._open else ""
            return
        if "script" in self._open:
            self.scripts.append(data)
            return
        self.sections[list(self.sections)[-1]] += data
        if "pre" in self._open:
            self.commands += [line for line in data.splitlines() if line.startswith("rlvr ")]
