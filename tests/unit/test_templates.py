# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Template mining: Drain3's answers, faster, capped, and with a snapshot that carries data only."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detectors.masks import MAX_LINE_BYTES, Masker, shape_of
from detectors.templates import SnapshotInvalid, TemplateMiner, TemplateSettings

WORDS = [
    "rank",
    "[rank3]:",
    "loss:",
    "0.123",
    "7",
    "/data/ck/iter_100",
    "NCCL",
    "WARN",
    "node-07",
    "done",
    "é",
    "",
]
LINES = st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join)


def masked(line: str | bytes) -> str:
    return Masker().mask(shape_of(line))


def training_log() -> list[str]:
    lines = []
    for step in range(300):
        lines.append(f" iteration {step:8d}/ 5000 | lm loss: {3.1 / (step + 1):.6E} | grad norm: {step % 7}.125 |")
        if step % 10 == 0:
            lines.append(f"[rank{step % 8}]: saved checkpoint to /data/run/iter_{step:07d} in {step % 5}.2s")
        if step % 17 == 0:
            lines.append(f"node-{step % 32:03d} NCCL WARN socket closed by 10.0.0.{step % 200 + 1}:{40000 + step}")
    return lines


def reference(lines: list[str], settings: TemplateSettings) -> list[int]:
    """What Drain3 itself says of the masked lines, with its own cache and no memory of shapes."""
    drain = sys.modules["drain3.drain"].Drain(
        depth=settings.depth,
        sim_th=settings.similarity,
        max_children=settings.max_children,
        max_clusters=settings.max_clusters,
    )
    masker = Masker()
    return [drain.add_log_message(masker.mask(shape_of(line)))[0].cluster_id for line in lines]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("iteration 1234/ 5000 | loss: 1.25E-02 |", "iteration <NUM>/ <NUM> | loss: <NUM> |"),
        ("[rank3]: and rank 12", "[rank#]: and rank <NUM>"),
        ("Xid (PCI:0000:3b:00): 79", "Xid (PCI:<PCI>): <NUM>"),
        ("GPU 0000:3B:00.0 fell", "GPU <PCI> fell"),
        ("at 0x7f12ab99 in deadbeef01", "at <HEX> in <HEX>"),
        ("open /data/run-1/ck.pt failed", "open <PATH> failed"),
        ("to 10.0.0.1:29500 and [fe80::1:2]:80", "to <IP> and <IP>"),
        ("GPU-8f3ab12c-1234-abcd-ef00-1234567890ab", "GPU-<UUID>"),
        ("took 12.5ms, then 3s of 10GiB", "took <DURATION>, then <DURATION> of <SIZE>"),
        ("2026-01-02T03:04:05.678Z up", "<TIME> up"),
        ("2026-01-02 03:04:05,678 up", "<TIME> <TIME> up"),
        ("ranks [0, 1, 2, 17] wait", "ranks [<NUMS>] wait"),
        ("see https://example.org/a?b=1 now", "see <URL> now"),
        ("torch::autograd::Engine", "torch::autograd::Engine"),
        ("", ""),
    ],
)
def test_what_varies_is_replaced_by_its_kind(line: str, expected: str) -> None:
    assert masked(line) == expected


def test_hosts_of_one_family_share_a_form_and_words_survive() -> None:
    assert masked("node-07 down") == masked("node-12 down")
    assert masked("node-07 down") != masked("gpu-07 down")


@given(st.binary(max_size=300))
def test_any_bytes_may_be_a_line(line: bytes) -> None:
    miner = TemplateMiner()
    assert miner.learn(line) == miner.learn(line) == 1


def test_text_and_its_bytes_are_the_same_line() -> None:
    miner = TemplateMiner()
    assert miner.learn("débit 12 of \udcff") == miner.learn("débit 13 of \udcff".encode("utf-8", "surrogatepass"))


def test_a_line_of_a_megabyte_counts_by_its_head() -> None:
    miner = TemplateMiner()
    line = "head word " + "x" * 1_000_000
    assert miner.learn(line) == miner.learn(line[:MAX_LINE_BYTES])


