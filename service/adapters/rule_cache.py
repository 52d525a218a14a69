# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Checked rule sets kept as JSON by the digest of their files, so that YAML is parsed and tested once."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

import rules
from rules.checked import Checked
from rules.lint import check

_CHECKED = TypeAdapter(Checked)
_FORMAT = b"relight rule cache 2"


def check_cached(files: Mapping[str, str], failures: Iterable[str], folder: Path | None) -> Checked:
    """A faultless rule set, checked only if these very files have not been checked by this program before.

    Shapes: as `rules.lint.check`; `folder` None means no cache.
    Errors: RulesInvalid with every problem. A cache that cannot be read or written is only slower.
    """
    names = sorted(failures)
    kept = None if folder is None else folder / f"{_digest(files, names)}.json"
    checked = _read(kept)
    if checked is None:
        checked = check(files, names)
        _write(kept, checked)
    return checked


def _digest(files: Mapping[str, str], failures: Iterable[str]) -> str:
    digest = hashlib.sha256(_FORMAT)
    home = Path(rules.__file__).parent
    for module in sorted(home.glob("*.py")):
        digest.update(module.read_bytes())
    for name, text in sorted(files.items()):
        digest.update(f"{len(name)}:{name}{len(text)}:".encode())
        digest.update(text.encode("utf-8", "surrogatepass"))
    digest.update("\n".join(failures).encode())
    return digest.hexdigest()


def _read(path: Path | None) -> Checked | None:
    if path is None:
        return None
    try:
        return _CHECKED.validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _write(path: Path | None, checked: Checked) -> None:
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as part:
            part.write(_CHECKED.dump_json(checked))
        Path(part.name).replace(path)
        for old in sorted(path.parent.glob("*.json"), key=lambda p: p.stat().st_mtime)[:-8]:
            old.unlink(missing_ok=True)
    except OSError:
        return
