# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Backup and restore as the operator's guide tells them, with real processes: while it writes, onto a fresh machine."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.instance import Instance

pytestmark = pytest.mark.slow
SOUND, UNREACHABLE, REFUSED, INTEGRITY, USAGE = 0, 4, 5, 6, 2


@pytest.fixture
def machine(tmp_path: Path) -> Instance:
    return Instance(tmp_path / "machine")


@pytest.fixture
def fresh(tmp_path: Path) -> Instance:
    """Another machine, with the same tokens and no data."""
    return Instance(tmp_path / "fresh")


@contextmanager
def writing(machine: Instance) -> Iterator[list[str]]:
    """Attempts are put one after the other as long as the block runs; the names acknowledged up to now."""
    stop, names = threading.Event(), list[str]()

    def write() -> None:
        while not stop.is_set():
            name = f"busy-{len(names)}"
            if machine.put_attempt(name) in {200, 201}:
                names.append(name)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        until(lambda: len(names) >= 5)
        yield names
    finally:
        stop.set()
        thread.join()


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, "nothing was written in 30 s"
        time.sleep(0.01)


def back_up(machine: Instance, folder: Path) -> Any:
    file = folder.with_suffix(".token")
    file.write_text(machine.token)
    return machine.cli("audit", "backup", str(folder), "--url", machine.url, "--token-file", str(file), "--json")


def state(machine: Instance) -> dict[str, Any]:
    """What an operator sees, without what changes by itself."""
    found = {what: machine.told(f"/v1/{what}?limit=250") for what in ("recommendations", "exclusions", "incidents")}
    items = {what: {one.get("id", one.get("node")): one for one in said["items"]} for what, said in found.items()}
    return {**items, "modes": machine.told("/v1/modes")}


# ------------------------------------------------------------------ while it runs


def test_a_backup_made_while_the_service_writes_is_whole_and_starts_a_fresh_machine(
    machine: Instance, fresh: Instance, tmp_path: Path
) -> None:
    with machine.serving():
        with writing(machine) as names:
            before = list(names)
            done = back_up(machine, tmp_path / "backup")
            after = len(names)
            until(lambda: len(names) > after)
        assert done.returncode == SOUND, done.stderr
        assert after > len(before), "nothing was written meanwhile, so this proves nothing"
        told = json.loads(done.stdout)
        assert told["events"] < machine.told("/v1/stats")["audit_position"]

    restored = fresh.cli("audit", "restore", str(tmp_path / "backup"))
    assert restored.returncode == SOUND, restored.stderr
    verified = fresh.cli("audit", "verify", "--anchor", told["head"])
    assert verified.stdout == f"sound: {told['events']} events, head {told['head']}\n"
    with fresh.serving():
        for name in before:
            assert fresh.ask("GET", f"/v1/attempts/{name}").status_code == 200, name


def test_recommendations_exclusions_modes_and_leases_are_as_they_were(
    machine: Instance, fresh: Instance, tmp_path: Path
) -> None:
    with machine.serving():
        done = machine.crash("a-1", "n2")
        lease = machine.claim(done)
        assert machine.converge(done, lease["claim_token"]).status_code == 200
        under_way = machine.crash("a-2", "n3")
        held = machine.claim(under_way)
        etag = machine.ask("GET", "/v1/modes").headers["ETag"]
        body = {"scope": "partition", "target": "gpu", "mode": "approve", "actor": "ada", "reason": "canary"}
        assert machine.ask("PUT", "/v1/modes", json=body, headers={"If-Match": etag}).status_code == 200
        before = state(machine)
        assert back_up(machine, tmp_path / "backup").returncode == SOUND

    assert fresh.cli("audit", "restore", str(tmp_path / "backup")).returncode == SOUND
    with fresh.serving():
        assert state(fresh) == before
        assert before["exclusions"] and len(before["recommendations"]) == 2
        other = {"controller_id": "c-2", "observed_generation": under_way["generation"], "lease_s": 60}
        taken = fresh.ask("POST", f"/v1/recommendations/{under_way['id']}/claim", json=other)
        assert taken.json()["code"] in {"claimed", "not_actionable"}
        assert fresh.converge(under_way, held["claim_token"]).status_code == 200


def test_what_stands_beside_the_record_goes_with_it(stopped: Instance, fresh: Instance, tmp_path: Path) -> None:
    machine = Instance(tmp_path / "machine")
    shutil.copytree(stopped.folder, machine.folder, dirs_exist_ok=True)
    beside = {"relight.detectors.json": "{}", "relight.cursors.json": '{"x": 1}', "relight.notify.json": '{"chat": 3}',
              "relight.notify.dead.jsonl": "{}\n"}  # fmt: skip
    for name, text in beside.items():
        (machine.folder / name).write_text(text)
    model = machine.folder / "relight-models" / ("a" * 64)
    model.mkdir(parents=True)
    (model / "model.skops").write_bytes(b"model")
    assert machine.cli("audit", "backup", str(tmp_path / "backup")).returncode == SOUND
    assert fresh.cli("audit", "restore", str(tmp_path / "backup")).returncode == SOUND
    assert {name: (fresh.folder / name).read_text() for name in beside} == beside
    assert (fresh.folder / "relight-models" / ("a" * 64) / "model.skops").read_bytes() == b"model"


