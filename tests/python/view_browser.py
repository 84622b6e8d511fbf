"""A tab of a real browser with the pages of ``tensorprobe view``."""

from __future__ import annotations

import time
from typing import Any

from playwright.sync_api import Browser, Page

from view_server import Server

READY = "html[data-state=ready]"


def until(page: Page, expression: str) -> None:
    """Wait until this holds; a page with a strict policy lets nobody wait for it from inside."""
    end = time.monotonic() + 60
    while not page.evaluate(expression):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(30)


class Tab:
    """A page that remembers what went wrong in it, and what it asked of whom."""

    def __init__(self, browser: Browser, server: Server, width: int = 1280, **given: Any) -> None:
        self.server = server
        context = browser.new_context(
            viewport={"width": width, "height": 856 if width > 700 else 844}, **given
        )
        self.page: Page = context.new_page()
        self.problems: list[str] = []
        self.page.on("console", lambda said: self.problems.append(said.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", lambda request: self.check(request.url))

    def check(self, url: str) -> None:
        if not url.startswith((self.server.url, "data:", "blob:")):
            self.problems.append(f"asks {url}")

    def go(self, path: str) -> Page:
        self.page.goto(self.server.url + path)
        self.page.wait_for_selector(READY)
        return self.page

    def close(self) -> None:
        self.page.context.close()
        assert self.problems == []
