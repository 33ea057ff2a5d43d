"""Size and load time of reports in Chromium (needs `.[browser]`).

python -m experiments.studies.report_load PAGE.html ...
"""

from __future__ import annotations

import shutil
import statistics
import sys
from pathlib import Path

TIMES = 5
TIMING = """() => new Promise((tell) => {
  const look = () => {
    const page = performance.getEntriesByType("navigation")[0];
    if (document.documentElement.dataset.ready && page.domContentLoadedEventEnd) {
      tell([page.domContentLoadedEventEnd, performance.now()]);
    } else setTimeout(look, 5);
  };
  look();
})"""


def main(paths: list[str]) -> None:
    """Print a line for each page: bytes, and the medians of milliseconds until it shows and until all works."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for path in map(Path, paths):
            times = []
            for _ in range(TIMES):
                page = browser.new_page()
                page.goto(path.resolve().as_uri(), wait_until="commit")
                times.append(page.evaluate(TIMING))
                page.close()
            shown, ready = (statistics.median(column) for column in zip(*times, strict=True))
            print(
                f"{path}: {path.stat().st_size / 1000:,.0f} kB, DOMContentLoaded {shown:.0f} ms, ready {ready:.0f} ms"
            )
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
