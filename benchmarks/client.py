# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What reporting a step costs a rank, beside a loop that sends each step itself; with the service up, down and stuck."""

from __future__ import annotations

import argparse
import json
import logging
import socket
import statistics
import threading
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import perf_counter_ns

from relight.client import Reporter, Settings

BAR_US = 50.0
_WORK_US = 200


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Microseconds that a step takes longer than the same step unreported."""

    median_us: float
    p99_us: float
    dropped: int


class Service(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = b'{"results":[]}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


def costs(enter: Callable[[int], object], steps: int) -> list[float]:
    """Microseconds of `enter` in each of `steps` steps, between pieces of work that let other threads in."""
    out = []
    for number in range(steps):
        until = perf_counter_ns() + _WORK_US * 1_000
        while perf_counter_ns() < until:
            pass
        began = perf_counter_ns()
        enter(number)
        out.append((perf_counter_ns() - began) / 1e3)
    return out


def reported(url: str, steps: int) -> Cost:
    """Every step said, the worst case; by default quicker steps than one a second are sent as means."""
    settings = Settings(attempt="bench", url=url, timing_interval_s=0, flush_s=0.2, close_s=0.1, timeout_s=1)
    reporter = Reporter(settings)

    def enter(number: int) -> None:
        with reporter.step(number) as step, step.compute:
            pass

    taken = costs(enter, steps)
    dropped = reporter.counts.dropped
    reporter.close()
    return _cost(taken, dropped)


def sent_in_the_loop(url: str, steps: int) -> Cost:
    """The peer: what a loop pays that posts each step itself."""

    def enter(number: int) -> None:
        body = json.dumps({"signals": [{"step_timing": {"rank": 0, "step": number, "step_s": 1.0}}]}).encode()
        request = urllib.request.Request(f"{url}/v1/signals", data=body, method="POST")
        with urllib.request.urlopen(request, timeout=5) as answer:
            answer.read()

    return _cost(costs(enter, steps), 0)


def _cost(taken: list[float], dropped: int) -> Cost:
    return Cost(
        median_us=round(statistics.median(taken), 2),
        p99_us=round(statistics.quantiles(taken, n=100)[98], 2),
        dropped=dropped,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    steps = parser.parse_args().steps
    logging.getLogger("relight.client").setLevel(logging.ERROR)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    up = f"http://127.0.0.1:{server.server_address[1]}"
    with socket.create_server(("127.0.0.1", 0)) as mute:
        stuck = f"http://127.0.0.1:{mute.getsockname()[1]}"
        found = {
            "service_up": reported(up, steps),
            "service_down": reported("http://127.0.0.1:1", steps),
            "service_stuck": reported(stuck, steps),
        }
    peer = sent_in_the_loop(up, max(steps // 20, 100))
    server.shutdown()
    server.server_close()
    for name, cost in {**found, "peer: sent in the loop": peer}.items():
        print(f"{name:24} {cost.median_us:>9,.1f} µs median  {cost.p99_us:>9,.1f} µs p99  {cost.dropped:>6,} dropped")
    worst = max(cost.median_us for cost in found.values())
    print(f"{'bar':24} {BAR_US:>9,.1f} µs median: {'held' if worst <= BAR_US else 'MISSED'}")
    said = {
        "benchmark": "client",
        "steps": steps,
        "overhead_per_step_us": worst,
        "bar_us": BAR_US,
        "costs": {name: asdict(cost) for name, cost in found.items()},
        "peer_sent_in_the_loop": asdict(peer),
        "ratio": round(peer.median_us / worst, 1),
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main()
