# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""For the command line: files in, verdicts out, nothing remembered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from detectors.log_text import LogText
from relight.ports import Clock
from relight.types import Stream
from service.adapters import log_files
from service.adapters.diagnosis_kit import build_diagnostician
from service.adapters.log_files import Case
from service.bootstrap.kit import clock
from service.config import cache_folder
from service.diagnosis import Diagnosis, Diagnostician

if TYPE_CHECKING:
    from models.attribution_model import Example
    from service.model_hints import ModelHints


@dataclass(frozen=True, slots=True)
class DiagnosisTools:
    """What `relight diagnose` needs: files in, verdicts out, nothing remembered."""

    diagnostician: Diagnostician
    clock: Clock

    def read_files(self, paths: Sequence[str], streams: Mapping[str, Stream], nodes: Mapping[str, str]) -> Case:
        return log_files.read_files(paths, streams, nodes)

    def read_folder(self, folder: Path) -> Case:
        return log_files.read_folder(folder)

    def case_folders(self, root: Path) -> Iterator[Path]:
        return log_files.case_folders(root)

    def judge(self, case: Case) -> Diagnosis:
        return self.diagnostician.judge(case.logs, at=self.clock.now())


def diagnosis_tools(
    folders: Iterable[Path] = (), policy: Path | None = None, hints: ModelHints | None = None
) -> DiagnosisTools:
    """Errors: RulesInvalid with every problem of packs or policy; OSError if a file or folder is missing."""
    the_clock = clock()
    judge = build_diagnostician(folders, policy, cache_folder(), the_clock.now())
    return DiagnosisTools(replace(judge, hints=hints), the_clock)


def labelled_examples(root: Path | None = None, rules: Iterable[Path] = ()) -> list[Example]:
    """What the attribution model is taught with: labelled cases, the shipped ones by default, and signatures' lines.

    Errors: LogUnreadable for cases that can't be read; RulesInvalid as in `diagnosis_tools`.
    """
    from service.adapters.labelled_cases import SHIPPED, labelled_cases
    from service.model_lessons import examples_from

    return examples_from(labelled_cases(root or SHIPPED), build_diagnostician(rules, None, cache_folder()))


def demo_cases(names: Iterable[str]) -> dict[str, tuple[LogText, ...]]:
    """Cases of the shipped data set, by name. Errors: FileNotFoundError outside a source tree."""
    root = Path(__file__).parents[2] / "datasets" / "failures"
    if not root.is_dir():
        raise FileNotFoundError(f"{root} does not exist")
    return {name: log_files.read_folder(root / name).logs for name in names}
