# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Secrets are taken out of log lines, look-alikes stay, and the words that signatures read are left alone."""

from __future__ import annotations

import random
import string
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from relight.types import AttemptId, LogLine, Stream
from service.redaction import MAX_KEY_LINES, Redactor

REDACTOR = Redactor()
FAILURES = Path(__file__).parents[2] / "datasets" / "failures"
ALNUM = string.ascii_letters + string.digits
CODE = ALNUM + "_-"
UPPER = string.ascii_uppercase + "234567"
HEX = "0123456789abcdef"

# What holds the secret in a line; "{}" is where it stands.
TOKENS = [
    ("ghp_", ALNUM, 36), ("gho_", ALNUM, 36), ("github_pat_", ALNUM + "_", 82), ("glpat-", CODE, 20),
    ("hf_", ALNUM, 34), ("AKIA", UPPER, 16), ("ASIA", UPPER, 16), ("sk-", ALNUM, 48), ("sk-proj-", CODE, 64),
    ("sk-ant-api03-", CODE, 80), ("xoxb-", string.digits + ALNUM, 40), ("AIza", CODE, 35), ("nvapi-", CODE, 64),
    ("npm_", ALNUM, 36), ("dckr_pat_", CODE, 27), ("sk_live_", ALNUM, 24), ("hvs.", CODE, 90),
    ("rlt_ingester_", ALNUM, 40),
]  # fmt: skip
AROUND = ["{}", "token {}", "export X={}", "export TOKEN='{}'", "login --token {} --add", 'key: "{}",',
          "[rank0]: raise ValueError('bad key {}')", "https://host/path?access={}&x=1", "({})"]  # fmt: skip
NAMED = ["password={}", "PASSWORD: {}", 'db_password="{}"', "'passwd': '{}'", "passphrase = {}", "MYSQL_PWD={}",
         "mysql --password {} -u root", "--password={}", "postgres://ada:{}@db:5432/x", "redis://:{}@h:6379",
         "https://user:{}@git.example/x.git"]  # fmt: skip
KEYED = ["WANDB_API_KEY={}", "aws_secret_access_key = {}", "client_secret: {}", '"access_token": "{}"', "token={}",
         "HF_TOKEN: {}", "X-Amz-Signature={}", "AccountKey={};", "Authorization: Bearer {}", "Authorization: Basic {}",
         "auth_token={}", "api-key: {}", "SECRET_KEY='{}'"]  # fmt: skip
INNOCENT = [
    "tokens={n}", "num_tokens: {n}", "consumed tokens/s: {n}.5", "max_new_tokens={n}", "pad_token_id={n}",
    "eos_token='<|endoftext|>'", "token: {n}", "tokenizer: meta-llama/Llama-3-{n}b-hf", "token: Meta-Llama-3-{n}B-Instruct",
    "key=layers.{n}.attn.q_proj.weight", "Missing key(s) in state_dict: 'layers.{n}.mlp.fc1.bias'",
    "cache_key=step_{n}_shard_{n}", "key: checkpoint-{n}/optimizer.pt", "signature: torch.Size([{n}, 4096])",
    "NCCL INFO comm 0x7f0aa{n} rank 3 nranks 8 commId 0x3c8d6a5a0e2bd3e8", "password: None", "password=***",
    "password=<redacted>", "Password authentication failed for user \"ada\"", "PWD=/home/ada/run{n}", "sig=SIGSEGV",
    "http://host:{n}/v1?x=a@b", "https://user@host:{n}/path", "file:///data/{n}@x", "git rev 9f86d081884c7d659a2feaa0c55ad0{n}",
    "checksum sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b{n}", "sk-learn-{n}", "task-{n}-of-128",
    "hf_transformers_cache_dir=/data/{n}", "compute capability sm_{n}", "bearer of bad news {n}", "basic block {n}",
    "secret: kubernetes.io/dockerconfigjson", "secrets/{n} mounted", "keyboard interrupt {n}", "monkey=banana{n}",
    "step {n} | loss 2.3 | tokens per second per gpu 3412.{n}", "uuid=GPU-8f14e45f-ceea-167a-5a36-dedd4bea2543",
    "passed: {n}", "bypass={n}", "compass: {n}", "key_value_heads={n}", "asiago{n}", "tokens: [1, 2, {n}]",
]  # fmt: skip


def random_text(rng: random.Random, alphabet: str, size: int) -> str:
    return "".join(rng.choice(alphabet) for _ in range(size))


def positives(count: int, seed: int = 7) -> list[tuple[str, str]]:
    """Lines and the secret in each."""
    rng = random.Random(seed)
    out = []
    for number in range(count):
        match number % 4:
            case 0 | 1:
                prefix, alphabet, size = rng.choice(TOKENS)
                secret, frame = prefix + random_text(rng, alphabet, size - 1) + "7", rng.choice(AROUND)
            case 2:
                secret = random_text(rng, ALNUM + "!$%^*+", rng.randint(8, 20))
                frame = rng.choice(NAMED)
            case _:
                secret = random_text(rng, rng.choice([ALNUM, HEX]), rng.choice([32, 40, 44])) + "a1"
                frame = rng.choice(KEYED)
        out.append((frame.format(secret), secret))
    return out


