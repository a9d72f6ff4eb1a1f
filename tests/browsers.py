"""A headless Chromium, for pages that are tested where they are read."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest
from playwright.sync_api import Browser, sync_playwright

CHROMIUM: Final = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
IN_BROWSER: Final = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM, reason="no Chromium on PATH: apt install chromium"),
]
"""Marks of tests that need it."""


@contextmanager
def start_browser() -> Iterator[Browser]:
    """Start a browser, and close it."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()
