"""Opens a page of `rlvr report` in a real headless browser: does it keep to itself, fit the window, and can it be read?

    python -m benchmarks.report_page REPORT.html [--browser chromium] [--shots DIR]

In light and dark, at 1280 and 360 pixels, with everything folded and unfolded: network requests, messages on the
console, what is wider than the window, and text whose contrast is below level AA of WCAG 2.2 (4.5, of large text 3).
``--shots`` keeps a picture of each view, and the page as printed (PDF). Exit code 1 where anything was found.
"""

from __future__ import annotations

import argparse
import base64
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.browser import Browser, BrowserError, complaints, find_browser, requests

VIEWS = [(width, scheme) for width in (1280, 360) for scheme in ("light", "dark")]
HEIGHT = 900
# A picture higher than this is refused by the browser.
HIGHEST = 16_000
SHOWN = 8
_OVERFLOW = """(() => {
  const wide = [...document.querySelectorAll('body *')].filter(e =>
    !e.closest('.scroll, .plot, pre') && !e.closest('svg') && e.getBoundingClientRect().right > innerWidth + 1);
  return {width: document.documentElement.scrollWidth, window: innerWidth,
          height: document.documentElement.scrollHeight,
          wide: wide.slice(0, 5).map(e => e.tagName.toLowerCase() + (e.id && '#' + e.id) + ' ' +
                                          (e.className.baseVal ?? e.className))};
})()"""
# Luminance and contrast as WCAG 2.2 defines them; a background is the nearest that is not see-through.
_CONTRAST = """(() => {
  const parse = text => {
    const c = (text.replace('color(srgb', '').match(/[\\d.e-]+/g) ?? [0, 0, 0, 0]).map(Number);
    return text.startsWith('color(srgb') ? c.map((v, i) => i < 3 ? v * 255 : v) : c; };
  const channel = v => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
  const luminance = c => 0.2126 * channel(c[0]) + 0.7152 * channel(c[1]) + 0.0722 * channel(c[2]);
  const over = (top, below) => { const a = top.length > 3 ? top[3] : 1;
    return [0, 1, 2].map(i => top[i] * a + below[i] * (1 - a)); };
  const behind = e => { const layers = [];
    for (let at = e; at; at = at.parentElement) {
      const c = parse(getComputedStyle(at).backgroundColor);
      if (c.length < 4 || c[3] > 0) layers.push(c);
      if (c.length < 4 || c[3] === 1) break; }
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]); };
  const found = new Map();
  for (const e of document.querySelectorAll('body *')) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
    if (!e.checkVisibility() || e.closest('title, desc')) continue;
    const style = getComputedStyle(e), ground = behind(e);
    const ink = over(parse(e.closest('svg') ? style.fill : style.color), ground);
    const [a, b] = [luminance(ink), luminance(ground)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05), size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) {
      const name = e.tagName.toLowerCase() + '.' + (e.className.baseVal ?? e.className) + ' ' + ratio.toFixed(2);
      found.set(name, e.textContent.trim().slice(0, 30)); } }
  return [...found].map(([name, text]) => name + ' "' + text + '"');
})()"""


@dataclass(frozen=True)
class View:
    """What one view of the page shows that must not be."""

    name: str
    requests: list[str]
    console: list[str]
    overflow: list[str]
    contrast: list[str]

    @property
    def faults(self) -> list[str]:
        """All of it, a line each."""
        parts = {
            "request": self.requests,
            "console": self.console,
            "wider than the window": self.overflow,
            "contrast": self.contrast,
        }
        return [f"{self.name}: {what}: {one}" for what, found in parts.items() for one in found[:SHOWN]]


def check(page: Path, program: str, shots: Path | None = None) -> list[View]:
    """Every view of ``page``; with ``shots``, their pictures in that folder. Raises BrowserError."""
    with Browser(program) as browser:
        views = [_view(browser, page, width, scheme, shots) for width, scheme in VIEWS]
        if shots is not None:
            browser.call("Emulation.setEmulatedMedia", media="print")
            printed = browser.call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)
            (shots / "print.pdf").write_bytes(base64.b64decode(printed["data"]))
    return views


def _view(browser: Browser, page: Path, width: int, scheme: str, shots: Path | None) -> View:
    name = f"{scheme}-{width}"
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=HEIGHT, deviceScaleFactor=1, mobile=False)
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    browser.forget()
    browser.call("Page.navigate", url=page.resolve().as_uri())
    browser.wait_for("Page.loadEventFired")
    overflow = _too_wide(browser, "folded")
    if shots is not None:
        _picture(browser, shots / f"{name}.png", width)
    browser.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    overflow += _too_wide(browser, "unfolded")
    contrast = browser.evaluate(_CONTRAST)
    return View(name, requests(browser.events, page), complaints(browser.events), overflow, contrast)


def _too_wide(browser: Browser, state: str) -> list[str]:
    size = browser.evaluate(_OVERFLOW)
    if size["width"] <= size["window"]:
        return []
    return [f"{size['width']} of {size['window']} pixels, {state}: {', '.join(size['wide']) or 'nothing by itself'}"]


def _picture(browser: Browser, path: Path, width: int) -> None:
    height = min(browser.evaluate("document.documentElement.scrollHeight"), HIGHEST)
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    shot = browser.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
    path.write_bytes(base64.b64decode(shot["data"]))


def main() -> None:
    """Print what was found; exit code 1 where anything was, 2 where there is no page or no browser."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("--browser", default=None)
    parser.add_argument("--shots", type=Path, default=None)
    options = parser.parse_args()
    if not options.page.is_file():
        sys.exit(f"{options.page}: no such page. `rlvr report` makes one.")
    if options.shots is not None:
        options.shots.mkdir(parents=True, exist_ok=True)
    try:
        views = check(options.page, find_browser(options.browser), options.shots)
    except BrowserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    for view in views:
        numbers = (
            f"{len(view.requests)} requests, {len(view.console)} console messages, "
            f"{'wider than the window' if view.overflow else 'fits'}, {len(view.contrast)} texts below AA contrast"
        )
        print(f"{view.name}: {numbers}")
    faults = [fault for view in views for fault in view.faults]
    print("\n".join([*faults, f"{options.page}: {options.page.stat().st_size / 1000:,.0f} kB, {len(faults)} faults"]))
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
