# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
# %% [markdown]
# # Retrain the attribution model
#
# Labelled cases in, a sealed artefact out. The model is a second opinion for logs that no signature explains; it
# moves no action. `relight models train` does the same; here is where to try other settings.

# %%
import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from detectors.attribution_examples import attempt_features, case_example, signature_examples
from detectors.crash import diagnose
from detectors.log_text import read_log
from models.artefact import CARD
from models.attribution_model import AttributionSettings, libraries
from models.attribution_scores import data_digest
from models.attribution_training import JUDGED_BY, compare, objections, train
from relight.types import Stream
from rules.lint import load
from rules.policy_table import load_taxonomy

ROOT = next(p for p in (Path.cwd(), *Path.cwd().parents) if (p / "datasets" / "failures").is_dir())
CASES = ROOT / "datasets" / "failures"
STORE: Path | None = None  # where `relight models list --store` looks; None: a folder that is thrown away

# %% [markdown]
# The rules first: their evidence is one half of the features, and the lines on which signatures fire are examples.

# %%
taxonomy = load_taxonomy("rules/taxonomy.yaml", (ROOT / "rules" / "taxonomy.yaml").read_text("utf-8"))
packs = {str(p): p.read_text("utf-8") for p in sorted((ROOT / "rules" / "packs").rglob("*.yaml"))}
signatures, progress = load({k: v for k, v in packs.items() if not k.endswith("pack.yaml")}, taxonomy)
lessons = list(signature_examples(signatures.signatures, taxonomy))

# %%
for folder in sorted(p.parent for p in CASES.glob("*/label.json")):
    told = json.loads((folder / "input.json").read_text("utf-8"))
    logs = [
        read_log(name, (folder / name).read_bytes(), Stream(stream), node=told["node_of_log"].get(name))
        for name, stream in sorted(told["streams"].items())
    ]
    _, evidence = diagnose(logs, signatures, progress, taxonomy)
    label = json.loads((folder / "label.json").read_text("utf-8"))
    lessons.append(case_example(folder.name, attempt_features(logs, evidence, taxonomy), label))

print(libraries())
print(f"{sum(one.is_case for one in lessons)} cases, {sum(not one.is_case for one in lessons)} lines of signatures")
print("data", data_digest(lessons))

# %% [markdown]
# Cross-validated without time, since the cases carry no dates: whole families of failures are left out in turn, cases
# of one source or of nearly the same words stay together, and lines that resemble a held-out case are not learnt.

# %%
at = datetime(2026, 1, 1, tzinfo=UTC)  # the artefact's date; the time of day has no part in it
champion = train(lessons, version="1", at=at, views=[JUDGED_BY])
challenger = train(lessons, version="2", at=at, views=[JUDGED_BY], settings=AttributionSettings(regularisation=1.0))

rows = {one.manifest.reference: one.manifest.metrics[JUDGED_BY] for one in (champion, challenger)}
shown = ["majority_accuracy", "accuracy", "top3", "macro_f1", "failure_top3", "confident_share", "confident_precision"]
print(pd.DataFrame(rows).loc[shown].to_string())
print(pd.DataFrame(champion.manifest.metrics[JUDGED_BY]["classes"]).T.to_string())

# %% [markdown]
# Champion and challenger on the same cases, each unseen when it was asked about.

# %%
both = compare(champion, challenger)
print(f"{both.cases} cases: the challenger wins {len(both.won)} and loses {len(both.lost)}")
against = objections(challenger, champion)
print("objections:", *(against or ["none"]), sep="\n  ")

# %% [markdown]
# Keep the better one. The folder's name is the artefact's digest; nothing uses it before
# `relight models promote attribution@VERSION --store STORE --reason WHY`.

# %%
better = champion if against else challenger
with tempfile.TemporaryDirectory() as thrown_away:
    target = (STORE or Path(thrown_away)) / better.digest
    target.mkdir(parents=True, exist_ok=True)
    for name, data in better.files.items():
        (target / name).write_bytes(data)
    print(f"wrote {better.manifest.reference}, {sum(map(len, better.files.values())):,} bytes, {better.digest}")
print(better.files[CARD].decode("utf-8"))