# ------------------------------------------------------------------ refused


def test_who_may_not_read_everything_makes_no_backup(machine: Instance, tmp_path: Path) -> None:
    """Neither the file behind the service's back, nor a token for something else, nor one for another cluster."""
    with machine.serving():
        machine.crash("a-1", "n2")
        behind = machine.cli("audit", "backup", str(tmp_path / "backup"))
        machine.token = machine.new_token("c", "--role", "ingester")
        refused = back_up(machine, tmp_path / "backup")
        machine.token = machine.new_token("d", "--role", "controller", "--cluster", "east")
        partial = back_up(machine, tmp_path / "backup")
    assert behind.returncode == UNREACHABLE and "--url http://127.0.0.1:8756 --token-file FILE" in behind.stderr
    assert refused.returncode == REFUSED and "viewer's token" in refused.stderr
    assert partial.returncode == INTEGRITY and "whole record" in partial.stderr
    assert [one.name for one in tmp_path.glob("*backup*")] == ["backup.token"]


def test_a_service_that_is_not_there_is_said(machine: Instance, tmp_path: Path) -> None:
    machine.token = "x"
    done = back_up(machine, tmp_path / "backup")
    assert done.returncode == UNREACHABLE and machine.url in done.stderr


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Instance:
    """A machine that has seen a failure and was stopped."""
    found = Instance(tmp_path_factory.mktemp("stopped") / "machine")
    with found.serving():
        found.crash("a-1", "n2")
    return found


@pytest.fixture
def backup(stopped: Instance, tmp_path: Path) -> Path:
    assert stopped.cli("audit", "backup", str(tmp_path / "backup")).returncode == SOUND
    return tmp_path / "backup"


def test_data_that_are_there_are_not_overwritten(stopped: Instance, backup: Path) -> None:
    before = stopped.audit.read_bytes()
    done = stopped.cli("audit", "restore", str(backup))
    assert done.returncode == UNREACHABLE and "move it and all that stands beside it away first" in done.stderr
    assert stopped.audit.read_bytes() == before
    assert stopped.cli("audit", "backup", str(backup)).returncode == USAGE


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone", "unlisted", "another"])
def test_a_damaged_backup_is_refused_and_leaves_nothing(fresh: Instance, backup: Path, damage: str) -> None:
    record, listed = backup / "events.parquet", backup / "backup.json"
    content = bytearray(record.read_bytes())
    match damage:
        case "flipped":
            content[len(content) // 2] ^= 0x01
            record.write_bytes(content)
        case "cut":
            record.write_bytes(content[:-100])
        case "gone":
            record.unlink()
        case "unlisted":
            listed.unlink()
        case _:  # whole, listed, and of another record
            said = json.loads(listed.read_text())
            listed.write_text(json.dumps(said | {"hash": "0" * 64}))
    done = fresh.cli("audit", "restore", str(backup))
    assert done.returncode == INTEGRITY, done.stderr
    assert not [one for one in fresh.folder.iterdir() if not one.name.endswith(".lock")]


def test_a_changed_event_is_found_even_where_the_list_was_changed_with_it(
    fresh: Instance, backup: Path, tmp_path: Path
) -> None:
    import hashlib

    import pyarrow as pa
    import pyarrow.parquet

    record = backup / "events.parquet"
    table = pyarrow.parquet.read_table(record)
    column = table.column_names.index("payload")
    texts = [one.replace('"n2"', '"n7"') for one in table.column(column).to_pylist()]
    pyarrow.parquet.write_table(table.set_column(column, "payload", pa.array(texts)), record)
    listed = json.loads((backup / "backup.json").read_text())
    listed["files"]["events.parquet"] = hashlib.sha256(record.read_bytes()).hexdigest()
    (backup / "backup.json").write_text(json.dumps(listed))
    done = fresh.cli("audit", "restore", str(backup))
    assert done.returncode == INTEGRITY and "position" in done.stderr


def test_a_copy_of_the_folder_made_while_it_is_stopped_is_a_backup_too(stopped: Instance, tmp_path: Path) -> None:
    shutil.copytree(stopped.folder, tmp_path / "copy")
    other = Instance(tmp_path / "copy")
    assert other.cli("audit", "verify").stdout == stopped.cli("audit", "verify").stdout
