"""The site that ``make docs`` builds: whole, without a network, on a phone and in the dark."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import Browser

from tests.browsers import IN_BROWSER, start_browser
from tests.documentation.pages import PAGES, ROOT

pytestmark = pytest.mark.nightly
LOADED: Final = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
"""What a browser fetches by itself, and where."""


class Links(HTMLParser):
    """The places of a page, where its links lead, and what it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.places: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = {name: value for name, value in attrs if value}
        self.places |= {known[name] for name in ("id", "name") if name in known}
        if tag == "a" and "href" in known:
            self.links.append(known["href"])
        if known.get(LOADED.get(tag, "")):
            self.loaded.append(known[LOADED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build it as ``make docs`` does, elsewhere."""
    folder = tmp_path_factory.mktemp("site")
    options = ["--fail-on-warning", "--keep-going", "--quiet", "-d", str(folder / "read")]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, ".", str(folder / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return folder / "site"


@pytest.fixture(scope="module")
def read(site: Path) -> dict[Path, Links]:
    return {path: Links(path) for path in site.rglob("*.html")}


def test_every_page_is_there_and_on_the_menu(site: Path, read: dict[Path, Links]) -> None:
    front = {site / link.partition("#")[0] for link in read[site / "index.html"].links}
    for name in PAGES.keys() - {"README.md"}:
        assert (site / name).with_suffix(".html") in front


def test_nothing_is_loaded_from_elsewhere(read: dict[Path, Links]) -> None:
    for path, page in read.items():
        for link in page.loaded:
            assert not urlsplit(link).netloc, (path, link)
            assert (path.parent / unquote(urlsplit(link).path)).exists(), (path, link)


def test_links_lead_somewhere(read: dict[Path, Links]) -> None:
    checked = 0
    for path, page in read.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.exists(), (path, link)
            if parts.fragment and target.suffix == ".html":
                assert unquote(parts.fragment) in read[target].places, (path, link)
            checked += 1
    assert checked > 1000


def test_the_reference_has_what_the_package_offers(site: Path) -> None:
    import schedopt

    places = Links(site / "schedopt" / "README.html").places
    missing = {name for name in schedopt.__all__ if f"schedopt.{name}" not in places}
    assert missing == {"Rung", "__version__"}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with start_browser() as started:
        yield started


class TestInABrowser:
    """Opened from the folder, without a network."""

    pytestmark = IN_BROWSER

    @pytest.mark.parametrize("width", [390, 1200])
    def test_no_page_is_wider_than_the_screen(
        self, site: Path, browser: Browser, width: int
    ) -> None:
        page = browser.new_page(viewport={"width": width, "height": 900})
        for name in PAGES:
            page.goto((site / name).with_suffix(".html").as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        page.close()

    def test_words_are_found(self, site: Path, browser: Browser) -> None:
        page = browser.new_page()
        page.goto(f"{(site / 'search.html').as_uri()}?q=recompute")
        page.wait_for_selector("ul.search li a")
        assert page.locator("ul.search li a").count() > 5
        page.close()

    @pytest.mark.parametrize("dark", [False, True])
    def test_it_follows_the_colours_of_the_system(
        self, site: Path, browser: Browser, dark: bool
    ) -> None:
        page = browser.new_page(color_scheme="dark" if dark else "light")
        page.goto((site / "index.html").as_uri())
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        light = sum(int(part) for part in colour[4:-1].split(",")[:3]) / 3
        assert (light < 60) if dark else (light > 200)
        page.close()
