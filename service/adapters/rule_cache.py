# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Checked rule sets kept as JSON by the digest of their files, so that YAML is parsed and tested once."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

import rules
from rules.lint import lint
from rules.match import RuleSet
from rules.problems import RulesInvalid
from rules.schema import Signature

_SIGNATURES = TypeAdapter(list[Signature])
_FORMAT = b"relight rule cache 1"
_CODE = ("schema.py", "lint.py", "source.py", "match.py")


def load_cached(files: Mapping[str, str], failures: Iterable[str], folder: Path | None) -> tuple[RuleSet, RuleSet]:
    """Compile a rule set, checking it only if these very files have not been checked by this program before.

    Shapes: as `rules.lint.load`; `folder` None means no cache.
    Errors: RulesInvalid with every problem. A cache that cannot be read or written is only slower.
    """
    names = sorted(failures)
    kept = None if folder is None else folder / f"{_digest(files, names)}.json"
    checked = _read(kept)
    if checked is None:
        report = lint(files, names)
        if report.problems:
            raise RulesInvalid(report.problems)
        checked = [s for s in report.signatures if s.maturity != "deprecated"]
        _write(kept, checked)
    return (
        RuleSet(s for s in checked if s.kind == "signature"),
        RuleSet(s for s in checked if s.kind == "progress"),
    )


def _digest(files: Mapping[str, str], failures: Iterable[str]) -> str:
    digest = hashlib.sha256(_FORMAT)
    home = Path(rules.__file__).parent
    for name in _CODE:
        digest.update((home / name).read_bytes())
    for name, text in sorted(files.items()):
        digest.update(f"{len(name)}:{name}{len(text)}:".encode())
        digest.update(text.encode("utf-8", "surrogatepass"))
    digest.update("\n".join(failures).encode())
    return digest.hexdigest()


def _read(path: Path | None) -> list[Signature] | None:
    if path is None:
        return None
    try:
        return _SIGNATURES.validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _write(path: Path | None, signatures: list[Signature]) -> None:
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as part:
            part.write(_SIGNATURES.dump_json(signatures))
        Path(part.name).replace(path)
        for old in sorted(path.parent.glob("*.json"), key=lambda p: p.stat().st_mtime)[:-8]:
            old.unlink(missing_ok=True)
    except OSError:
        return
