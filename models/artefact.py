# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A trained model as files that vouch for each other: a manifest of digests and versions, named by its own digest."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from relight.jsonform import JsonObject, MalformedJson, decode, encode

SCHEMA = 1
MANIFEST = "manifest.json"
MODEL = "model.joblib"
FEATURES = "features.json"
CARD = "card.md"
GUESSES = "guesses.json"
_NEEDED = frozenset({MODEL, FEATURES, CARD})
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z._+-]{0,63}")
_EXACT = frozenset({"scikit-learn"})


class ArtefactRefused(ValueError):
    """An artefact that must not be opened; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a model is, of what it was made, and the SHA-256 of every other file.

    Units: `threshold` is the confidence from which a hint counts as confident; above 1 none does.
    """

    schema: int = SCHEMA
    name: str
    version: str
    created_at: datetime
    python: str
    libraries: Mapping[str, str]
    data_digest: str
    examples: int
    threshold: float
    metrics: JsonObject
    files: Mapping[str, str]

    @property
    def reference(self) -> str:
        return f"{self.name}@{self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """A complete artefact: its digest, which is that of the manifest, and all its files by name."""

    digest: str
    manifest: Manifest
    files: Mapping[str, bytes]


def seal(manifest: Manifest, files: Mapping[str, bytes]) -> Sealed:
    """Name the files in the manifest and the whole by the manifest's digest.

    Errors: ArtefactRefused for a name or version of another form, or a missing file.
    """
    parse_reference(manifest.reference)
    if missing := sorted(_NEEDED - set(files)):
        raise ArtefactRefused(f"{manifest.reference} lacks {missing}; an artefact holds {sorted(_NEEDED)}")
    said = {**encode(manifest), "files": {name: sha256(data) for name, data in sorted(files.items())}}
    written = json.dumps(said, indent=1, sort_keys=True, ensure_ascii=True, allow_nan=False).encode("ascii")
    return unsealed({**files, MANIFEST: written}, sha256(written))


def unsealed(files: Mapping[str, bytes], digest: str) -> Sealed:
    """The artefact of these files, if they are exactly those that `digest` stands for.

    Errors: ArtefactRefused for a file that is missing, changed or too many, or a manifest of another schema.
    """
    manifest = manifest_of(files.get(MANIFEST), digest)
    found = {name: sha256(data) for name, data in files.items() if name != MANIFEST}
    for name in sorted({*found, *manifest.files}):
        if found.get(name) != manifest.files.get(name):
            what = "is missing" if name not in found else "is not in the manifest" if name not in manifest.files else (
                f"has digest {found[name][:12]}, need {manifest.files[name][:12]}"
            )  # fmt: skip
            raise ArtefactRefused(f"{manifest.reference}: {name} {what}; restore the artefact or train it anew")
    return Sealed(digest=digest, manifest=manifest, files=dict(files))


def manifest_of(written: bytes | None, digest: str) -> Manifest:
    """Errors: ArtefactRefused if the bytes are none of this digest or of another schema."""
    if written is None:
        raise ArtefactRefused(f"{digest[:12]}: {MANIFEST} is missing; restore the artefact or train it anew")
    if sha256(written) != digest:
        raise ArtefactRefused(
            f"{MANIFEST} has digest {sha256(written)[:12]}, need {digest[:12]}; restore the artefact or train it anew"
        )
    try:
        said = json.loads(written)
        schema = said["schema"]
        if schema != SCHEMA:
            raise ArtefactRefused(f"{digest[:12]}: manifest of schema {schema!r}, need {SCHEMA}; train it anew")
        manifest = decode(Manifest, said)
    except (MalformedJson, ValueError, KeyError, TypeError) as why:
        if isinstance(why, ArtefactRefused):
            raise
        raise ArtefactRefused(f"{digest[:12]}: {MANIFEST} can't be read ({why}); train it anew") from why
    parse_reference(manifest.reference)
    return manifest


def check_versions(manifest: Manifest, libraries: Mapping[str, str], python: str) -> None:
    """Errors: ArtefactRefused unless the model was made by what runs here.

    scikit-learn makes no promise between any two releases, so its version must be the same; of Python and the
    other libraries the first two numbers must be.
    """
    made = {**manifest.libraries, "python": manifest.python}
    runs = {**libraries, "python": python}
    other = [
        f"{name} {made.get(name, 'unknown')} (here {runs[name]})"
        for name in sorted(runs)
        if _series(name, made.get(name, "")) != _series(name, runs[name])
    ]
    if other:
        raise ArtefactRefused(f"{manifest.reference} was made by {', '.join(other)}; train it anew here")


def parse_reference(reference: str) -> tuple[str, str]:
    """`NAME@VERSION` as its two parts. Errors: ArtefactRefused for any other form."""
    name, _, version = reference.partition("@")
    if _NAME.fullmatch(name) is None or _VERSION.fullmatch(version) is None:
        raise ArtefactRefused(f"need NAME@VERSION, as in attribution@3, got {reference!r}")
    return name, version


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _series(name: str, version: str) -> str:
    return version if name in _EXACT else ".".join(version.split(".")[:2])
