# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What tracebacks claim: a known failure by its class or frames, a program's fault, or only that it ended."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from detectors.claim import Claim
from detectors.lines import Lines
from detectors.log_text import LogText
from detectors.tracebacks import HEADER, TERMINAL, Traceback, cut_traceback, terminal_at, writer_of
from relight.types import Action, FailureName, Role, SignatureId
from rules.match import Hit

Hits = Mapping[int, tuple[Hit, ...]]

_MAX_FRAMES = 3_000
_MESSAGE_LINES = 8
_CUT_TAIL_LINES = 60
_BARE_TAIL_LINES = 60
_EXCEPTION = SignatureId("python.exception")

# What an exception's class alone says, where no signature knows the message.
_KNOWN: dict[str, tuple[str, Role]] = {
    "KeyboardInterrupt": ("user_cancelled", Role.SYMPTOM),
    "BrokenPipeError": ("remote_peer_exited", Role.SYMPTOM),
    "ConnectionResetError": ("remote_peer_exited", Role.SYMPTOM),
    "ConnectionAbortedError": ("remote_peer_exited", Role.SYMPTOM),
    "ConnectionRefusedError": ("rendezvous_unreachable", Role.SYMPTOM),
    "PermissionError": ("permission_denied", Role.ROOT),
    "FileNotFoundError": ("input_missing", Role.ROOT),
    "BlockingIOError": ("process_limit_reached", Role.ROOT),
}
# They report that something else ended; the cause stands elsewhere.
_SECONDARY = frozenset(
    {
        "ActorDiedError", "BrokenProcessPool", "CalledProcessError", "ChildFailedError", "DeprecationWarning",
        "DistBackendError", "DistNetworkError", "DistStoreError", "FutureWarning", "ProcessExitedException",
        "ProcessRaisedException", "RayActorError", "RayTaskError", "ResourceWarning", "RuntimeWarning",
        "SignalException", "SystemExit", "TemplatedWarning", "TrainingFailedError", "UserWarning",
    }
)  # fmt: skip
# Faults of program or configuration: they come back until somebody changes something. What is not among them
# (operating system, network, services, third-party classes) may pass, and gets one more try.
_PROGRAM = re.compile(
    r"^(?:Type|Value|Key|Index|Lookup|Attribute|Name|UnboundLocal|Import|ModuleNotFound|Assertion|NotImplemented"
    r"|ZeroDivision|Recursion|Runtime|Syntax|Indentation|Tab|Unicode(?:Decode|Encode)?|Overflow|FloatingPoint"
    r"|Arithmetic|Argument(?:Type)?|Usage|Validation|Misconfiguration|Shape|Dimension|Dtype|BroadcastTypeCheck"
    r"|Interpolation\w*|MissingMandatoryValue|(?:Missing)?Config\w*|Hydra\w*|Undefined\w*|TracerBoolConversion"
    r"|ConcretizationType|TracerArrayConversion|UnexpectedTracer|NonHashableStaticArguments|InvalidArgument"
    r"|TorchRuntime|Unsupported|BackendCompilerFailed|DataDependentOutput)(?:Error|Exception)?$"
    r"|^StopIteration$|^InvalidArgumentError$"
)
_LOADS = re.compile(
    r"load_checkpoint|_load_from_checkpoint|dist_checkpointing/.*load|restore_checkpoint|load_state_dict|torch_load"
)
_SAVES = re.compile(
    r"save_checkpoint|_save_checkpoint|dist_checkpointing/.*save|save_model|save_pretrained"
    r"|serialization\.py (?:save|_legacy_save|_save|_save_to_state|__exit__|_write_file)"
)
# A transfer that ran out of time or broke off, by the class and the library under whose frames it was raised.
_TRANSFER = re.compile(
    r"^(?:Timeout|Read|Connect|Connection|Client|Server|IncompleteRead|Protocol|Chunked|Payload|RemoteProtocol|Max)\w*"
    r"(?:Error|Timeout|Exception|Disconnected|Retries\w*|Read)?$"
)
_TRANSFERS = re.compile(r"site-packages/(?:aiohttp|fsspec|httpx|httpcore|requests|urllib3|huggingface_hub|s3fs|gcsfs)/")
_HUB = re.compile(r"huggingface_hub/|datasets/load\.py|transformers/utils/hub\.py|cached_file|hf_hub_download")
_CUT: tuple[tuple[re.Pattern[str], str], ...] = (
    (_LOADS, "checkpoint_load_failed"),
    (_SAVES, "checkpoint_write_failed"),
    (_HUB, "hub_unreachable"),
)
# A failed read or write, by what the program was doing.
_READ_FAILED = FailureName("data_read_io_error")
_WRITE_FAILED = FailureName("checkpoint_write_failed")


def traceback_claims(log: LogText, lines: Lines, at_line: Hits, first: int) -> Iterator[tuple[int, Claim]]:
    """What the tracebacks of a log claim, by line index.

    Shapes: `at_line` are the signatures' hits, which win over an exception's class; lines before `first` are
            left out.
    """
    if log.absent.issuperset((b'File "', b"Traceback (")):
        yield from _bare(lines, at_line, set(), first)
        return
    frames = [i for i, line in enumerate(log.lines) if b'File "' in line or b"Traceback (" in line]
    frames = [i for i in frames if i >= first]
    if len(frames) > _MAX_FRAMES:
        frames = frames[: _MAX_FRAMES - 500] + frames[-500:]
    done: set[int] = set()
    for start in frames:
        for traceback in _near(lines, start, done):
            claim = _cut(traceback) if traceback.is_cut else _ended(lines, traceback, at_line)
            if claim is not None:
                yield traceback.end, claim
    yield from _headers_alone(lines, frames)
    yield from _bare(lines, at_line, done, first)


