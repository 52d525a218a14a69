# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Artefacts and their store: nothing is opened that was changed, made elsewhere, or never promoted."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import joblib
import pytest
import sklearn

from models.artefact import (
    CARD,
    MANIFEST,
    MODEL,
    ArtefactRefused,
    Manifest,
    Sealed,
    check_versions,
    parse_reference,
    seal,
    sha256,
    unsealed,
)
from models.attribution_training import train
from relight.events import ModelPromoted
from service.adapters.model_store import ModelStore
from service.model_hints import ModelHints
from tests.unit.lessons import SMALL, lessons

AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def sealed() -> Sealed:
    return train(lessons(), version="1", at=AT, settings=SMALL, views=())


@pytest.fixture
def store(tmp_path: Path, sealed: Sealed) -> ModelStore:
    kept = ModelStore(tmp_path / "models")
    kept.save(sealed)
    return kept


def resealed(sealed: Sealed, files: dict[str, bytes], **changes: object) -> Sealed:
    rest = {name: data for name, data in sealed.files.items() if name != MANIFEST}
    return seal(replace(sealed.manifest, **changes), {**rest, **files})  # type: ignore[arg-type]


def test_the_manifest_names_every_file_the_data_the_versions_and_the_figures(sealed: Sealed) -> None:
    said = json.loads(sealed.files[MANIFEST])
    assert set(said["files"]) == set(sealed.files) - {MANIFEST}
    assert sha256(sealed.files[MANIFEST]) == sealed.digest
    assert said["libraries"]["scikit-learn"] == sklearn.__version__
    assert len(said["data_digest"]) == 64
    assert said["metrics"]["unseen_family"]["majority_accuracy"] == 0.333
    assert b"Never" in sealed.files[CARD]


@pytest.mark.parametrize("name", [MODEL, CARD, MANIFEST])
def test_one_changed_byte_anywhere_is_refused(sealed: Sealed, name: str) -> None:
    data = bytearray(sealed.files[name])
    data[len(data) // 2] ^= 1
    with pytest.raises(ArtefactRefused, match="digest"):
        unsealed({**sealed.files, name: bytes(data)}, sealed.digest)


def test_a_missing_file_and_a_file_too_many_are_refused(sealed: Sealed) -> None:
    with pytest.raises(ArtefactRefused, match=r"card\.md is missing"):
        unsealed({k: v for k, v in sealed.files.items() if k != CARD}, sealed.digest)
    with pytest.raises(ArtefactRefused, match="not in the manifest"):
        unsealed({**sealed.files, "extra.py": b""}, sealed.digest)
    with pytest.raises(ArtefactRefused, match=r"lacks \['card\.md'"):
        seal(sealed.manifest, {MODEL: b"x"})


def test_a_manifest_of_a_newer_schema_or_with_unknown_fields_is_refused(sealed: Sealed) -> None:
    said = json.loads(sealed.files[MANIFEST])
    for changed, why in (({**said, "schema": 2}, "schema 2"), ({**said, "surprise": 1}, "surprise")):
        written = json.dumps(changed).encode()
        with pytest.raises(ArtefactRefused, match=why):
            unsealed({**sealed.files, MANIFEST: written}, sha256(written))


def test_versions_must_match_scikit_learn_to_the_last_number_and_others_to_the_second(sealed: Sealed) -> None:
    here, python = dict(sealed.manifest.libraries), sealed.manifest.python
    check_versions(sealed.manifest, here, python)
    check_versions(sealed.manifest, {**here, "numpy": f"{'.'.join(here['numpy'].split('.')[:2])}.99"}, python)
    for other in ({"scikit-learn": f"{here['scikit-learn']}.1"}, {"numpy": "1.0.0"}):
        with pytest.raises(ArtefactRefused, match=f"{next(iter(other))}.*train it anew here"):
            check_versions(sealed.manifest, {**here, **other}, python)
    with pytest.raises(ArtefactRefused, match="python"):
        check_versions(sealed.manifest, here, "3.99")


@pytest.mark.parametrize("text", ["attribution", "@1", "a b@1", "../x@1", "attribution@", "attribution@../1", "A@1"])
def test_a_reference_is_a_name_and_a_version(text: str) -> None:
    with pytest.raises(ArtefactRefused, match="NAME@VERSION"):
        parse_reference(text)


# ------------------------------------------------------------------ the store


def test_what_was_saved_is_found_by_name_and_opened_by_promoted_digest(store: ModelStore, sealed: Sealed) -> None:
    assert store.find("attribution@1").digest == sealed.digest
    model, opened = store.open(sealed.digest, {sealed.digest})
    assert opened.manifest == sealed.manifest
    assert model.hint(lessons()[0].features).failure_class == "hardware"


def test_what_nobody_promoted_is_not_opened_even_if_it_is_sound(store: ModelStore, sealed: Sealed) -> None:
    with pytest.raises(ArtefactRefused, match="never promoted"):
        store.open(sealed.digest, ())


def test_a_file_that_was_swapped_on_disk_is_not_unpickled(store: ModelStore, sealed: Sealed, tmp_path: Path) -> None:
    trap = tmp_path / "ran"
    (store.folder / sealed.digest / MODEL).write_bytes(_bomb(trap))
    with pytest.raises(ArtefactRefused, match=r"model\.joblib has digest"):
        store.open(sealed.digest, {sealed.digest})
    assert not trap.exists()


class _Touch:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,))


