# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Settings: read once from defaults, file, environment and flags, then frozen."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from relight.types import Mode
from service.promotion_settings import Promotion

SYSTEM_FILE = Path("/etc/relight/config.toml")
PREFIX = "RELIGHT__"
DELIMITER = "__"
_MIB = 1 << 20

Seconds = Annotated[float, Field(gt=0)]


class ConfigError(ValueError):
    """A setting that is unknown, malformed or contradicts another."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Server(Section):
    """Where the API listens and how much a request may carry."""

    host: str = "127.0.0.1"
    port: int = Field(default=8756, ge=0, le=65_535)
    max_body_bytes: int = Field(default=_MIB, gt=0)
    max_ingest_bytes: int = Field(default=16 * _MIB, gt=0)
    max_compression_ratio: int = Field(default=200, gt=1)
    max_wait_s: float = Field(default=60, ge=0, le=60)

    @property
    def is_loopback(self) -> bool:
        return self.host in {"localhost", "::1"} or self.host.startswith("127.")


class Auth(Section):
    """Bearer tokens: a file of SHA-256 digests, never of secrets."""

    tokens_file: Path | None = None
    max_token_days: int = Field(default=365, ge=1, le=365)


class Audit(Section):
    """Which audit log is used, by its plugin name, and where it keeps its data."""

    log: str = "duckdb"
    path: Path = Path("relight.duckdb")


class Rules(Section):
    """Extra rule packs of the site, and its own policy table."""

    folders: tuple[Path, ...] = ()
    policy_file: Path | None = None


class Plugins(Section):
    """What is enabled; installed is not enabled. `options` are a detector's own, by its name."""

    detectors: tuple[str, ...] = ("crash", "hang", "straggler", "slowdown", "divergence")
    attributor: str = "builtin"
    options: dict[str, dict[str, bool | int | float | str]] = {}

    @model_validator(mode="after")
    def _options_are_of_what_is_enabled(self) -> Self:
        for name in self.options:
            if name not in {*self.detectors, self.attributor}:
                enabled = ", ".join([*self.detectors, self.attributor])
                raise ValueError(f"options for {name!r}, which is not enabled; enabled are {enabled}")
        return self


class Detect(Section):
    """How detectors are kept going: their state over a restart, and rules that change while we run."""

    state_file: Path | None = None
    save_every_s: Seconds = 30
    rules_every_s: Seconds = 5
    rules_settle_s: float = Field(default=2, ge=0)


class Follow(Section):
    """Job logs read where they are written: only below `roots`; without any, none is followed."""

    roots: tuple[Path, ...] = ()
    poll_every_s: Seconds = 2
    linger_s: Seconds = 60
    max_lag_s: Seconds = 10
    cursors_file: Path | None = None

    @model_validator(mode="after")
    def _roots_are_absolute(self) -> Self:
        for root in self.roots:
            if not root.is_absolute():
                raise ValueError(f"follow.roots holds {str(root)!r}; give absolute paths")
        return self


class Topology(Section):
    """Which nodes share an NVLink domain or a rack: a name each, with host lists as Slurm writes them."""

    domains: dict[str, tuple[str, ...]] = {}
    racks: dict[str, tuple[str, ...]] = {}


class Recommend(Section):
    """How bold advice is and how long it stands."""

    cluster: str = Field(default="default", min_length=1, max_length=128)
    mode: Mode = Mode.MONITOR
    decide_within_s: Seconds = 60
    expire_after_s: Seconds = 900
    max_lease_s: Seconds = 600
    exclusion_ttl_s: Seconds = 86_400
    sweep_every_s: Seconds = 1

    @model_validator(mode="after")
    def _expires_after_it_is_decided(self) -> Self:
        if self.expire_after_s < self.decide_within_s:
            raise ValueError(
                f"need decide_within_s <= expire_after_s, got {self.decide_within_s} > {self.expire_after_s}"
            )
        return self


