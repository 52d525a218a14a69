# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Upgrade and roll-back as the operator's guide tells them, with two versions of the code and one folder of data."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.instance import Instance
from tests.deploy.tools import ROOT

pytestmark = pytest.mark.slow
PACKAGES = ("relight", "rules", "models", "detectors", "service", "controllers")
FIRST = Path(__file__).parent / "histories" / "first.parquet"
NEXT = "CREATE TABLE note (position BIGINT NOT NULL, text VARCHAR NOT NULL);"
UNREACHABLE = 4


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The next version: this one, with one more migration."""
    tree = tmp_path_factory.mktemp("newer")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "service" / "adapters" / "migrations" / "0002_note.sql").write_text(NEXT)
    yield tree
    shutil.rmtree(tree)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of a machine that has seen a failure and was stopped."""
    found = Instance(tmp_path_factory.mktemp("seen") / "machine")
    with found.serving():
        found.crash("a-1", "n2")
    return found.folder


@pytest.fixture
def machine(seen: Path, tmp_path: Path) -> Instance:
    shutil.copytree(seen, tmp_path / "machine")
    return Instance(tmp_path / "machine")


def events(machine: Instance, kind: str) -> list[dict[str, object]]:
    done = machine.cli("audit", "tail", "-n", "1000", "--kind", kind, "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line)["event"] for line in done.stdout.splitlines()]


def test_an_upgrade_migrates_the_file_keeps_a_copy_and_says_so(machine: Instance, newer: Path) -> None:
    before = machine.cli("audit", "verify").stdout
    machine.tree = newer
    with machine.serving():
        assert machine.told("/v1/attempts/a-1")["state"] == "FAILED"
        (repair,) = machine.told("/v1/health")["audit_repairs"]
        assert repair["repair"] == "migrated" and repair["kept_at"] == "relight.duckdb.before-0002"
        assert any("migrated" in one for one in machine.told("/readyz")["degraded"]) is False
    assert [one["repair"] for one in events(machine, "audit.repaired")] == ["migrated"]
    copy = machine.folder / "relight.duckdb.before-0002"
    assert copy.is_file() and before.startswith("sound: ")
    with machine.serving():
        assert machine.told("/v1/health")["audit_repairs"] == []


def test_the_older_version_refuses_the_newer_file_and_names_the_way_back(machine: Instance, newer: Path) -> None:
    before = machine.cli("audit", "verify").stdout
    machine.tree = newer
    with machine.serving():
        machine.crash("a-2", "n3")
    machine.tree = ROOT
    for words in (("serve",), ("audit", "verify")):
        done = machine.cli(*words)
        assert done.returncode == UNREACHABLE
        assert "the audit file has schema 2, this Relight knows up to 1" in done.stderr
        assert "relight.duckdb.before-0002" in done.stderr

    kept = machine.folder / "relight.duckdb.before-0002"
    for file in machine.folder.glob("relight.duckdb*"):
        if file != kept:
            file.rename(machine.folder.parent / file.name)
    kept.rename(machine.audit)
    assert machine.cli("audit", "verify").stdout == before
    with machine.serving():
        assert machine.told("/v1/attempts/a-1")["state"] == "FAILED"
        assert machine.ask("GET", "/v1/attempts/a-2").status_code == 404


def test_a_backup_of_the_newer_version_can_be_restored_by_the_older_one_if_it_knows_all_its_events(
    machine: Instance, newer: Path, tmp_path: Path
) -> None:
    machine.tree = newer
    with machine.serving():
        machine.crash("a-2", "n3")
    assert machine.cli("audit", "backup", str(tmp_path / "backup")).returncode == 0
    older = Instance(tmp_path / "older")
    assert older.cli("audit", "restore", str(tmp_path / "backup")).returncode == 0
    with older.serving():
        assert older.told("/v1/attempts/a-2")["state"] == "FAILED"


def test_an_event_of_a_newer_version_is_refused_by_name(machine: Instance, tmp_path: Path) -> None:
    """As a newer Relight would write it: sound in the chain, and of a kind that is not known here."""
    from relight.chain import GENESIS, draft
    from relight.events import ServiceStopped
    from relight.ports import Head
    from service.adapters.audit_migrations import shipped
    from service.adapters.audit_store import AuditStore
    from tests.api.running import START

    record = draft(ServiceStopped(at=START)).seal(GENESIS)
    future = record._replace(kind="job.taught", payload=record.payload.replace("service.stopped", "job.taught"))
    future = future._replace(hash=future.digest())
    newest = Instance(tmp_path / "newest")
    store = AuditStore(newest.audit)
    store.migrate(shipped())
    store.insert([future])
    store.close()
    assert Head(position=1, hash=future.hash) == future.head
    done = newest.cli("serve")
    assert done.returncode == UNREACHABLE and "unknown event kind 'job.taught'" in done.stderr
    assert "upgrade" in done.stderr and "Traceback" not in done.stderr


def test_the_record_of_the_first_version_is_read_and_goes_on(tmp_path: Path) -> None:
    """What the first version with an API recorded of a whole recovery, as it exported it."""
    from service.adapters.audit_restore import proved, restored

    machine = Instance(tmp_path / "machine")
    head = restored(FIRST, machine.audit, proved(FIRST))
    assert head.position == 40
    assert machine.cli("audit", "verify", "--anchor", f"{head.position}:{head.hash}").returncode == 0
    with machine.serving():
        states = {one["workload_id"]: one["state"] for one in machine.told("/v1/incidents")["items"]}
        assert states["llm-7b"] == "CLOSED_RECOVERED"
        assert [one["node"] for one in machine.told("/v1/exclusions")["items"]] in ([], ["n2"])  # it expires by itself
        assert machine.crash("c-1", "n4")["action"]
        assert machine.ask("GET", "/console/incidents").status_code in {200, 303}
    assert machine.cli("audit", "verify").stdout.startswith("sound: ")
