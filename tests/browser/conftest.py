# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A real Chromium and a service that really listens, with everything in it that a page may show."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio.from_thread
import pytest
import uvicorn
from selenium import webdriver
from selenium.webdriver.chrome.service import Service as Driver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.support.ui import WebDriverWait

from relight.types import Mode
from service import bootstrap
from service.config import Audit, Notify, NotifyChannel, Recommend, Settings
from service.tokens import Role
from tests.api.running import Service, start
from tests.browser.scenery import Scenery, furnish

ROOT = Path(__file__).parent.parent.parent
AXE = ROOT / ".venv" / "share" / "axe-core" / "axe.min.js"
ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync",
             "--disable-dev-shm-usage", "--window-size=1280,900", "--lang=en-GB")  # fmt: skip


@dataclass
class Site:
    """The service, where it listens, and what stands in it."""

    service: Service
    url: str
    scenery: Scenery

    def token(self, role: Role = Role.OPERATOR) -> str:
        return self.service.secrets[role]


class Tab:
    """A window of Chromium in the words of these tests."""

    def __init__(self, driver: webdriver.Chrome, site: Site) -> None:
        self.driver = driver
        self.site = site

    def open(self, path: str) -> None:
        self.driver.get(self.site.url + path)

    def press(self, *keys: str) -> None:
        ActionChains(self.driver).send_keys(*keys).perform()

    def run(self, script: str, *given: Any) -> Any:
        return self.driver.execute_script(script, *given)

    def until(self, holds: str, within_s: float = 10) -> None:
        """Wait until a script's expression is true."""
        WebDriverWait(self.driver, within_s, poll_frequency=0.05).until(lambda _: self.run(f"return Boolean({holds})"))

    def text(self) -> str:
        return str(self.run("return document.body.innerText"))

    def complaints(self) -> list[str]:
        said = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [one["message"] for one in said if one["level"] in {"SEVERE", "WARNING"}]

    def log_in(self, role: Role = Role.OPERATOR) -> None:
        """As a keyboard user does: the field has the focus, and Enter sends it."""
        self.driver.delete_all_cookies()
        self.open("/")
        self.until("document.getElementById('token')")
        self.press(self.site.token(role), "\ue007")
        self.until("location.pathname.endsWith('/fleet')")

    def scheme(self, name: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def width(self, pixels: int, height: int = 900) -> None:
        metrics = {"width": pixels, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def photograph(self, name: str) -> None:
        """For the docs, and only when asked to: a picture that differs by a pixel is no news."""
        if os.environ.get("RELIGHT_SCREENSHOTS"):
            folder = ROOT / "docs" / "screenshots"
            folder.mkdir(parents=True, exist_ok=True)
            self.driver.save_screenshot(str(folder / f"{name}.png"))


@pytest.fixture(scope="session")
def chromium() -> tuple[str, str]:
    """Paths of Chromium and its driver, installed if this may be done here; skips loudly otherwise."""
    if AXE.exists() is False or shutil.which("chromedriver") is None or shutil.which("chromium") is None:
        subprocess.run(["bash", str(ROOT / ".ci" / "setup-browser")], check=True, timeout=600)
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("no Chromium with its driver: as root on Debian run .ci/setup-browser")
    return browser, driver


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    chat = NotifyChannel(name="chat", kind="slack", url="https://hooks.slack.com/x", approve_links=True)
    settings = Settings(
        recommend=Recommend(mode=Mode.ACT),
        audit=Audit(path=tmp_path_factory.mktemp("site") / "audit.duckdb"),
        notify=Notify(channels=(chat,), console_url="http://relight.test"),
    )
    with anyio.from_thread.start_blocking_portal() as portal:
        service = start(bootstrap.rule_store(Settings()), portal, settings=settings)
        scenery = furnish(service)
        listener = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(service.app, log_level="warning", lifespan="off", timeout_graceful_shutdown=6)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            thread.join(0.02)
        yield Site(service, f"http://127.0.0.1:{listener.getsockname()[1]}", scenery)
        server.should_exit = True
        thread.join(10)
        listener.close()


@pytest.fixture(scope="session")
def window(chromium: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = chromium[0]
    for one in (*ARGUMENTS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(one)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Driver(executable_path=chromium[1]))
    driver.set_page_load_timeout(20)
    driver.set_script_timeout(20)
    yield driver
    driver.quit()


@pytest.fixture
def tab(window: webdriver.Chrome, site: Site) -> Tab:
    opened = Tab(window, site)
    opened.scheme("light")
    opened.width(1280)
    opened.log_in()
    opened.complaints()
    return opened
