# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The audit log in DuckDB: one writer that commits in groups, and nothing acknowledged before it is durable."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

from relight.chain import ChainWalk, Record, draft
from relight.events import AuditRepaired, Event
from relight.ports import (
    EVERYTHING,
    AuditFilter,
    AuditUnavailable,
    Clock,
    Exported,
    Head,
    Recorded,
    StoredEvent,
    Verification,
)
from service.adapters.audit_export import export_parquet
from service.adapters.audit_head import FileLock, HeadFile
from service.adapters.audit_migrations import AuditFileRefused, Migration, shipped
from service.adapters.audit_queue import GroupQueue, Request
from service.adapters.audit_recovery import recover, spill_path
from service.adapters.audit_store import AuditStore
from service.adapters.audit_writer import AuditWriter, Durability
