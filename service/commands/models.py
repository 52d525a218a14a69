# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`relight models`: train the attribution model, measure it, compare it with the one in use, promote it."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from models.artefact import ArtefactRefused, Sealed
from models.attribution_model import Example
from models.attribution_scores import data_digest, guesses_of, metrics_of
from models.attribution_training import JUDGED_BY, VIEWS, compare, objections, train
from relight.events import ModelPromoted
from relight.ports import AuditLog, AuditUnavailable
from rules.problems import RulesInvalid
from service import bootstrap
from service.commands.options import AsJson, ConfigFile, settings_from
from service.config import Settings
from service.model_hints import promotions
from service.model_reports import score_line, show_comparison, show_objections, show_views
from service.plugins import PluginError
from service.terminal import ExitCode, escaped, message, result, result_json, stop

app = typer.Typer(help="Train, compare and promote the attribution model.", no_args_is_help=True, rich_markup_mode=None)
Data = Annotated[Path | None, typer.Option(help="A folder of labelled cases instead of the shipped ones.")]
RuleFolders = Annotated[list[Path] | None, typer.Option("--rules", help="Folders with your own signatures.")]
StoreFolder = Annotated[
    Path | None, typer.Option("--store", help="Where artefacts are, instead of beside the audit log.")
]
Reference = Annotated[str, typer.Argument(help="NAME@VERSION, as in attribution@3.")]