def negatives(count: int, seed: int = 7) -> list[str]:
    rng = random.Random(seed)
    return [rng.choice(INNOCENT).replace("{n}", str(rng.randint(1, 99_999))) for _ in range(count)]


def test_recall_is_at_least_98_in_100_of_generated_secrets() -> None:
    samples = positives(2_000)
    missed = [(line, secret) for line, secret in samples if secret in REDACTOR.text(line)]
    assert len(missed) / len(samples) <= 0.02, missed[:10]


def test_false_positives_are_at_most_2_in_100_of_look_alikes() -> None:
    samples = negatives(2_000)
    hurt = sorted({(line, REDACTOR.text(line)) for line in samples if REDACTOR.text(line) != line})
    assert len(hurt) / len(samples) <= 0.02, hurt[:10]


def test_every_kind_of_look_alike_stays_as_it_is() -> None:
    lines = [one.replace("{n}", "70") for one in INNOCENT]
    assert [REDACTOR.text(line) for line in lines] == lines


def test_no_line_of_the_shipped_failures_is_touched() -> None:
    for file in sorted(FAILURES.rglob("*.log")):
        text = file.read_text("utf-8", "replace")
        for line in text.splitlines():
            assert REDACTOR.text(line) == line, f"{file}: {line}"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("url https://ada:s3cret@h/x", "url https://[redacted:url_userinfo]@h/x"),
        ('{"password": "two words"}', '{"password": "[redacted:password]"}'),
        ("a token=8f14e45fceea167a5a36dedd4bea2543, b", "a token=[redacted:secret_value], b"),
        ("Authorization: Basic YWRhOnMzY3JldA==", "Authorization: Basic [redacted:authorization]"),
        ("password=a password=b", "password=[redacted:password] password=[redacted:password]"),
    ],
)
def test_the_words_around_a_secret_stay(line: str, told: str) -> None:
    assert REDACTOR.text(line) == told


@given(st.text(max_size=300))
@example("password=" + "a" * 50_000)
@example("key=" + "1." * 20_000 + "!")
@example("https://" + "a:" * 2_000 + "@")
@settings(max_examples=200, deadline=2_000)
def test_redacting_twice_is_redacting_once(text: str) -> None:
    once = REDACTOR.text(text)
    assert REDACTOR.text(once) == once


@given(st.text(alphabet=ALNUM + " .:,/-_", max_size=60), st.sampled_from(positives(40)))
@settings(max_examples=200, deadline=None)
def test_a_secret_goes_whatever_stands_before_it(before: str, sample: tuple[str, str]) -> None:
    line, secret = sample
    assert secret not in REDACTOR.text(f"{before} {line}")


# ------------------------------------------------------------------ keys of several lines


def line(text: str, file: str = "f") -> LogLine:
    return LogLine(attempt=AttemptId("a-1"), file=file, number=0, stream=Stream.APPLICATION, text=text)


PEM = ["-----BEGIN OPENSSH PRIVATE KEY-----", "b3BlbnNzaC1rZXktdjEAAAAABG5vbmU=", "QyNTUxOQAAACBhYmNk",
       "-----END OPENSSH PRIVATE KEY-----"]  # fmt: skip


def test_a_private_key_goes_line_by_line_over_several_batches_and_files_in_turn() -> None:
    redactor = Redactor()
    first = redactor.lines([line("before"), line(PEM[0]), line("step 1", "g"), line(PEM[1])])
    second = redactor.lines([line("loss=1.0", "g"), line(PEM[2]), line(PEM[3]), line("after")])
    assert [one.text for one in first] == ["before", "[redacted:private_key]", "step 1", "[redacted:private_key]"]
    assert [one.text for one in second] == ["loss=1.0", "[redacted:private_key]", "[redacted:private_key]", "after"]


def test_a_key_that_never_ends_takes_no_ordinary_line_with_it() -> None:
    redactor = Redactor()
    redactor.lines([line(PEM[0])])
    words = "RuntimeError: CUDA error: an illegal memory access was encountered"
    assert redactor.lines([line(words)])[0].text == words
    redactor.lines([line(PEM[0]), *[line(PEM[1])] * MAX_KEY_LINES])
    assert redactor.lines([line(PEM[1])])[0].text == PEM[1]


def test_a_public_key_or_certificate_is_no_secret() -> None:
    for words in ("-----BEGIN CERTIFICATE-----", "-----BEGIN PUBLIC KEY-----"):
        assert REDACTOR.text(words) == words


def test_a_key_on_one_line_goes_whole() -> None:
    assert REDACTOR.text("KEY='" + r"\n".join(PEM) + "'") == "KEY='[redacted:private_key]'"


def test_secrets_are_counted_by_kind_and_lines_without_any_are_the_same_objects() -> None:
    told: list[str] = []
    redactor, plain = Redactor(told.append), line("step 1 loss=2.0")
    out = redactor.lines([plain, line("password=hunter2"), line("token ghp_" + "a1B2" * 9)])
    assert out[0] is plain
    assert dict(redactor.counts) == {"password": 1, "github_token": 1}
    assert sorted(told) == ["github_token", "password"]
