# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Opening logs below allowed folders only: step by step, following no symbolic link, regular files only."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

_MAX_DEPTH = 12
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


class PathRefused(ValueError):
    """A path that may not be read; the message says which and why."""


class LogRoots:
    """The folders that logs may come from.

    The roots themselves are the operator's word and may be symbolic links; below them nothing is followed, so
    that a job's owner can't make the service read what only the service may read. Every component is opened
    relative to the one before it: a folder that is swapped for a link in between is refused, not followed.
    Errors: ValueError without a root or for a relative one.
    """

    def __init__(self, roots: Iterable[Path]) -> None:
        given = tuple(roots)
        if not given:
            raise ValueError("no allowed log folder; name at least one absolute path")
        for root in given:
            if not root.is_absolute():
                raise ValueError(f"allowed log folder {str(root)!r} is relative; give an absolute path")
        self.roots = tuple(Path(os.path.normpath(root)) for root in given)

    def check(self, path: str) -> None:
        """Errors: PathRefused if the path is outside of the roots, whether or not the file exists."""
        self._below(path)

    def open(self, path: str) -> int:
        """A descriptor of a regular file, for reading.

        Errors: PathRefused if the path is outside, passes a link, or is no regular file; FileNotFoundError
                if it is not there (yet); OSError otherwise.
        """
        folder, name = self._folder(path)
        try:
            descriptor = _opened(name, _FILE, folder, path)
        finally:
            os.close(folder)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise PathRefused(f"{path} is no regular file")
        return descriptor

    def siblings(self, path: str) -> tuple[str, ...]:
        """The files beside a path whose names begin with its own: where a rotated log may have gone."""
        try:
            folder, name = self._folder(path)
        except FileNotFoundError:
            return ()
        try:
            with os.scandir(folder) as entries:
                names = [
                    e.name for e in entries
                    if e.name != name and e.name.startswith(name) and e.is_file(follow_symlinks=False)
                ]  # fmt: skip
        finally:
            os.close(folder)
        return tuple(str(PurePosixPath(path).with_name(other)) for other in sorted(names))

    def _folder(self, path: str) -> tuple[int, str]:
        """The folder of a path, opened component by component, and the last name."""
        root, parts = self._below(path)
        folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for part in parts[:-1]:
            try:
                inner = _opened(part, _FOLDER, folder, path)
            finally:
                os.close(folder)
            folder = inner
        return folder, parts[-1]

    def _below(self, path: str) -> tuple[Path, tuple[str, ...]]:
        """The root that holds a path, and the names below it. Errors: PathRefused."""
        if "\0" in path or not path.startswith("/"):
            raise PathRefused(f"{path!r} is no absolute path")
        pure = PurePosixPath(path)
        if ".." in pure.parts:
            raise PathRefused(f"{path} climbs with '..'; give the plain path")
        for root in self.roots:
            if pure.is_relative_to(root) and pure != PurePosixPath(root):
                parts = pure.relative_to(root).parts
                if len(parts) > _MAX_DEPTH:
                    raise PathRefused(f"{path} lies more than {_MAX_DEPTH} folders below {root}")
                return root, parts
        allowed = ", ".join(map(str, self.roots))
        raise PathRefused(f"{path} is outside of the allowed log folders ({allowed})")


def _opened(part: str, flags: int, folder: int, path: str) -> int:
    try:
        return os.open(part, flags, dir_fd=folder)
    except OSError as why:
        if why.errno in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK):
            raise PathRefused(f"{path}: {part!r} is a symbolic link or no folder; links are not followed") from why
        if why.errno in (errno.ENXIO, errno.ENODEV):
            raise PathRefused(f"{path} is no regular file") from why
        raise