class Ingest(Section):
    """Bounds of what is held in memory while lines and signals come in, and on disk for jobs not registered yet."""

    max_inflight_bytes: int = Field(default=64 * _MIB, gt=0)
    max_lines_per_request: int = Field(default=50_000, gt=0)
    max_line_bytes: int = Field(default=64_000, gt=0)
    dedup_window_s: Seconds = 600
    dedup_keys: int = Field(default=200_000, gt=0)
    retry_after_s: int = Field(default=5, gt=0)
    hold_s: Seconds = 600
    hold_bytes_per_job: int = Field(default=4 * _MIB, ge=0)
    hold_bytes: int = Field(default=256 * _MIB, ge=0)
    hold_folder: Path | None = None


class NotifyChannel(Section):
    """One place that is told; addresses and keys that are secret come from files.

    With `approve_links` whoever reads there may approve and reject, in the channel's name.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}$")
    kind: Literal["webhook", "slack", "pagerduty", "alertmanager"]
    url: str = ""
    url_file: Path | None = None
    secret_file: Path | None = None
    least: Literal["info", "warning", "error", "critical"] = "warning"
    approve_links: bool = False

    def __str__(self) -> str:
        """Without the address, which is a secret for some kinds."""
        return f"{self.name} ({self.kind}, from {self.least})"

    @model_validator(mode="after")
    def _has_what_its_kind_needs(self) -> Self:
        if self.kind == "pagerduty":
            if self.secret_file is None:
                raise ValueError(f"channel {self.name!r}: pagerduty needs secret_file, which holds the routing key")
        elif bool(self.url) == (self.url_file is not None):
            raise ValueError(f"channel {self.name!r}: {self.kind} needs url or url_file, and not both")
        return self


class Notify(Section):
    """Who is told of what was recorded. `console_url` is where links lead; private hosts must be named."""

    channels: tuple[NotifyChannel, ...] = ()
    console_url: str = ""
    private_hosts: tuple[str, ...] = ()
    every_s: Seconds = 1
    state_file: Path | None = None
    link_key_file: Path | None = None

    @property
    def has_links(self) -> bool:
        return any(one.approve_links for one in self.channels)

    @model_validator(mode="after")
    def _names_are_different(self) -> Self:
        names = [one.name for one in self.channels]
        if len(set(names)) != len(names):
            raise ValueError(f"channel names must differ, got {', '.join(names)}")
        if self.has_links and not self.console_url:
            raise ValueError("approve_links need console_url: a link leads to the console")
        return self


class Tracing(Section):
    """Traces of recoveries, sent to an OTLP/HTTP collector; off without an `endpoint`, which is the full address.

    `headers_file` holds one `name: value` a line, for collectors that want a key.
    """

    endpoint: str = Field(default="", pattern=r"^(https?://[^\s/]+/\S*)?$")
    headers_file: Path | None = None
    service_name: str = Field(default="relight", min_length=1, max_length=128)
    every_s: Seconds = 1
    timeout_s: Seconds = 5
    max_pending: int = Field(default=2_048, gt=0)
    state_file: Path | None = None


class Settings(BaseSettings):
    """Everything that can be set; built by `load_settings`, handed down, never read again."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter=DELIMITER, extra="forbid", frozen=True)

    server: Server = Server()
    auth: Auth = Auth()
    audit: Audit = Audit()
    rules: Rules = Rules()
    plugins: Plugins = Plugins()
    detect: Detect = Detect()
    follow: Follow = Follow()
    topology: Topology = Topology()
    recommend: Recommend = Recommend()
    ingest: Ingest = Ingest()
    notify: Notify = Notify()
    tracing: Tracing = Tracing()
    promotion: Promotion = Promotion()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 -- the name is the library's
        init_settings: PydanticBaseSettingsSource,
        *_: PydanticBaseSettingsSource,
        **__: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what `load_settings` hands in: the layering is done there, where origins are known."""
        return (init_settings,)


@dataclass(frozen=True, slots=True)
class Origin:
    """One setting, its value as shown to people, and the layer that decided it."""

    key: str
    value: str
    origin: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings with the layer each value came from."""

    settings: Settings
    origins: Mapping[str, str]

    def describe(self) -> tuple[Origin, ...]:
        """Every setting in order, secrets redacted, for `relight config show`."""
        return tuple(
            Origin(key, _shown(value), self.origins.get(key, "default")) for key, value in _leaves(self.settings)
        )


