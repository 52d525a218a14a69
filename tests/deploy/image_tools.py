# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""An image really built from deploy/Dockerfile, without a daemon, and run as the guide says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.deploy.tools import DEPLOY, ROOT, tool

PACKAGES = "buildah podman runc debootstrap uidmap"
OURS = "localhost/relight:test"
SUITE = "trixie"
UID = 10_001
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
LIMITS = ("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=512:512")  # what the engine asks for may be forbidden
LOCKED = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")


def _folder() -> Path:
    """In /var/tmp, since image layers are no cache to be kept for long and need a disk of some size."""
    found = Path("/var/tmp/relight-image-tests")
    found.mkdir(exist_ok=True)
    return found


def _store() -> tuple[str, ...]:
    where = _folder()
    return ("--root", f"{where}/store", "--runroot", f"{where}/run", "--storage-driver", "vfs")


def buildah(*words: str, timeout: float = 900, check: bool = True) -> subprocess.CompletedProcess[str]:
    return _call(["buildah", *_store(), *words], timeout, check)


def podman(*words: str, timeout: float = 120, check: bool = True) -> subprocess.CompletedProcess[str]:
    engine = ["--cgroup-manager", "cgroupfs", "--events-backend", "file", "--runtime", "runc"]
    return _call(["podman", *_store(), *engine, *words], timeout, check)


def _call(command: list[str], timeout: float, check: bool) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=ROOT)
    assert not check or done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    return done


def built() -> str:
    """The image's name. Skips, and says why, where it can't be built."""
    if os.geteuid() != 0:
        pytest.skip("not root, so the image is NOT tested here")
    for name in ("buildah", "podman", "runc"):
        tool(name, PACKAGES)
    certificates = ("--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro") if CERTIFICATES.is_file() else ()
    buildah("bud", "--isolation", "chroot", "--format", "docker", *certificates, "--build-arg", f"PYTHON={_base()}",
            "-t", OURS, "-f", "deploy/Dockerfile", ".")  # fmt: skip
    return OURS


def _base() -> str:
    """The base that the Dockerfile names, or where no registry answers, one made of Debian's own packages."""
    (named,) = re.findall(r"^ARG PYTHON=(\S+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    ours = f"localhost/python-{SUITE}"
    if podman("image", "exists", ours, check=False).returncode == 0:
        return ours
    if podman("pull", "-q", f"docker.io/library/{named}", check=False, timeout=300).returncode == 0:
        return f"docker.io/library/{named}"
    tool("debootstrap", PACKAGES)
    root = _folder() / "rootfs"
    shutil.rmtree(root, ignore_errors=True)
    made = _call(
        ["debootstrap", "--variant=minbase", "--include=ca-certificates,python3-venv,tzdata", SUITE, str(root)], 1800, False
    )  # fmt: skip
    if made.returncode:
        pytest.skip(f"no registry and no mirror, so the image is NOT tested here: {made.stderr[-300:]}")
    for name in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man"):
        shutil.rmtree(root / name, ignore_errors=True)
    (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    (_folder() / "Containerfile").write_text("FROM scratch\nCOPY rootfs /\n")
    buildah("bud", "--isolation", "chroot", "-t", ours, "-f", f"{_folder()}/Containerfile", str(_folder()))
    return ours


@dataclass(frozen=True)
class Container:
    """A running service, its address and the folder that is its volume."""

    name: str
    url: str
    volume: Path
    token: str

    def sh(self, words: str) -> subprocess.CompletedProcess[str]:
        return podman("exec", self.name, "sh", "-c", words, check=False)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, headers={"Authorization": f"Bearer {self.token}"}, timeout=10)

    def stop(self) -> tuple[float, int]:
        """How long it took, and the exit code."""
        begun = time.monotonic()
        podman("stop", "-t", "40", self.name)
        took = time.monotonic() - begun
        return took, int(podman("inspect", self.name, "--format", "{{.State.ExitCode}}").stdout)


@contextmanager
def running(image: str, volume: Path, port: int, **environment: str) -> Iterator[Container]:
    """The service with nothing writable but its volume, on the host's network; ready when the block begins."""
    tokens = volume.parent / "tokens.json"
    token = _token(tokens)
    volume.mkdir(exist_ok=True)
    os.chown(volume, UID, UID)
    name = f"relight-test-{os.getpid()}-{port}"
    given = [f"--env={key}={value}" for key, value in {"RELIGHT__SERVER__PORT": str(port), **environment}.items()]
    podman("run", "-d", "--name", name, "--network", "host", *LOCKED, *LIMITS, *given, "-v", f"{volume}:/var/lib/relight",
           "-v", f"{tokens}:/etc/relight/tokens.json:ro", image)  # fmt: skip
    container = Container(name, f"http://127.0.0.1:{port}", volume, token)
    try:
        _wait_until_ready(container)
        yield container
    finally:
        podman("rm", "-f", "-t", "5", name)


def _token(file: Path) -> str:
    environment = os.environ | {"RELIGHT__AUTH__TOKENS_FILE": str(file)}
    made = subprocess.run([Path(sys.executable).with_name("relight"), "token", "new", "ada", "--role", "admin"],
                          env=environment, capture_output=True, text=True, timeout=60)  # fmt: skip
    assert made.returncode == 0, made.stderr
    os.chown(file, UID, UID)
    return made.stdout.strip()


def _wait_until_ready(container: Container) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{container.url}/readyz", timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.2)
    pytest.fail(f"not ready within 60 s: {podman('logs', container.name, check=False).stderr[-2000:]}")
