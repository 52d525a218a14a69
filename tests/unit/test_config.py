# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Settings: which layer wins, what is refused, and where each value came from."""

from __future__ import annotations

from pathlib import Path

import pytest

from relight.types import Mode
from service.config import ConfigError, Settings, load_settings


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("service.config.SYSTEM_FILE", tmp_path / "absent.toml")
    path = tmp_path / "config.toml"
    path.write_text('[server]\nport = 1111\nhost = "127.0.0.2"\n[recommend]\nmode = "approve"\n')
    return path


def test_flags_win_over_environment_over_file_over_defaults(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELIGHT__SERVER__PORT", "2222")
    monkeypatch.setenv("RELIGHT__RECOMMEND__MODE", "act")
    loaded = load_settings(file, {"server": {"port": 3333, "host": None}})
    server = loaded.settings.server
    assert (server.port, server.host, server.max_wait_s) == (3333, "127.0.0.2", 60)
    assert loaded.settings.recommend.mode is Mode.ACT
    told = {one.key: (one.value, one.origin) for one in loaded.describe()}
    assert told["server.port"] == ("3333", "flag")
    assert told["server.host"] == ("127.0.0.2", str(file))
    assert told["recommend.mode"] == ("act", "environment")
    assert told["server.max_wait_s"] == ("60", "default")


def test_monitor_is_the_default_mode(file: Path) -> None:
    assert Settings().recommend.mode is Mode.MONITOR


@pytest.mark.parametrize("text", ["[server]\nprot = 1\n", "[sever]\nport = 1\n", "colour = 1\n"])
def test_an_unknown_key_in_the_file_is_an_error_that_names_it(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"prot|sever|colour"):
        load_settings(file)


@pytest.mark.parametrize("name", ["RELIGHT__SERVER__PROT", "RELIGHT__SEVER__PORT"])
def test_an_unknown_key_in_the_environment_is_an_error(file: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(ConfigError, match=r"(?i)prot|sever"):
        load_settings(file)


def test_a_bad_value_names_the_key_the_value_and_the_layer(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELIGHT__SERVER__PORT", "many")
    with pytest.raises(ConfigError, match=r"environment: server\.port = 'many'"):
        load_settings(file)


def test_a_known_neighbour_is_offered(file: Path) -> None:
    file.write_text("[server]\nprot = 1\n")
    with pytest.raises(ConfigError, match=r"known here: .*port"):
        load_settings(file)


@pytest.mark.parametrize("text", ["[server\n", "\xff"])
def test_a_file_that_is_not_toml_is_an_error(file: Path, text: str) -> None:
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_settings(file)


def test_a_file_that_was_asked_for_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load_settings(tmp_path / "nothing.toml")


def test_settings_that_contradict_each_other_are_refused(file: Path) -> None:
    file.write_text("[recommend]\ndecide_within_s = 60\nexpire_after_s = 30\n")
    with pytest.raises(ConfigError, match=r"need decide_within_s <= expire_after_s"):
        load_settings(file)


def test_lists_in_the_environment_are_json(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELIGHT__PLUGINS__DETECTORS", '["crash", "hang"]')
    assert load_settings(file).settings.plugins.detectors == ("crash", "hang")
    monkeypatch.setenv("RELIGHT__PLUGINS__DETECTORS", "crash,hang")
    with pytest.raises(ConfigError, match="lists are written as JSON"):
        load_settings(file)


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().server.port = 1  # type: ignore[misc]
