# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What stands in front of a message: time, host, rank, in the formats of launchers, loggers and kernels."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from relight.types import NodeName, Rank

_MAX_LAYERS = 10
# No real prefix is longer, and a hostile line must not buy time: the patterns are Python's, which backtrack.
_MAX_PREFIX = 400
_MONTHS = {
    m: i for i, m in enumerate(["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"], 1)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """What the prefixes of a line say; `start` is where the message begins, `uptime_s` a kernel clock."""

    start: int = 0
    at: datetime | None = None
    host: NodeName | None = None
    rank: Rank | None = None
    local_rank: int | None = None
    task: int | None = None
    uptime_s: float | None = None
    group: str | None = None
    is_kernel: bool = False


Reader = Callable[[re.Match[str], Prefix, int | None], Prefix | None]


def read_prefix(line: str, year: int | None = None) -> Prefix:
    """Peel prefixes off a line, outermost first, until none is left.

    Units: `at` is aware; a stamp without a zone is taken as UTC, one without a year as of `year`.
    Errors: none; an impossible date is no date.
    Source: formats-training and formats-system (launchers, syslog, dmesg, klog, torch, NCCL).
    """
    seen = Prefix()
    line = line[:_MAX_PREFIX]
    for _ in range(_MAX_LAYERS):
        for pattern, read in _LAYERS:
            found = pattern.match(line, seen.start)
            if found is None or found.end() <= seen.start:
                continue
            said = read(found, seen, year)
            if said is not None:
                seen = replace(said, start=found.end())
                break
        else:
            return seen
    return seen


_STATED = re.compile(r"\b(?:AT|at) (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)")


def own_time(line: str, year: int | None = None) -> datetime | None:
    """When a line says it was written: by its stamp, else by a time stated in its words (`CANCELLED AT …`)."""
    at = read_prefix(line, year).at
    if at is not None:
        return at
    stated = _STATED.search(line)
    return _parsed(stated.group(1)) if stated is not None else None


def _dmesg_iso(found: re.Match[str], seen: Prefix, year: int | None) -> Prefix:
    return replace(_iso(found, seen, year) if found["iso"] else seen, is_kernel=True)


def _foreign(found: re.Match[str], seen: Prefix, _: int | None) -> Prefix | None:
    """A syslog stamp whose month is written in another language: the host is read, the time is not."""
    if found.group(0)[:3].lower() in _MONTHS:
        return None
    return _stamped(seen, None, found)


def _nothing(_: re.Match[str], seen: Prefix, __: int | None) -> Prefix:
    return seen


def _iso(found: re.Match[str], seen: Prefix, _: int | None) -> Prefix:
    text = found["iso"].replace(",", ".").replace("/", "-")
    digits = re.sub(r"(\.\d{6})\d+", r"\1", text)
    digits = re.sub(r"([+-]\d\d)(\d\d)$", r"\1:\2", digits)
    return _stamped(seen, _parsed(digits), found)


def _parsed(text: str) -> datetime | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _stamped(seen: Prefix, at: datetime | None, found: re.Match[str]) -> Prefix:
    groups = found.groupdict()
    host, rank, uptime = groups.get("host"), groups.get("rank"), groups.get("uptime")
    return replace(
        seen,
        at=seen.at or at,
        host=NodeName(host) if host else seen.host,
        rank=Rank(int(rank)) if rank else seen.rank,
        uptime_s=float(uptime) if uptime else seen.uptime_s,
        is_kernel=seen.is_kernel or bool(uptime) or "kernel:" in found.group(0),
    )


def _dated(found: re.Match[str], seen: Prefix, year: int | None) -> Prefix:
    """Month and day by name or number, the year maybe from elsewhere."""
    groups = found.groupdict()
    named = groups.get("mon") or ""
    month = _MONTHS.get(named[:3].lower()) or int(groups.get("month") or 0)
    full = groups.get("year")
    used = (int(full) + (2000 if len(full) == 2 else 0)) if full else year
    if used is None:
        return _stamped(seen, None, found)
    hour, minute, second = (int(p) for p in found["hms"].split(":"))
    fraction = int(((groups.get("fraction") or "") + "000000")[:6])
    try:
        at = datetime(used, month, int(found["day"]), hour, minute, second, fraction, tzinfo=UTC)
    except ValueError:
        return _stamped(seen, None, found)
    return _stamped(seen, at, found)


def _ranked(found: re.Match[str], seen: Prefix, _: int | None) -> Prefix:
    return replace(seen, rank=Rank(int(found["rank"])))


def _group_ranked(found: re.Match[str], seen: Prefix, _: int | None) -> Prefix:
    """`[Rank N]` is the rank inside the process group: the global one only where nothing better is known."""
    return seen if seen.rank is not None else replace(seen, rank=Rank(int(found["rank"])))


def _grouped(found: re.Match[str], seen: Prefix, year: int | None) -> Prefix:
    return replace(_group_ranked(found, seen, year), group=found["group"])


def _local(found: re.Match[str], seen: Prefix, _: int | None) -> Prefix:
    return replace(seen, local_rank=int(found["local"]))


def _roled(found: re.Match[str], seen: Prefix, _: int | None) -> Prefix:
    """`[trainer0|0]:` is role and rank; `[trainer3]:` the role's rank."""
    number = found["after"] or found["role"]
    return replace(seen, rank=Rank(int(number)))


def _hosted(found: re.Match[str], seen: Prefix, _: int | None) -> Prefix:
    return replace(seen, host=seen.host or NodeName(found["host"]))


def _pdsh(found: re.Match[str], seen: Prefix, _: int | None) -> Prefix | None:
    """`host: text`; what the kernel puts before a colon is a device or a subsystem, never a host."""
    return None if seen.is_kernel else replace(seen, host=seen.host or NodeName(found["host"]))


def _kernel(_: re.Match[str], seen: Prefix, __: int | None) -> Prefix:
    return replace(seen, is_kernel=True)


def _dmesg(found: re.Match[str], seen: Prefix, year: int | None) -> Prefix:
    return replace(_dated(found, seen, year), is_kernel=True)


def _tasked(found: re.Match[str], seen: Prefix, _: int | None) -> Prefix:
    return replace(seen, task=int(found["task"]))


def _uptime(found: re.Match[str], seen: Prefix, _: int | None) -> Prefix:
    return replace(seen, uptime_s=float(found["uptime"]), is_kernel=True)


def _kmsg(found: re.Match[str], seen: Prefix, _: int | None) -> Prefix:
    return replace(seen, uptime_s=int(found["usec"]) / 1e6, is_kernel=True)


def _epoch(found: re.Match[str], seen: Prefix, _: int | None) -> Prefix:
    return replace(
        seen,
        at=seen.at or datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=float(found["epoch"])),
    )


