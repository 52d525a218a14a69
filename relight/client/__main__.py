# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`python -m relight.client FILE… --url URL`: sends what ranks wrote to files, from where there is a network."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from relight.client.sinks import HttpSink, NotDelivered, Refused

_BATCH = 1_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 if everything was taken, 1 if some signals failed, 4 if the service can't be reached.

    Sending a file again is harmless: each line carries its key.
    """
    parser = argparse.ArgumentParser(prog="python -m relight.client", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--url", required=True)
    parser.add_argument("--token-file", type=Path)
    parser.add_argument("--cluster")
    said = parser.parse_args(arguments)
    sink = HttpSink(said.url, said.token_file, said.cluster, timeout_s=30)
    sent = failed = 0
    try:
        for batch in _batches(said.files):
            reasons = sink.deliver(batch).failed
            sent += len(batch) - len(reasons)
            failed += len(reasons)
            for reason in sorted(set(reasons.values())):
                sys.stderr.write(f"failed: {reason}\n")
    except (NotDelivered, Refused, OSError) as why:
        sys.stderr.write(f"stopped after {sent} signals: {why}\n")
        return 4
    sys.stdout.write(f"{sent} signals sent, {failed} failed\n")
    return 1 if failed else 0


def _batches(files: Sequence[Path]) -> Iterator[list[str]]:
    """Whole lines only: the last one may still be being written."""
    for file in files:
        with file.open(encoding="utf-8", errors="replace") as lines:
            whole = (line.rstrip("\n") for line in lines if line.endswith("}\n"))
            while batch := list(islice(whole, _BATCH)):
                yield batch


if __name__ == "__main__":
    sys.exit(main())
