"""Headless Chromium for the tests, and photographs of a report.

    python tests/browser.py results/published/books/report/index.html docs/report.webp \
        --height 1275

takes the picture that the README shows.
"""

from __future__ import annotations

import argparse
import base64
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DESKTOP, PHONE = (1280, 900), (390, 844)


def why_not() -> str:
    """Why no browser can be driven here; empty where one can."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "needs selenium, of the extra test"
    if not any(map(shutil.which, BROWSERS)):
        return f"needs one of {', '.join(BROWSERS)}"
    return "" if shutil.which("chromedriver") else "needs chromedriver (Debian: chromium-driver)"


@contextmanager
def browser() -> Iterator[Browser]:
    """A session of headless Chromium."""
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    options.binary_location = next(filter(None, map(shutil.which, BROWSERS)))
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"):
        options.add_argument(f"--{argument}")
    options.add_argument("--hide-scrollbars")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


class Browser:
    """A tab: its size, its colour scheme, what it says, and what a page holds."""

    def __init__(self, driver: Chrome):
        self.driver = driver
        self.look()

    def look(self, size: tuple[int, int] = DESKTOP, scheme: str = "light", media: str = "") -> None:
        """Set the width and height in CSS pixels, the reader's scheme, and screen or print."""
        width, height = size
        device = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._tell("Emulation.setDeviceMetricsOverride", **device)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._tell("Emulation.setEmulatedMedia", media=media, features=[feature])

    def open(self, page: Path, place: str = "") -> None:
        """Load a page from its file, at a place where one is given."""
        self.driver.get("about:blank")
        self.driver.get(page.resolve().as_uri() + (f"#{place}" if place else ""))

    def run(self, script: str, *values: Any) -> Any:
        """The value that a script returns."""
        return self.driver.execute_script(script, *values)

    def becomes(self, script: str, value: Any, seconds: float = 10) -> bool:
        """Whether a script comes to return a value: events fire after the call that causes them."""
        until = time.monotonic() + seconds
        while self.run(script) != value and time.monotonic() < until:
            time.sleep(0.02)
        return self.run(script) == value

    def press(self, *keys: str) -> None:
        """Press keys where the focus is."""
        self.driver.switch_to.active_element.send_keys(*keys)

    def complaints(self) -> list[str]:
        """What the console said since it was last asked."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def photograph(self, path: Path, form: str = "png", quality: int = 90) -> None:
        """Save what the window shows."""
        options = {} if form == "png" else {"quality": quality}
        taken = self._tell("Page.captureScreenshot", format=form, **options)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(taken["data"]))

    def print(self) -> bytes:
        """The page as a PDF, as the browser prints it."""
        return base64.b64decode(self._tell("Page.printToPDF", preferCSSPageSize=True)["data"])

    def _tell(self, command: str, **arguments: Any) -> Any:
        return self.driver.execute_cdp_cmd(command, arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path, help="a page of a report")
    parser.add_argument("picture", type=Path, help="a .webp or .png file")
    parser.add_argument("--place", default="", help="what to open: a cell, as 10M/delta")
    parser.add_argument("--height", type=int, help="of the window, in CSS pixels")
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--phone", action="store_true")
    options = parser.parse_args()
    if reason := why_not():
        parser.error(reason)
    with browser() as tab:
        width, height = PHONE if options.phone else DESKTOP
        tab.look((width, options.height or height), "dark" if options.dark else "light")
        tab.open(options.page, options.place)
        tab.photograph(options.picture, options.picture.suffix.removeprefix("."))


if __name__ == "__main__":
    main()