@pytest.mark.parametrize("cap", [1_000, 3])
def test_answers_are_those_of_drain3(cap: int) -> None:
    settings = TemplateSettings(max_clusters=cap)
    lines = training_log()
    assert TemplateMiner(settings).learn_all(lines) == reference(lines, settings)


@settings(max_examples=60, deadline=None)
@given(st.lists(LINES, max_size=60), st.integers(1, 6))
def test_the_memory_of_shapes_never_changes_an_answer(lines: list[str], cap: int) -> None:
    settings = TemplateSettings(max_clusters=cap, max_children=3)
    assert TemplateMiner(settings).learn_all(lines) == reference(lines, settings)


@settings(max_examples=60, deadline=None)
@given(st.lists(LINES, max_size=60), st.integers(0, 60), st.integers(1, 6))
def test_a_snapshot_mid_stream_equals_no_snapshot(lines: list[str], at: int, cap: int) -> None:
    settings = TemplateSettings(max_clusters=cap, max_children=3)
    whole, first = TemplateMiner(settings), TemplateMiner(settings)
    expected = whole.learn_all(lines)
    before = first.learn_all(lines[:at])
    second = TemplateMiner.from_json(first.to_json())
    assert before + second.learn_all(lines[at:]) == expected
    assert second.to_json() == whole.to_json()


def test_matching_is_the_same_after_a_round_trip_and_learns_nothing() -> None:
    miner = TemplateMiner()
    lines = training_log()
    miner.learn_all(lines)
    state = miner.to_json()
    again = TemplateMiner.from_json(state)
    probes = [*lines[::5], "never seen before", ""]
    assert [again.match(line) for line in probes] == [miner.match(line) for line in probes]
    assert again.match("never seen before") is None
    assert (miner.to_json(), again.to_json()) == (state, state)


def test_a_template_shows_its_words_and_how_often_it_was_seen() -> None:
    miner = TemplateMiner()
    (template,) = {miner.learn(f"rank {n} joined group {name}") for n, name in enumerate(["tp", "pp", "dp"])}
    assert miner.template(template) == "rank <NUM> joined group <*>"
    assert miner.templates() == {template: ("rank <NUM> joined group <*>", 3)}
    assert miner.template(99) is None


def test_the_cap_on_templates_holds_and_forgets_the_least_used() -> None:
    miner = TemplateMiner(TemplateSettings(max_clusters=2))
    first = miner.learn("alpha one line here")
    miner.learn("beta two")
    assert miner.learn("alpha one line here") == first
    miner.learn("gamma")
    assert len(miner) == 2
    assert miner.template(first) is not None
    assert miner.learn("beta two") not in {first, 2}


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "null", '{"version": 2}', '{"py/object": "os.system"}', "[" * 100_000,
     '{"version":1,"settings":{"depth":1},"counter":0,"clusters":[],"tree":[[],{}]}'],
)  # fmt: skip
def test_a_foreign_snapshot_is_refused_by_name(text: str) -> None:
    with pytest.raises(SnapshotInvalid, match="learn the log anew"):
        TemplateMiner.from_json(text)


def test_a_snapshot_is_plain_json_without_types_to_revive() -> None:
    miner = TemplateMiner()
    miner.learn('{"py/object": "os.system"} é')
    assert set(json.loads(miner.to_json())) == {"version", "settings", "counter", "clusters", "tree"}


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="need depth >= 3"):
        TemplateSettings(depth=2)


def test_nothing_that_runs_code_from_a_snapshot_is_ever_imported() -> None:
    probe = (
        "import sys; from detectors.templates import TemplateMiner as T; "
        "m = T(); m.learn('a 1'); T.from_json(m.to_json()); "
        "print(sorted(n for n in sys.modules if n.startswith(('jsonpickle', 'drain3'))))"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['drain3.drain', 'drain3.simple_profiler']"


def test_drain3_itself_can_still_be_imported_afterwards() -> None:
    probe = "import detectors.templates, drain3; print(drain3.TemplateMiner.__name__)"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "TemplateMiner"