def load_settings(file: Path | None = None, flags: Mapping[str, Mapping[str, Any]] | None = None) -> Loaded:
    """Settings from defaults < file < environment < flags.

    `file` defaults to the system file if that exists; `flags` are nested by section, None is "not given".
    Errors: ConfigError naming the key, its value and where it was set.
    """
    layers = (
        *_file_layer(file),
        ("environment", _environment()),
        ("flag", _given(flags or {})),
    )
    merged: dict[str, dict[str, Any]] = {}
    origins: dict[str, str] = {}
    for origin, layer in layers:
        for section, values in layer.items():
            if not isinstance(values, Mapping):
                raise ConfigError(f"{origin}: {section!r} must be a section, got {values!r}")
            merged.setdefault(section, {}).update(values)
            origins.update({f"{section}.{key}": origin for key in values})
    try:
        return Loaded(Settings(**merged), origins)  # type: ignore[arg-type]
    except ValidationError as why:
        raise ConfigError(_explained(why, origins)) from why


def _file_layer(file: Path | None) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    if file is None and not SYSTEM_FILE.is_file():
        return ()
    path = file or SYSTEM_FILE
    if not path.is_file():
        raise ConfigError(f"config file {path} does not exist")
    try:
        return ((str(path), TomlConfigSettingsSource(Settings, path)()),)
    except ValueError as why:
        raise ConfigError(f"{path} is not valid TOML: {why}") from why


def _environment() -> dict[str, Any]:
    known = set(Settings.model_fields)
    for name in os.environ:
        if name.upper().startswith(PREFIX):
            section = name[len(PREFIX) :].split(DELIMITER)[0].lower()
            if section not in known:
                raise ConfigError(f"{name}: no section {section!r}, known: {', '.join(sorted(known))}")
    try:
        return EnvSettingsSource(Settings)()
    except ValueError as why:
        raise ConfigError(f"environment: {why}; lists are written as JSON") from why


def _given(flags: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        section: {key: value for key, value in values.items() if value is not None} for section, values in flags.items()
    }


def _leaves(section: BaseModel, prefix: str = "") -> Iterator[tuple[str, object]]:
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _shown(value: object) -> str:
    match value:
        case SecretStr():
            return "********"
        case None:
            return "unset"
        case tuple():
            return ", ".join(map(str, value)) or "none"
        case _:
            return str(value)


def _explained(why: ValidationError, origins: Mapping[str, str]) -> str:
    lines = []
    for error in why.errors():
        key = ".".join(map(str, error["loc"]))
        origin = origins.get(key) or origins.get(key.rsplit(".", 1)[0], "settings")
        known = _siblings(error["loc"]) if error["type"] == "extra_forbidden" else ""
        lines.append(f"{origin}: {key} = {error['input']!r}: {error['msg']}{known}")
    return "\n".join(lines)


def _siblings(where: tuple[int | str, ...]) -> str:
    model: type[BaseModel] = Settings
    for name in where[:-1]:
        field = model.model_fields.get(str(name))
        if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            return ""
        model = field.annotation
    return f"; known here: {', '.join(sorted(model.model_fields))}"


def cache_folder() -> Path:
    """Where checked rule sets are kept between runs: `$XDG_CACHE_HOME/relight`, else `~/.cache/relight`."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if given else Path.home() / ".cache") / "relight"


def is_ci() -> bool:
    """Nobody watches: commands that would wait for a person end by themselves."""
    return os.environ.get("CI", "").lower() in {"1", "true", "yes"}


def slurm_environment() -> dict[str, str]:
    """What Slurm's commands are told by their environment, and nothing else of ours."""
    return {name: os.environ[name] for name in ("SLURM_CONF", "HOME", "USER", "LANG") if name in os.environ}