def _bomb(path: Path) -> bytes:
    out = io.BytesIO()
    joblib.dump(_Touch(path), out)
    joblib.load(io.BytesIO(out.getvalue()))
    assert path.exists(), "else this bomb proves nothing"
    path.unlink()
    return out.getvalue()


def test_an_artefact_of_other_libraries_is_not_unpickled(store: ModelStore, sealed: Sealed, tmp_path: Path) -> None:
    trap = tmp_path / "ran"
    old = resealed(sealed, {MODEL: _bomb(trap)}, libraries={**sealed.manifest.libraries, "scikit-learn": "1.5.0"},
                   version="0")  # fmt: skip
    store.save(old)
    with pytest.raises(ArtefactRefused, match=r"scikit-learn 1\.5\.0"):
        store.open(old.digest, {old.digest})
    assert not trap.exists()


def test_a_pickle_of_another_scikit_learn_is_refused_even_if_the_manifest_lies(
    store: ModelStore, sealed: Sealed, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = joblib.load(io.BytesIO(sealed.files[MODEL]))
    out = io.BytesIO()
    with monkeypatch.context() as patched:
        patched.setattr("sklearn.base.__version__", "1.5.0")  # estimators are pickled with this version
        joblib.dump(parts, out)
    lying = resealed(sealed, {MODEL: out.getvalue()}, version="0")
    store.save(lying)
    with pytest.raises(ArtefactRefused, match=r"1\.5\.0"):
        store.open(lying.digest, {lying.digest})


def test_a_name_and_version_stand_for_one_artefact(store: ModelStore, sealed: Sealed) -> None:
    assert store.save(sealed).name == sealed.digest
    with pytest.raises(ArtefactRefused, match="give another --version"):
        store.save(resealed(sealed, {}, examples=7))
    with pytest.raises(ArtefactRefused, match=r"there is: attribution@1"):
        store.find("attribution@9")


def test_a_broken_artefact_is_listed_with_its_problem_and_leftovers_are_not(store: ModelStore, sealed: Sealed) -> None:
    (store.folder / sealed.digest / MANIFEST).write_bytes(b"{}")
    (store.folder / ".unfinished").mkdir()
    (store.folder / "notes").mkdir()
    (row,) = store.listed()
    assert row.manifest is None
    assert "restore the artefact" in row.problem


def test_links_in_an_artefact_are_not_followed(store: ModelStore, sealed: Sealed, tmp_path: Path) -> None:
    path = store.folder / sealed.digest / CARD
    path.rename(tmp_path / "card")
    path.symlink_to(tmp_path / "card")
    with pytest.raises(ArtefactRefused, match="no plain file"):
        store.read(sealed.digest)


def test_a_digest_is_no_way_out_of_the_store(store: ModelStore) -> None:
    for digest in ("../" * 3, "", "." * 64, "a/" * 32):
        with pytest.raises(ArtefactRefused, match="no artefact"):
            store.read(digest)


def promoted(manifest: Manifest, digest: str) -> dict[str, ModelPromoted]:
    event = ModelPromoted(
        at=AT, model=manifest.name, version=manifest.version, digest=digest, actor="me", reason="better"
    )
    return {event.model: event}


def test_a_promoted_model_that_can_not_be_opened_leaves_the_rules_alone_and_says_so(
    store: ModelStore, sealed: Sealed
) -> None:
    good = ModelHints.of(store, promoted(sealed.manifest, sealed.digest))
    assert (good.reference, good.reason) == ("attribution@1", "")
    (store.folder / sealed.digest / MODEL).unlink()
    bad = ModelHints.of(store, promoted(sealed.manifest, sealed.digest))
    assert bad.model is None
    assert "model.joblib is missing" in bad.reason
    assert bad.reason.endswith("rules alone")
