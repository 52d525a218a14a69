# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The command line as a rule author meets it: exit codes, formats, suggestions, and harmless output."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rules.formatting import formatted
from service.cli import app
from service.terminal import escaped

SHIPPED = "rules/packs/nccl/collective_timeout.yaml"
ROOT = Path(__file__).resolve().parents[2]


def run(*args: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(app, list(args), input=stdin)


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    """A new signature as `relight rules new` prints it."""
    made = run(
        "rules",
        "new",
        "site.fabric_gone",
        "--failure",
        "gpu_fell_off_bus",
        "--line",
        "it's gone: unit 7 lost",
    )
    assert made.exit_code == 0, made.output
    file = tmp_path / "fabric_gone.yaml"
    file.write_text(made.stdout, "utf-8")
    return file


def cpu_seconds(*args: str) -> tuple[float, str]:
    """Processor time of a whole `relight` process, which a busy machine does not stretch, and its stdout."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", "from service.cli import main; main()", *args],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, done.stdout


def test_help_lists_every_command_and_answers_within_half_a_second() -> None:
    seconds, shown = min(cpu_seconds("--help") for _ in range(2))
    for command in ("diagnose", "serve", "demo", "rules", "audit", "config", "token", "version"):
        assert f"  {command} " in shown
    assert seconds < 0.5


def test_help_imports_nothing_heavy() -> None:
    probe = (
        "import sys\nfrom service.cli import app\nfrom typer.testing import CliRunner\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        "heavy = {'pydantic', 're2', 'duckdb', 'fastapi', 'pandas', 'sklearn', 'drain3'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_a_mistyped_command_is_a_usage_error_with_a_suggestion() -> None:
    done = run("ruls")
    assert done.exit_code == 2
    assert "Did you mean 'rules'?" in done.stderr
    assert done.stdout == ""


def test_a_mistyped_verb_is_a_usage_error_with_a_suggestion() -> None:
    done = run("rules", "lnt")
    assert done.exit_code == 2
    assert "Did you mean 'lint'?" in done.stderr


def test_the_shipped_packs_are_faultless() -> None:
    done = run("rules", "lint")
    assert (done.exit_code, done.stdout) == (0, ""), done.stdout


def test_one_file_is_tested_alone() -> None:
    done = run("rules", "test", SHIPPED)
    assert done.exit_code == 0
    assert done.stdout.startswith("ok nccl.collective_timeout: fires on ")
    assert done.stderr == "1 file, 0 problems\n"


def test_testing_one_file_takes_less_than_a_second() -> None:
    assert min(cpu_seconds("rules", "test", SHIPPED) for _ in range(2))[0] < 1


def test_a_faulty_file_is_a_finding_on_stdout_and_a_summary_on_stderr(draft: Path) -> None:
    draft.write_text(draft.read_text("utf-8").replace("role: symptom", "role: symptm"), "utf-8")
    done = run("rules", "test", str(draft))
    assert done.exit_code == 1
    assert f"{draft}:5:7 site.fabric_gone role: 'symptm' is not allowed" in done.stdout
    assert done.stderr == "1 file, 1 problem\n"


def test_problems_as_json_carry_the_place_as_numbers(draft: Path) -> None:
    draft.write_text("id: x\n", "utf-8")
    problems = json.loads(run("rules", "lint", str(draft), "--format", "json").stdout)
    assert {p["file"] for p in problems} == {str(draft)}
    assert set(problems[0]) == {"file", "line", "column", "signature", "key", "what", "fix"}
    assert json.loads(run("rules", "lint", SHIPPED, "--format", "json").stdout) == []


def test_problems_as_annotations_escape_what_would_end_them(draft: Path) -> None:
    draft.write_text("a: 1\na: 2\nbad: 'x%,:'\n", "utf-8")
    lines = run("rules", "lint", str(draft), "--format", "github").stdout.splitlines()
    assert all(line.startswith(f"::error file={draft},line=") for line in lines)
    assert len(lines) > 2


def test_a_draft_passes_once_its_examples_are_real_and_points_editors_to_the_schema(draft: Path) -> None:
    text = draft.read_text("utf-8")
    assert text.startswith("# yaml-language-server: $schema=../../schema/signature.v1.json\n")
    assert "EDIT" in text
    assert formatted(str(draft), text) == text
    assert run("rules", "test", str(draft)).exit_code == 0
    draft.write_text(text.replace("EDIT: a near miss that must not match", "it's gone: unit 8 lost"), "utf-8")
    assert run("rules", "test", str(draft)).exit_code == 1


@pytest.mark.parametrize("name", ["nodot", "Upper.case", "a.b.c", ".x", "x.", "a b.c"])
def test_a_malformed_id_is_a_usage_error(name: str) -> None:
    done = run("rules", "new", name)
    assert done.exit_code == 2
    assert "need <pack>.<name>" in done.stderr


def test_an_id_in_use_and_a_failure_unknown_are_refused_with_the_way_out() -> None:
    assert SHIPPED in run("rules", "new", "nccl.collective_timeout").stderr
    done = run("rules", "new", "nccl.new_one", "--failure", "gpu_fell_of_bus")
    assert done.exit_code == 2
    assert "gpu_fell_off_bus" in done.stderr


def test_an_id_that_a_pack_already_uses_is_found_when_one_file_is_tested(draft: Path) -> None:
    draft.write_text(draft.read_text("utf-8").replace("site.fabric_gone", "nccl.collective_timeout"), "utf-8")
    done = run("rules", "test", str(draft))
    assert done.exit_code == 1
    assert "is also used in" in done.stdout


def test_explain_says_what_a_match_does_not_prove() -> None:
    done = run("rules", "explain", "nccl.collective_timeout")
    assert done.exit_code == 0
    for part in ("failure", "does not prove", "which rank stalled", "matches", "source", SHIPPED):
        assert part in done.stdout


def test_explaining_an_unknown_signature_suggests_near_ones() -> None:
    done = run("rules", "explain", "nccl.colective_timeout")
    assert done.exit_code == 2
    assert "did you mean nccl.collective_timeout" in done.stderr


def test_match_marks_the_words_and_names_line_signature_and_role(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_bytes(b"fine\n[Rank 3] Watchdog caught collective operation timeout, \x1b[2J\xff\n")
    done = run("rules", "match", "-f", str(log), "--only", "nccl.collective_timeout")
    assert done.exit_code == 0
    assert done.stdout == (
        "2: nccl.collective_timeout [nccl_collective_timeout, symptom] "
        "[Rank 3] »Watchdog caught collective operation timeout«, \\x1b[2J\ufffd\n"
    )
    assert "2 lines read as application, 1 matches" in done.stderr


def test_match_as_json_is_one_object_a_match() -> None:
    log = b"x\nWatchdog caught collective operation timeout\n"
    done = run("rules", "match", "-f", "-", "--json", "--only", "nccl.collective_timeout", stdin=log)
    (hit,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert (hit["line"], hit["signature"], hit["span"]) == (2, "nccl.collective_timeout", [0, 44])


def test_a_log_without_lines_is_told_from_a_log_without_matches(tmp_path: Path) -> None:
    only = ("--only", "nccl.collective_timeout")
    assert "no data" in run("rules", "match", "-f", "-", *only, stdin=b"").stderr
    assert "0 matches" in run("rules", "match", "-f", "-", *only, stdin=b"fine\n").stderr
    assert run("rules", "match", "-f", str(tmp_path / "none.log")).exit_code == 2


def test_a_witness_stream_is_matched_as_such() -> None:
    log = b"Watchdog caught collective operation timeout\n"
    done = run("rules", "match", "-f", "-", "--stream", "dcgm", "--only", "nccl.collective_timeout", stdin=log)
    assert "read as dcgm, 0 matches" in done.stderr


def test_the_printed_schema_is_the_one_that_editors_use() -> None:
    assert run("rules", "schema").stdout == (ROOT / "rules/schema/signature.v1.json").read_text("utf-8")


def test_a_faulty_configuration_has_an_exit_code_of_its_own(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[server]\nprot = 1\n", "utf-8")
    done = run("config", "show", "--config", str(config))
    assert done.exit_code == 3
    assert "server.prot" in done.stderr


def test_every_setting_is_shown_with_its_origin(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[server]\nport = 1234\n", "utf-8")
    shown = json.loads(run("config", "show", "--json", "--config", str(config)).stdout)
    assert shown["server.port"] == {"value": "1234", "origin": str(config)}
    assert shown["server.host"]["origin"] == "default"


def test_a_token_is_shown_once_listed_by_digest_and_revoked(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f"[auth]\ntokens_file = '{tmp_path / 'tokens.json'}'\n", "utf-8")
    at = ("--config", str(config))
    secret = run("token", "new", "console", "--role", "viewer", *at).stdout.strip()
    assert secret.startswith("rlt_viewer_")
    (listed,) = json.loads(run("token", "list", "--json", *at).stdout)
    assert (listed["client"], listed["role"], listed["is_live"]) == ("console", "viewer", True)
    assert secret not in (tmp_path / "tokens.json").read_text("utf-8")
    assert run("token", "revoke", listed["digest"][:12], *at).exit_code == 0
    assert json.loads(run("token", "list", "--json", *at).stdout)[0]["is_live"] is False


def test_tokens_without_a_file_are_a_configuration_error() -> None:
    assert run("token", "list").exit_code == 3


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("a\nb\rc\x00\x7f\x9b", "a\\x0ab\\x0dc\\x00\\x7f\\x9b"),
        ("\u202eevil\u2066", "\\u202eevil\\u2066"),
        ("tab\tand é stay", "tab\tand é stay"),
        ("\udcff", "\\udcff"),
    ],
)
def test_what_could_drive_a_terminal_is_written_as_its_code(text: str, shown: str) -> None:
    assert escaped(text) == shown
