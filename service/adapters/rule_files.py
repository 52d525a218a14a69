# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Rule files from disk: the shipped packs, the taxonomy, and a site's own folders."""

from __future__ import annotations

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


def read_text(path: Path) -> str:
    """A rule file's text; bytes that are not UTF-8 become U+FFFD, which lint then reports in place."""
    return path.read_bytes().decode("utf-8", "replace")


def _name(path: Path) -> str:
    try:
        return str(path.relative_to(RULES_DIR.parent))
    except ValueError:
        return str(path)
