# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Rule files from disk: the shipped packs, the taxonomy, and a site's own folders."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import rules

RULES_DIR = Path(rules.__file__).parent
PACKS_DIR = RULES_DIR / "packs"
TAXONOMY_FILE = RULES_DIR / "taxonomy.yaml"
POLICY_FILE = RULES_DIR / "policy.yaml"


def read_packs(folders: Iterable[Path] = ()) -> dict[str, str]:
    """Text of every signature file of the shipped packs and of `folders`, by a readable name.

    Errors: FileNotFoundError if a folder is missing; OSError if a file cannot be read.
    """
    out: dict[str, str] = {}
    for root in (PACKS_DIR, *folders):
        if not root.is_dir():
            raise FileNotFoundError(f"rule folder {root} does not exist")
        for path in sorted(root.rglob("*.yaml")):
            if path.name != "pack.yaml":
                out[_name(path)] = read_text(path)
    return out


def fingerprint(folders: Iterable[Path] = ()) -> str:
    """Names, sizes and times of all signature files: it changes when any of them does, and costs no reading.

    Errors: FileNotFoundError if a folder is missing.
    """
    said: list[str] = []
    for root in (PACKS_DIR, *folders):
        if not root.is_dir():
            raise FileNotFoundError(f"rule folder {root} does not exist")
        for path in sorted(root.rglob("*.yaml")):
            try:
                status = path.stat()
            except FileNotFoundError:  # gone in between: the next look tells
                continue
            said.append(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_ino}")
    return hashlib.sha256("\n".join(said).encode("utf-8", "surrogatepass")).hexdigest()


def read_text(path: Path) -> str:
    """A rule file's text; bytes that are not UTF-8 become U+FFFD, which lint then reports in place."""
    return path.read_bytes().decode("utf-8", "replace")


def write_rule_file(path: Path, text: str) -> None:
    """Put a whole text in the place of a file, so that a service that watches it never reads half of it.

    Errors: OSError where the disk refuses; the file is then as it was.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        unfinished.write_text(text, "utf-8")
        unfinished.chmod(path.stat().st_mode & 0o777)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _name(path: Path) -> str:
    try:
        return str(path.relative_to(RULES_DIR.parent))
    except ValueError:
        return str(path)
