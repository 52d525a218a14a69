# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Trained models on disk: a folder an artefact, named by its digest, opened only if that digest was promoted."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

from models.artefact import (
    MANIFEST,
    ArtefactRefused,
    Manifest,
    Sealed,
    check_versions,
    manifest_of,
    parse_reference,
    unsealed,
)
from models.attribution_model import AttributionModel, ModelUnreadable, libraries
from models.attribution_training import model_of, python_version

MAX_BYTES = 256 << 20
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One folder of the store: its manifest, or why that can't be believed."""

    digest: str
    manifest: Manifest | None
    problem: str = ""


class ModelStore:
    """A folder of artefacts.

    Errors: ArtefactRefused for whatever must not be opened; OSError where the disk refuses.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, sealed: Sealed) -> Path:
        """Write an artefact, complete or not at all. Errors: ArtefactRefused if its name and version are taken."""
        target = self.folder / sealed.digest
        for other in self.listed():
            is_same_name = other.manifest is not None and other.manifest.reference == sealed.manifest.reference
            if is_same_name and other.digest != sealed.digest:
                raise ArtefactRefused(
                    f"{sealed.manifest.reference} is {other.digest[:12]} already; give another --version"
                )
        if target.is_dir():
            return target
        unfinished = self.folder / f".{sealed.digest}.{os.getpid()}.unfinished"
        unfinished.mkdir(parents=True)
        try:
            for name, data in sealed.files.items():
                with (unfinished / name).open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
            unfinished.replace(target)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        return target

    def listed(self) -> tuple[Stored, ...]:
        """Every artefact, by name, version and age; a broken one with its problem."""
        folders = (p for p in self.folder.glob("*") if p.is_dir() and _DIGEST.fullmatch(p.name))
        found = [self._stored(folder) for folder in folders]
        return tuple(sorted(found, key=lambda s: (s.manifest.name, s.manifest.created_at.isoformat(), s.digest)
                            if s.manifest is not None else ("~", "", s.digest)))  # fmt: skip

    def find(self, reference: str) -> Stored:
        """The artefact called NAME@VERSION. Errors: ArtefactRefused if there is none, or more than one."""
        parse_reference(reference)
        found = [s for s in self.listed() if s.manifest is not None and s.manifest.reference == reference]
        if not found:
            known = ", ".join(s.manifest.reference for s in self.listed() if s.manifest is not None) or "none"
            raise ArtefactRefused(f"no {reference} in {self.folder}; there is: {known}")
        if len(found) > 1:
            digests = ", ".join(s.digest[:12] for s in found)
            raise ArtefactRefused(f"{reference} is the name of {len(found)} artefacts ({digests}); remove all but one")
        return found[0]

    def read(self, digest: str) -> Sealed:
        """The artefact with every file checked against its digest; nothing is unpickled."""
        folder = self.folder / digest
        if _DIGEST.fullmatch(digest) is None or not folder.is_dir():
            raise ArtefactRefused(f"no artefact {digest[:12]} in {self.folder}; restore it or train it anew")
        files = {}
        for path in sorted(folder.iterdir()):
            if path.is_symlink() or not path.is_file():
                raise ArtefactRefused(f"{digest[:12]}: {path.name} is no plain file; restore the artefact")
            if path.stat().st_size > MAX_BYTES:
                raise ArtefactRefused(f"{digest[:12]}: {path.name} is larger than {MAX_BYTES} bytes; train it anew")
            files[path.name] = path.read_bytes()
        return unsealed(files, digest)

    @staticmethod
    def check_usable(sealed: Sealed) -> None:
        """Errors: ArtefactRefused if other libraries made it than run here."""
        check_versions(sealed.manifest, libraries(), python_version())

    def open(self, digest: str, promoted: Container[str]) -> tuple[AttributionModel, Sealed]:
        """The model itself: the only way to it leads through a promotion, all digests, and all versions."""
        if digest not in promoted:
            raise ArtefactRefused(f"artefact {digest[:12]} was never promoted; relight models promote NAME@VERSION")
        sealed = self.read(digest)
        self.check_usable(sealed)
        try:
            return model_of(sealed), sealed
        except ModelUnreadable as why:
            raise ArtefactRefused(f"{sealed.manifest.reference}: {why}") from why

    def _stored(self, folder: Path) -> Stored:
        try:
            path = folder / MANIFEST
            return Stored(
                digest=folder.name,
                manifest=manifest_of(path.read_bytes() if path.is_file() else None, folder.name),
            )
        except ArtefactRefused as why:
            return Stored(digest=folder.name, manifest=None, problem=str(why))