# The word of a level is no host, whatever the logger's format puts where.
_LEVEL = r"(?i:trace|debug|info|notice|warn(?:ing)?|error|severe|fatal|critical)"
_HOST = r"(?!" + _LEVEL + r"(?![\w.-]))[A-Za-z0-9](?:[\w.-]*[\w])?"
_ISO = r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:\s?Z|\s?[+-]\d\d:?\d\d)?"
_DEVICES = r"(?:nvidia-|nvme|mlx|eth|enp|ens|ib\d|sd[a-z]\d|md\d|dm-|GPU|gpu\d|cuda|rank\d|python\d|step\d|epoch\d|v\d|Xid|NVRM|bond\d|loop\d)"
_WORDS = r"(?:DEBUG|INFO|WARNING|WARN|ERROR|FATAL|CRITICAL)"
_LAYERS: tuple[tuple[re.Pattern[str], Reader], ...] = tuple(
    (re.compile(pattern), read)
    for pattern, read in (
        (r"\s*\|\s+", _nothing),
        (r"(?:messages|syslog|dmesg|kern\.log)[\w./-]*:(?=[A-Z][a-z]{2}\s)", _nothing),
        (r"Error From (?P<host>" + _HOST + r"): ", _hosted),
        (r"\[?(?P<epoch>1[5-9]\d{8}\.\d+)\]?\s", _epoch),
        (r"\s*(?P<iso>" + _ISO + r")(?: \|)?:?\s+(?P<host>" + _HOST + r")\s[\w./-]+?(?:\[\d+\])?: (?:\[\s*(?P<uptime>\d+\.\d+)\] )?", _iso),
        (r"\s*\[?(?P<iso>" + _ISO + r")\]?(?:\[[A-Z]+\]\[[\w.:]+\] -|:| \||)\s*", _iso),
        (r"\s*(?P<iso>\d{4}-\d\d-\d\d \d\d:\d\d) (?=\D)", _iso),
        (r"(?:kern|user|daemon|syslog|auth)\s*:\w+\s*: (?:(?P<iso>" + _ISO + r") |(?=\[))", _dmesg_iso),
        (r"<\d{1,3}>(?=\[|\w)", _nothing),
        (r"(?P<host>[\w.-]+): \w+:\s+\w+: \[(?P<iso>" + _ISO + r")\]: ", _iso),
        (r"\[\w{3} (?P<mon>[A-Z][a-z]{2}) [ ]?(?P<day>\d\d?) (?P<hms>\d\d:\d\d:\d\d) (?P<year>\d{4})(?: [+<].*?)?\]\s?", _dmesg),
        (r"\w{3} (?P<mon>[A-Z][a-z]{2}) [ ]?(?P<day>\d\d?) (?P<hms>\d\d:\d\d:\d\d) (?P<year>\d{4}) (?:kern\.\w+ )?(?:kernel: )?", _dated),
        (r"(?:(?!\d)\w{2,5}\.?|\d{1,2}月)\s+\d{1,2} \d\d:\d\d:\d\d (?P<host>" + _HOST + r") (?:kernel|[\w.-]+(?:\[\d+\])?): ?(?:\[\s*(?P<uptime>\d+\.\d+)\] )?", _foreign),
        (r"\[(?P<mon>[A-Z][a-z]{2}) (?P<day>\d\d) (?P<year>\d{4}) (?P<hms>\d\d:\d\d:\d\d)\] \[\w+\s*\] \[tid \d+\] ", _dated),
        (r"(?P<mon>[A-Za-z]{3,9})\s+(?P<day>\d{1,2}) (?P<hms>\d\d:\d\d:\d\d)(?:\.(?P<fraction>\d+))? (?:(?!kernel:)(?P<host>" + _HOST + r") [\w./-]+?(?:\[\d+\])?:\s|(?:kernel|systemd|slurm\w*)(?:\[\d+\])?:\s)?(?:\[\s*(?P<uptime>\d+\.\d+)\] )?", _dated),
        (r"(?P<month>\d\d)/(?P<day>\d\d)/(?P<year>\d{4}) (?P<hms>\d\d:\d\d:\d\d) (?:- \w+ - \S+ -\s+)?", _dated),
        (r"\[(?P<month>\d\d)/(?P<day>\d\d)/(?P<year>\d\d) (?P<hms>\d\d:\d\d:\d\d)\]\s+", _dated),
        (r"\[rank[:=]?\s?(?P<rank>\d+)\](?::\s?|\s)", _ranked),
        (r"\[[EWIFV](?P<month>\d{1,2})(?P<day>\d\d) (?P<hms>\d\d:\d\d:\d\d)\.(?P<fraction>\d+) [\w./-]+:\d+\] ", _dated),
        (r"\[[EWIFV] [\w./-]+:\d+\] ", _nothing),
        (r"[EWIFV](?P<month>\d\d)(?P<day>\d\d) (?P<hms>\d\d:\d\d:\d\d)\.(?P<fraction>\d+)\s+\d+ [\w./-]+:\d+\] ", _dated),
        (r"\[PG (?P<group>[^\]]*?) Rank (?P<rank>\d+)\]\s*", _grouped),
        (r"\[Rank (?P<rank>\d+)\] ", _group_ranked),
        (r"\[(?:[\w.-]+@)?\d+,(?:rank)?(?P<rank>\d+)\]<(?:stdout|stderr|stddiag)>:?\s?", _ranked),
        (r"[Rr]ank[ _]?(?P<rank>\d+): (?=\S)", _ranked),
        (r"\[default(?P<local>\d+)\]:\s?", _local),
        (r"\[(?:trainer|worker|role)(?P<role>\d+)(?:\|(?P<after>\d+))?\]:\s?", _roled),
        (r"[a-z][\w-]*/\d+ (?=\[)", _nothing),
        (r"\((?:\w+) pid=\d+(?:, ip=(?P<host>[\w.:-]+))?\)\s?", lambda f, s, _: replace(s, host=NodeName(f["host"]) if f["host"] else s.host)),
        (r"(?:stderr|stdout)(?:: | [FP] )", _nothing),
        (r"\[(?:pod/)[\w.-]+/[\w.-]+\] ?", _nothing),
        (r"[A-Za-z][\w.-]*[-_]\d+ +\| ", _nothing),
        (r"slurmstepd-(?P<host>[\w.-]+): ", _hosted),
        (r"(?P<host>" + _HOST + r"):\d+:\d+ \[\d+\] (?:NCCL )?", _hosted),
        (r"\[(?P<host>[\w.-]+):\d+(?::\d+){0,2}\] ", _hosted),
        (r" {0,6}(?P<task>\d{1,6}): ", _tasked),
        (r"(?:Message from syslogd@)(?P<host>\S+) at ", _hosted),
        (r"\s?kernel:\s?", _kernel),
        (r"(?!" + _DEVICES + r")(?P<host>(?=[\w.-]*\d)(?![\w.-]*(?:Error|Exception|Warning): )[A-Za-z][\w.-]*|\d{1,3}(?:\.\d{1,3}){3}): (?=\S|\s{2})", _pdsh),
        (r"\[\s*(?P<uptime>\d+\.\d{6})\]\s?", _uptime),
        (r"\[\s*[+<]\s*\d+\.\d{6}>?\]\s?", _nothing),
        (r"\d+,\d+,(?P<usec>\d+),[^;]*;", _kmsg),
        (r"\[[\w.]+\]\[" + _WORDS + r"\] - ", _nothing),
        (r"\[" + _WORDS + r"\] ", _nothing),
        (r"\d\d:\d\d:\d\d[.-]\d{3,6} ", _nothing),
        (r"\[\d{1,9}\]:? ", _nothing),
    )
)  # fmt: skip