def written_not_read(lines: Lines, at_line: Hits) -> frozenset[int]:
    """Lines that report a failed read, but under frames that were saving a checkpoint."""
    out = set()
    for index, hits in at_line.items():
        if any(h.failure == _READ_FAILED for h in hits):
            traceback = terminal_at(lines, index)
            if traceback is not None and _SAVES.search(_frames(traceback)):
                out.add(index)
    return frozenset(out)


def _near(lines: Lines, start: int, done: set[int]) -> Iterator[Traceback]:
    """The traceback whose frames or header stand at `start`: up to its exception or its cut end."""
    is_header = HEADER in lines[start].body
    for index in range(start + 1, min(len(lines), start + 80)):
        body = lines[index].body
        if body[:1].isspace() or not body.strip():
            continue
        if index in done:
            return
        traceback = terminal_at(lines, index)
        if traceback is not None:
            done.add(index)
            yield traceback
            return
    if is_header and len(lines) - start < _CUT_TAIL_LINES + 80:
        cut = cut_traceback(lines, start)
        if cut is not None and len(lines) - cut.end <= _CUT_TAIL_LINES and cut.end not in done:
            done.add(cut.end)
            yield cut


def _ended(lines: Lines, traceback: Traceback, at_line: Hits) -> Claim | None:
    end = traceback.end
    explained = [h for i in _message_lines(lines, end) for h in at_line.get(i, ())]
    if at_line.get(end) or any(h.role in {Role.ROOT, Role.SYMPTOM} for h in explained):
        return None
    named = traceback.exception.split("(")[0].rsplit(".", 1)[-1]
    failure, role = _KNOWN.get(named, ("python_exception", Role.ROOT))
    action = None
    if named in _SECONDARY or traceback.is_launcher:
        failure, role = "cause_not_in_log", Role.TEARDOWN
    elif failure == "python_exception" and _TRANSFER.match(named) and _TRANSFERS.search(_frames(traceback)):
        failure = "hub_transient_error"
    elif failure == "python_exception" and not _PROGRAM.match(named):
        action = Action.RESTART
    if traceback.is_caused and role is Role.ROOT:
        role = Role.SYMPTOM
    return Claim(
        signature=_EXCEPTION,
        title=f"{traceback.exception}: {traceback.message}"[:200].strip(": "),
        failure=FailureName(failure),
        role=role,
        captures={"exception": named, "message": traceback.message[:300]},
        span=(0, lines.size(end)),
        action=action,
        does_not_prove="that the program is at fault: an exception may repeat what a device or a peer did",
    )


def _message_lines(lines: Lines, end: int) -> Iterator[int]:
    """The lines of an exception's message: those of the same writer, up to an empty one."""
    writer = writer_of(lines[end].prefix)
    for index in range(end, min(len(lines), end + _MESSAGE_LINES)):
        if writer_of(lines[index].prefix) == writer:
            if not lines[index].body.strip():
                return
            yield index


def _frames(traceback: Traceback) -> str:
    return "\n".join(f"{f.path} {f.function}" for f in reversed(traceback.frames))


def _cut(traceback: Traceback) -> Claim:
    failure, role = "python_exception", Role.CONFIRMATION  # only what is left when nothing else speaks
    title = "a traceback whose exception is cut off"
    if traceback.is_launcher:
        failure, role, title = "cause_not_in_log", Role.TEARDOWN, "a launcher's traceback, cut off"
    else:
        known = next((name for pattern, name in _CUT if pattern.search(_frames(traceback))), None)
        if known is not None:
            failure, role = known, Role.SYMPTOM
    return Claim(
        signature=SignatureId("python.traceback_cut"),
        title=title,
        failure=FailureName(failure),
        role=role,
        action=Action.RESTART,
        does_not_prove="what was raised: the text ends before the exception",
    )


def _headers_alone(lines: Lines, frames: list[int]) -> Iterator[tuple[int, Claim]]:
    """The text ends right after a traceback began."""
    last = frames[-1] if frames else -1
    if last >= 0 and HEADER in lines[last].body and not any(lines[i].body.strip() for i in range(last + 1, len(lines))):
        yield (
            last,
            Claim(
                signature=SignatureId("python.traceback_cut"),
                title="a traceback begins and the log ends",
                failure=FailureName("cause_not_in_log"),
                role=Role.TEARDOWN,
                does_not_prove="what was raised",
            ),
        )


def _bare(lines: Lines, at_line: Hits, done: set[int], first: int) -> Iterator[tuple[int, Claim]]:
    """An exception without frames at the end of a log: a notebook's or a logger's way to print it."""
    for index in range(max(first, len(lines) - _BARE_TAIL_LINES), len(lines)):
        if index in done or any(h.role in {Role.ROOT, Role.SYMPTOM, Role.BENIGN} for h in at_line.get(index, ())):
            continue
        found = TERMINAL.match(lines[index].body)
        named = found["exception"].split("(")[0].rsplit(".", 1)[-1] if found is not None else ""
        if found is None or not found["message"] or not _PROGRAM.match(named):
            continue
        yield (
            index,
            Claim(
                signature=_EXCEPTION,
                title=lines[index].body[:200],
                failure=FailureName("python_exception"),
                role=Role.CONFIRMATION,
                captures={"exception": named, "message": found["message"][:300]},
                action=Action.RESTART,
                does_not_prove="that it was raised and not merely logged: no frames stand above it",
            ),
        )
