# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`relight models`: train the attribution model, measure it, compare it with the one in use, promote it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from models.artefact import Sealed
from models.attribution_model import Example
from models.attribution_scores import data_digest, guesses_of, metrics_of
from models.attribution_training import JUDGED_BY, VIEWS, compare, objections, rounds, train
from rules.problems import RulesInvalid
from service import bootstrap
from service.commands import model_promotion
from service.commands.model_promotion import StoreFolder, audit_of, refusals
from service.commands.options import AsJson, ConfigFile, settings_from
from service.config import Settings
from service.model_hints import promotions
from service.model_reports import score_line, show_comparison, show_objections, show_views
from service.terminal import ExitCode, escaped, message, progress, result, result_json, stop

app = typer.Typer(help="Train, compare and promote the attribution model.", no_args_is_help=True, rich_markup_mode=None)
app.command()(model_promotion.promote)
Data = Annotated[Path | None, typer.Option(help="A folder of labelled cases instead of the shipped ones.")]
RuleFolders = Annotated[list[Path] | None, typer.Option("--rules", help="Folders with your own signatures.")]
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
    with refusals():
        known = [one.manifest.version for one in shelf.listed() if one.manifest is not None]
        next_number = max((int(v) for v in known if v.isdecimal()), default=0) + 1
        views = (JUDGED_BY,) if quick else tuple(VIEWS)
        with progress("training", rounds(views)) as bar:
            sealed = train(
                examples, version=version or str(next_number), at=bootstrap.clock().now(), views=views,
                done=bar.advance,
            )  # fmt: skip
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
    with refusals():
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
    with refusals():
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


def _promoted_digests(settings: Settings) -> frozenset[str]:
    """What is in use, as far as the audit log can be read; none where there is no log yet."""
    if settings.audit.log == "duckdb" and not settings.audit.path.exists():
        return frozenset()
    with audit_of(settings) as log:
        return frozenset(one.digest for one in promotions(log).values())


def _cross_validate(examples: Sequence[Example], as_json: bool) -> None:
    from models.attribution_scores import evaluate as cross_validate

    found: dict[str, Any] = {}
    with refusals(), progress("cross-validating", rounds() - 1) as bar:
        for view, (_, asked) in VIEWS.items():
            found[view] = cross_validate(examples, None, **asked, done=bar.advance).metrics
    if as_json:
        result_json(found)
    else:
        show_views(found)


def _shown(sealed: Sealed) -> dict[str, Any]:
    one = sealed.manifest
    return {"model": one.reference, "digest": sealed.digest, "data": one.data_digest, "metrics": dict(one.metrics)}