@app.command("train")
def train_model(
    version: Annotated[str | None, typer.Option(help="Its version; else the next number.")] = None,
    data: Data = None,
    rules: RuleFolders = None,
    store: StoreFolder = None,
    quick: Annotated[bool, typer.Option(help="Only the cross-validation that a promotion looks at.")] = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Cross-validate, fit on everything and keep the artefact; nothing is in use before it is promoted."""
    shelf = bootstrap.model_store(settings_from(config), store)
    examples = _examples(data, rules)
    with _refusals():
        known = [one.manifest.version for one in shelf.listed() if one.manifest is not None]
        next_number = max((int(v) for v in known if v.isdecimal()), default=0) + 1
        views = (JUDGED_BY,) if quick else tuple(VIEWS)
        sealed = train(examples, version=version or str(next_number), at=bootstrap.clock().now(), views=views)
        folder = shelf.save(sealed)
    if as_json:
        result_json({**_shown(sealed), "folder": str(folder)})
        return
    result(f"{sealed.manifest.reference}  {sealed.digest}")
    show_views(sealed.manifest.metrics)
    message(f"kept in {folder}; promote it with: relight models promote {sealed.manifest.reference} --reason WHY")


@app.command()
def evaluate(
    reference: Annotated[str | None, typer.Argument(help="NAME@VERSION; left out: cross-validate the data.")] = None,
    data: Data = None,
    rules: RuleFolders = None,
    store: StoreFolder = None,
    unpickle: Annotated[
        bool, typer.Option("--unpickle", help="Open an artefact that nobody promoted: runs what is in it.")
    ] = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Measure on labelled cases: by cross-validation, or an artefact on cases that it was not taught."""
    settings = settings_from(config)
    if reference is None:
        _cross_validate(_examples(data, rules), as_json)
        return
    shelf = bootstrap.model_store(settings, store)
    with _refusals():
        digest = shelf.find(reference).digest
        trusted = {digest} if unpickle else _promoted_digests(settings)
        model, sealed = shelf.open(digest, trusted)
    examples = _examples(data, rules)
    is_taught = data_digest(examples) == sealed.manifest.data_digest
    metrics = metrics_of(guesses_of(model, [e for e in examples if e.is_case]), sealed.manifest.threshold)
    if as_json:
        result_json({"model": reference, "digest": digest, "was_taught_these": is_taught, "metrics": metrics})
    else:
        result(score_line("all cases", metrics))
    if is_taught:
        message("relight: it was taught with these very cases, so these figures say nothing about others")


@app.command("compare")
def compare_models(
    champion: Reference,
    challenger: Reference,
    store: StoreFolder = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Two artefacts on the cases that both were asked about unseen. Exit code 1 if the challenger has drawbacks."""
    shelf = bootstrap.model_store(settings_from(config), store)
    with _refusals():
        one, other = (shelf.read(shelf.find(name).digest) for name in (champion, challenger))
        both, against = compare(one, other), objections(other, one)
    if as_json:
        result_json({"champion": champion, "challenger": challenger, "cases": both.cases, "objections": list(against),
                     "before": both.champion, "after": both.challenger,
                     "won": list(both.won), "lost": list(both.lost)})  # fmt: skip
    else:
        show_comparison(champion, challenger, both)
    show_objections(against)
    raise typer.Exit(ExitCode.FINDINGS if against else ExitCode.OK)


@app.command()
def promote(
    reference: Reference,
    reason: Annotated[str, typer.Option(help="Why, for the audit log.")],
    actor: Annotated[str | None, typer.Option(help="Who; else whoever runs this command.")] = None,
    store: StoreFolder = None,
    even_if_worse: Annotated[bool, typer.Option("--even-if-worse", help="Despite the objections shown.")] = False,
    config: ConfigFile = None,
) -> None:
    """Put an artefact into use: recorded in the audit log with who and why. It gives hints and moves no action."""
    if not reason.strip():
        raise stop("--reason is empty; say why this model is better", ExitCode.USAGE)
    settings = settings_from(config)
    shelf = bootstrap.model_store(settings, store)
    with _refusals(), _audit(settings) as log:
        sealed = shelf.read(shelf.find(reference).digest)
        shelf.check_usable(sealed)
        current = promotions(log).get(sealed.manifest.name)
        if current is not None and current.digest == sealed.digest:
            message(f"{reference} is in use already")
            return
        against = _objections(shelf, sealed, current)
        show_objections(against)
        if against and not even_if_worse:
            raise stop(f"{reference} was not promoted; --even-if-worse does it nevertheless", ExitCode.REFUSED)
        (position,) = log.append([_promotion(sealed, current, actor or _user(), reason, against)])
    result(f"{reference}  {sealed.digest}  recorded at {position}")


@app.command("list")
def list_models(store: StoreFolder = None, as_json: AsJson = False, config: ConfigFile = None) -> None:
    """The artefacts at hand, and which one is in use."""
    settings = settings_from(config)
    shelf = bootstrap.model_store(settings, store)
    used = _promoted_digests(settings)
    rows = shelf.listed()
    if as_json:
        result_json([
            {"digest": r.digest, "is_promoted": r.digest in used, "problem": r.problem or None,
             **({} if r.manifest is None else {"model": r.manifest.reference,
                "created_at": r.manifest.created_at.isoformat(), "data": r.manifest.data_digest,
                "metrics": dict(r.manifest.metrics)})}
            for r in rows
        ])  # fmt: skip
        return
    for row in rows:
        if row.manifest is None:
            result(f"{row.digest[:12]}  BROKEN  {escaped(row.problem)}")
            continue
        judged = row.manifest.metrics.get(JUDGED_BY, {})
        state = "in use" if row.digest in used else "-"
        result(
            f"{row.digest[:12]}  {row.manifest.reference:<20}  {row.manifest.created_at:%Y-%m-%d}  "
            f"macro-F1 {judged.get('macro_f1')}  {state}"
        )
    if not rows:
        message(f"no models in {shelf.folder}; train one with: relight models train")


# ------------------------------------------------------------------ the pieces


def _examples(data: Path | None, rules: Sequence[Path] | None) -> list[Example]:
    try:
        return bootstrap.labelled_examples(data, rules or ())
    except (bootstrap.LogUnreadable, OSError) as why:
        raise stop(str(why), ExitCode.USAGE) from why
    except RulesInvalid as invalid:
        raise stop(
            f"the rules hold {len(invalid.problems)} problem(s): relight rules lint", ExitCode.CONFIG
        ) from invalid


@contextmanager
def _refusals() -> Iterator[None]:
    """Artefacts that must not be opened end the command with code 6, too few cases with code 2."""
    try:
        yield
    except ArtefactRefused as why:
        raise stop(str(why), ExitCode.INTEGRITY) from why
    except ValueError as why:
        raise stop(str(why), ExitCode.USAGE) from why


@contextmanager
def _audit(settings: Settings) -> Iterator[AuditLog]:
    """The audit log, closed afterwards; ends with code 4 where it is missing or can't be opened."""
    where = settings.audit.path
    if settings.audit.log == "duckdb" and not where.exists():
        raise stop(f"no audit log at {where}, so nothing can be promoted; set [audit] path", ExitCode.CANNOT_REACH)
    try:
        log = bootstrap.open_audit(settings)
    except PluginError as error:
        raise stop(str(error), ExitCode.CONFIG) from error
    except (RuntimeError, OSError) as error:  # a store refuses its file in its own words
        raise stop(f"audit log: {error}; stop the server that holds it", ExitCode.CANNOT_REACH) from error
    try:
        try:
            yield log
        finally:
            log.close()
    except (AuditUnavailable, OSError) as error:
        raise stop(f"audit log: {error}", ExitCode.CANNOT_REACH) from error


def _promoted_digests(settings: Settings) -> frozenset[str]:
    """What is in use, as far as the audit log can be read; none where there is no log yet."""
    if settings.audit.log == "duckdb" and not settings.audit.path.exists():
        return frozenset()
    with _audit(settings) as log:
        return frozenset(one.digest for one in promotions(log).values())


def _objections(shelf: Any, sealed: Sealed, current: ModelPromoted | None) -> tuple[str, ...]:
    if current is None:
        return objections(sealed, None)
    try:
        return objections(sealed, shelf.read(current.digest))
    except ArtefactRefused as why:
        return (*objections(sealed, None), f"can't be compared with {current.model}@{current.version}: {why}")


def _promotion(
    sealed: Sealed, current: ModelPromoted | None, actor: str, reason: str, against: Sequence[str]
) -> ModelPromoted:
    return ModelPromoted(
        at=bootstrap.clock().now(),
        model=sealed.manifest.name,
        version=sealed.manifest.version,
        digest=sealed.digest,
        actor=actor,
        reason=reason,
        previous=current.digest if current is not None else "",
        metrics={**sealed.manifest.metrics.get(JUDGED_BY, {}), "objections": list(against)},
    )


def _user() -> str:
    """By the process, not by the environment, which anyone may set."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


def _cross_validate(examples: Sequence[Example], as_json: bool) -> None:
    from models.attribution_scores import evaluate as cross_validate

    found: dict[str, Any] = {}
    with _refusals():
        for view, (_, asked) in VIEWS.items():
            found[view] = cross_validate(examples, None, **asked).metrics
    if as_json:
        result_json(found)
    else:
        show_views(found)


def _shown(sealed: Sealed) -> dict[str, Any]:
    one = sealed.manifest
    return {"model": one.reference, "digest": sealed.digest, "data": one.data_digest, "metrics": dict(one.metrics)}
