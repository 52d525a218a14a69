# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Backups of a service's data: from its file, or from the service itself while it runs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from relight.ports import Head
from service.bootstrap.kit import beside, clock, held_folder, model_store, open_audit
from service.bootstrap.wiring import running_version
from service.config import Settings

if TYPE_CHECKING:
    from service.backup import Listed


def data_beside(settings: Settings) -> dict[str, Path]:
    """What a service keeps beside its record, by the name that it has in a backup."""
    audit = settings.audit.path
    notify = beside(audit, settings.notify.state_file, "notify")
    return {
        "detectors.json": beside(audit, settings.detect.state_file, "detectors"),
        "cursors.json": beside(audit, settings.follow.cursors_file, "cursors"),
        "notify.json": notify,
        "notify.dead.jsonl": notify.with_suffix(".dead.jsonl"),
        "traces.json": beside(audit, settings.tracing.state_file, "traces"),
        "models": model_store(settings).folder,
        "held": held_folder(settings),
    }


def back_up(settings: Settings, folder: Path, url: str = "", token: str = "") -> Listed:
    """A backup from the running service at `url`, or without one from the file itself.

    Errors: FileExistsError, OSError, BackupUnreachable, BackupRefused, BackupDamaged; from the file, what the
    audit log raises when it can't be opened.
    """
    from service import backup
    from service.adapters.audit_fetch import fetched_export
    from service.adapters.audit_restore import proved

    def from_file(to: Path) -> None:
        log = open_audit(settings)
        try:
            with tempfile.TemporaryDirectory(dir=to.parent) as scratch:
                Path(log.export(scratch).path).replace(to)
        finally:
            log.close()

    def from_service(to: Path) -> None:
        fetched_export(url, token, to)

    return backup.back_up(
        folder, data_beside(settings), from_service if url else from_file, proved,
        at=clock().now(), version=running_version(),
    )  # fmt: skip


def restore(settings: Settings, folder: Path) -> tuple[Head, tuple[str, ...]]:
    """The service's data as it was backed up; its end, and what was put beside the record.

    Errors: BackupDamaged, AuditFileRefused, OSError. Nothing is left behind unless all of it is there.
    """
    from service import backup
    from service.adapters.audit_restore import restored

    listed = backup.read_list(folder)
    meant = Head(position=listed.position, hash=listed.hash)
    head = restored(folder / backup.RECORD, settings.audit.path, meant)
    return head, backup.put_back(folder, listed, data_beside(settings))
