# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""How many log lines a second the service takes in, beside Drain3 alone on the same lines in the same run.

A whole service with all detectors and a DuckDB audit log on disk; senders post NDJSON over HTTP and wait for each
answer, so that every line counted is matched, shown to the detectors and on record. Drain3 is timed without its
start. Both take turns, medians of the rounds. The last line of output is JSON.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.job_log import job_log
from service import bootstrap
from service.config import Audit, Server, Settings

DRAIN3 = [sys.executable, "-W", "ignore", "-m", "benchmarks.drain3_alone"]
_FAULTS = ("Xid", "CUDA error", "Watchdog", "srun:")


def _is_step(line: str) -> bool:
    return "consumed samples" in line


KINDS: dict[str, Callable[[str], bool]] = {
    "plain": lambda line: not _is_step(line) and "iteration" not in line,
    "steps": _is_step,
    "job log": lambda _: True,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=40_000, help="of each kind and round")
    parser.add_argument("--batch", type=int, default=2_000)
    parser.add_argument("--senders", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"{asked.lines} lines a round, {asked.batch} a batch, {asked.senders} senders, {asked.rounds} rounds")
    rates: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        audit = Audit(path=Path(folder, "audit.duckdb"))
        with bootstrap.running(Settings(server=Server(port=0), audit=audit)) as service:
            for kind, wanted in KINDS.items():
                lines = list(islice(_harmless(wanted), asked.lines))
                log = Path(folder, "lines.log")
                log.write_text("\n".join(lines) + "\n", encoding="utf-8")
                rates[kind] = {"relight": [], "drain3 alone": []}
                senders = [Sender(service, f"{kind}-{n}".replace(" ", "-"), asked.batch) for n in range(asked.senders)]
                sent_at_once(senders, lines[: asked.batch])
                for _ in range(asked.rounds):
                    rates[kind]["relight"].append(sent_at_once(senders, lines))
                    rates[kind]["drain3 alone"].append(mined(log))
                told(kind, rates[kind])
    print(
        json.dumps(
            {
                "benchmark": "ingest",
                "lines": asked.lines,
                "batch": asked.batch,
                "senders": asked.senders,
                "python": platform.python_version(),
                "cpus": os.cpu_count(),
                "lines_per_s": rates,
                "ratio": {kind: _median(one, "relight") / _median(one, "drain3 alone") for kind, one in rates.items()},
            }
        )
    )


class Sender:
    """A collector that knows one attempt, and numbers its lines on from round to round."""

    def __init__(self, service: bootstrap.Running, attempt: str, batch: int) -> None:
        self._address = urlsplit(service.url)
        self._headers = {"Authorization": f"Bearer {service.token}", "Content-Type": "application/x-ndjson"}
        self._attempt, self._batch, self._sent = attempt, batch, 0
        body = {
            "workload_id": attempt, "scheduler": {"kind": "slurm", "job_id": attempt}, "state": "RUNNING",
            "allocated_nodes": [f"n{node}" for node in range(8)], "gpus_per_node": 8,
            "observed_at": datetime.now(UTC).isoformat(),
        }  # fmt: skip
        self._post("PUT", f"/v1/attempts/{attempt}", json.dumps(body).encode(), {"Content-Type": "application/json"})

    def bodies(self, lines: Sequence[str]) -> list[bytes]:
        """Batches, made before the clock runs."""
        made = []
        for start in range(0, len(lines), self._batch):
            some = enumerate(lines[start : start + self._batch], self._sent + start + 1)
            made.append("\n".join(json.dumps(self._line(number, text)) for number, text in some).encode())
        self._sent += len(lines)
        return made

    def send(self, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            self._post("POST", "/v1/logs/ndjson", body, {})

    def _line(self, number: int, text: str) -> dict[str, object]:
        return {"attempt_id": self._attempt, "file": "rank0.log", "rank": 0, "number": number, "text": text}

    def _post(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> None:
        connection = http.client.HTTPConnection(str(self._address.hostname), int(self._address.port or 0), timeout=120)
        connection.request(method, path, body, self._headers | headers)
        answer = connection.getresponse()
        said = answer.read()
        connection.close()
        if answer.status >= 300 or (method == "POST" and json.loads(said)["accepted"] != body.count(b"\n") + 1):
            raise SystemExit(f"{method} {path}: {answer.status} {said[:400]!r}")


def sent_at_once(senders: Sequence[Sender], lines: Sequence[str]) -> float:
    """Lines a second, of all senders together; each sends its share."""
    share = -(-len(lines) // len(senders))
    work = [(one, one.bodies(lines[n * share : (n + 1) * share])) for n, one in enumerate(senders)]
    threads = [threading.Thread(target=one.send, args=(bodies,)) for one, bodies in work]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(lines) / (time.perf_counter() - began)


def mined(log: Path) -> float:
    """Lines a second of Drain3, without its start."""
    said = subprocess.run([*DRAIN3, str(log)], capture_output=True, text=True, check=True).stdout.split()
    return int(said[0]) / float(said[-2])


def _harmless(wanted: Callable[[str], bool]) -> Iterator[str]:
    """A job log without its end, as most of any log is."""
    return (line for line in job_log(1 << 40) if wanted(line) and not any(word in line for word in _FAULTS))


def _median(rates: dict[str, list[float]], name: str) -> float:
    return statistics.median(rates[name])


def told(kind: str, rates: dict[str, list[float]]) -> None:
    ours = _median(rates, "relight")
    for name, seen in rates.items():
        median = statistics.median(seen)
        print(
            f"{kind:<8} {name:<13} {median:9,.0f} lines/s  ({min(seen):,.0f} - {max(seen):,.0f})  "
            f"{ours / median:5.1f} x as fast as it"
        )


if __name__ == "__main__":
    main()
