# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Open an audit log that may have been through a crash, and say aloud what had to be mended."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import duckdb

from relight.chain import GENESIS, ChainWalk, Record
from relight.events import AuditRepaired, Repair
from relight.ports import Head
from service.adapters.audit_migrations import AuditFileRefused, Migration, kept_before
from service.adapters.audit_spill import Salvage, salvage
from service.adapters.audit_store import AuditStore

TAIL = 1_000


@dataclass(slots=True, kw_only=True)
class Recovery:
    """An open store, what it could not take back yet, and the repairs to be recorded.

    `spill_size` is how much of the spill file must be kept.
    """

    store: AuditStore
    head: Head = GENESIS
    unfolded: list[Record] = field(default_factory=list)
    spill_size: int = 0
    repairs: list[AuditRepaired] = field(default_factory=list)


def recover(
    make: Callable[[], AuditStore],
    path: Path,
    *,
    at: datetime,
    known: tuple[Migration, ...],
    remembered: Head | None,
) -> Recovery:
    """Open, migrate, take back what was spilled, and check the end of the chain.

    Errors: AuditFileRefused if another process has the file, a newer program made it, or it can't be
    read even without its write-ahead log.
    """
    recovery = _open(make, path, at)
    try:
        _migrate(recovery, known, at)
        _take_back(recovery, spill_path(path), at)
        _check_tail(recovery, at)
        _check_remembered(recovery, remembered, at)
    except (AuditFileRefused, duckdb.Error):
        recovery.store.close()
        raise
    return recovery


def spill_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.spill.jsonl")


def _open(make: Callable[[], AuditStore], path: Path, at: datetime) -> Recovery:
    wal = path.with_name(f"{path.name}.wal")
    try:
        return Recovery(store=make())
    except duckdb.Error as why:
        if "lock" in str(why).lower() or not wal.exists():
            raise AuditFileRefused(f"can't open the audit file {path.name}: {why}") from why
        return _open_without_wal(make, wal, at, why)


def _open_without_wal(make: Callable[[], AuditStore], wal: Path, at: datetime, why: duckdb.Error) -> Recovery:
    kept = _free_name(wal, at)
    wal.rename(kept)
    try:
        store = make()
    except duckdb.Error as still:
        kept.rename(wal)
        raise AuditFileRefused(f"can't open the audit file, with or without its write-ahead log: {still}") from why
    repair = AuditRepaired(
        at=at,
        repair=Repair.WAL_QUARANTINED,
        summary="the database's write-ahead log was unreadable and set aside; its events were taken back "
        "from the spill file as far as that goes",
        kept_at=kept.name,
        detail={"error": str(why)[:500]},
    )
    return Recovery(store=store, repairs=[repair])


def _migrate(recovery: Recovery, known: tuple[Migration, ...], at: datetime) -> None:
    applied = recovery.store.migrate(known)
    if applied and applied[0].number > 1:
        names = [f"{one.number:04}_{one.name}" for one in applied]
        repair = AuditRepaired(
            at=at,
            repair=Repair.MIGRATED,
            summary="the audit file was migrated; a copy from before is kept beside it",
            kept_at=kept_before(recovery.store.path.name, applied[0].number),
            detail={"migrations": names},
        )
        recovery.repairs.append(repair)


def _take_back(recovery: Recovery, path: Path, at: datetime) -> None:
    found = salvage(path)
    head = recovery.store.head()
    missing = _following(found.records, head)
    is_foreign = _contradicts(found, recovery.store, head)
    if found.is_damaged or is_foreign:
        _set_spill_aside(recovery, path, at, "not all of it follows the database" if is_foreign else "damaged")
    try:
        if missing:
            recovery.store.insert(missing)
        recovery.store.checkpoint()
    except (duckdb.Error, OSError):
        recovery.unfolded, recovery.spill_size = missing, found.size
    else:
        if missing:
            recovery.repairs.append(folded_back(missing, at))
    recovery.head = missing[-1].head if missing else head


def folded_back(records: Sequence[Record], at: datetime) -> AuditRepaired:
    return AuditRepaired(
        at=at,
        repair=Repair.SPILL_FOLDED_BACK,
        summary=f"{len(records)} events were taken back from the spill file",
        first=records[0].position,
        last=records[-1].position,
    )


def _following(records: Sequence[Record], head: Head) -> list[Record]:
    """The records that continue the chain behind `head`, as far as they do."""
    walk = ChainWalk(head)
    return [record for record in records if record.position > head.position and walk.see([record])]


def _contradicts(found: Salvage, store: AuditStore, head: Head) -> bool:
    """True if the spill holds a record that the database neither has nor can take."""
    last = found.records[-1] if found.records else None
    if last is None:
        return False
    if last.position > head.position:
        continued = _following(found.records, head)
        return not continued or continued[-1].position != last.position
    (same,) = store.select(last.position - 1, 1) or (None,)
    return same is None or same.hash != last.hash


def _set_spill_aside(recovery: Recovery, path: Path, at: datetime, reason: str) -> None:
    kept = _free_name(path, at)
    shutil.copy2(path, kept)
    repair = AuditRepaired(
        at=at,
        repair=Repair.SPILL_QUARANTINED,
        summary=f"a copy of the spill file was set aside: {reason}",
        kept_at=kept.name,
    )
    recovery.repairs.append(repair)


def _check_tail(recovery: Recovery, at: datetime) -> None:
    records = recovery.store.select(max(0, recovery.store.head().position - TAIL), TAIL)
    if not records:
        return
    walk = ChainWalk(Head(position=records[0].position - 1, hash=records[0].prev_hash))
    if not walk.see(records) and walk.broken:
        broken = walk.broken
        repair = AuditRepaired(
            at=at,
            repair=Repair.CHAIN_BROKEN,
            summary=f"the chain is broken at position {broken.position}: {broken.reason}",
            first=broken.position,
            detail={"expected": broken.expected, "found": broken.found},
        )
        recovery.repairs.append(repair)


def _check_remembered(recovery: Recovery, remembered: Head | None, at: datetime) -> None:
    if remembered is None or remembered.position == 0:
        return
    head = recovery.head
    if remembered.position > head.position:
        repair = AuditRepaired(
            at=at,
            repair=Repair.TAIL_MISSING,
            summary=f"events {head.position + 1} to {remembered.position} were acknowledged and are gone; "
            "restore a backup if they matter",
            first=head.position + 1,
            last=remembered.position,
            detail={"remembered_hash": remembered.hash},
        )
        recovery.repairs.append(repair)
        return
    there = recovery.store.select(remembered.position - 1, 1) or recovery.unfolded
    found = next((one.hash for one in there if one.position == remembered.position), "")
    if found != remembered.hash:
        repair = AuditRepaired(
            at=at,
            repair=Repair.CHAIN_BROKEN,
            summary=f"the event at position {remembered.position} is not the one that was remembered",
            first=remembered.position,
            detail={"expected": remembered.hash, "found": found},
        )
        recovery.repairs.append(repair)


def _free_name(path: Path, at: datetime) -> Path:
    stamp = at.strftime("%Y%m%dT%H%M%S")
    names = (path.with_name(f"{path.name}.aside-{stamp}-{number}") for number in range(1_000_000))
    return next(name for name in names if not name.exists())
