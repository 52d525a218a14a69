# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The Helm chart, linted and rendered by a real helm, and what it asks of a cluster."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.tools import CHART, helm, run, validator

TOKENS = ("--set", "auth.tokensSecret=tokens")
EVERYTHING = (
    *TOKENS, "--set", "metrics.serviceMonitor.enabled=true", "--set", "metrics.serviceMonitor.tokenSecret=scrape",
    "--set", "metrics.prometheusRule.enabled=true", "--set", "metrics.dashboard.enabled=true",
    "--set", "secrets={slack,pager.duty}", "--set", "persistence.storageClass=fast",
    "--set-json", 'networkPolicy.fromNamespaces=[{"kubernetes.io/metadata.name":"monitoring"}]',
    "--set", "nodeSelector.disk=ssd", "--set", "podAnnotations.a=b", "--set", "imagePullSecrets[0].name=pull",
)  # fmt: skip


def rendered(*words: str) -> dict[str, dict[str, Any]]:
    text = run(helm(), "template", "prod", str(CHART), *words).stdout
    found = [one for one in yaml.safe_load_all(text) if one]
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in found}


def test_the_chart_is_clean() -> None:
    run(helm(), "lint", "--strict", str(CHART), *EVERYTHING)


def test_by_default_it_asks_for_the_restricted_profile_and_for_nothing_else() -> None:
    found = rendered(*TOKENS)
    pod = found["Deployment/prod-relight"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert "initContainers" not in pod and "hostNetwork" not in pod
    kinds = {name.partition("/")[0] for name in found}
    assert kinds == {"Deployment", "Service", "ServiceAccount", "ConfigMap", "PersistentVolumeClaim", "NetworkPolicy",
                     "Pod"}  # fmt: skip


def test_one_process_owns_the_audit_log_and_its_volume_outlives_the_release() -> None:
    found = rendered(*TOKENS)
    spec = found["Deployment/prod-relight"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    claim = found["PersistentVolumeClaim/prod-relight"]
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_probes_ask_no_more_than_they_should() -> None:
    (container,) = rendered(*TOKENS)["Deployment/prod-relight"]["spec"]["template"]["spec"]["containers"]
    paths = {kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")}
    assert paths == {"startup": "/readyz", "liveness": "/livez", "readiness": "/readyz"}


def test_its_settings_are_those_that_the_service_knows(tmp_path: Path) -> None:
    from service.config import load_settings

    file = tmp_path / "config.toml"
    file.write_text(rendered(*TOKENS)["ConfigMap/prod-relight"]["data"]["config.toml"])
    assert load_settings(file).settings.recommend.mode == "monitor"


def test_a_change_of_the_settings_restarts_the_pod() -> None:
    def digest(*words: str) -> str:
        template = rendered(*TOKENS, *words)["Deployment/prod-relight"]["spec"]["template"]
        return str(template["metadata"]["annotations"]["checksum/config"])

    assert digest() != digest("--set", "config=[recommend]")


@pytest.mark.parametrize(
    "words",
    [(), (*TOKENS, "--set", "image.tag=latest"), (*TOKENS, "--set", "image.digest=abc"),
     (*TOKENS, "--set", "persistence.size=much"), (*TOKENS, "--set", "replicas=2"),
     (*TOKENS, "--set", "service.port=0"), (*TOKENS, "--set", "metrics.serviceMonitor.enabled=true"),
     (*TOKENS, "--set", "secrets={Bad_Name}")],
)  # fmt: skip
def test_values_that_cannot_work_are_refused_before_anything_is_installed(words: tuple[str, ...]) -> None:
    done = run(helm(), "template", "prod", str(CHART), *words, check=False)
    assert done.returncode != 0 and "values don't meet the specifications" in done.stderr


def test_a_digest_wins_over_a_tag() -> None:
    digest = "sha256:" + "0" * 64
    pod = rendered(*TOKENS, "--set", f"image.digest={digest}")["Deployment/prod-relight"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == f"relight@{digest}"


def test_every_manifest_is_one_that_kubernetes_takes(tmp_path: Path) -> None:
    own = [one for one in rendered(*EVERYTHING).values() if "monitoring.coreos.com" not in one["apiVersion"]]
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all(own))
    done = subprocess.run([*validator(), "--strict", str(file)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_and_dashboard_are_shipped_as_they_are_tested() -> None:
    found = rendered(*EVERYTHING)
    shipped = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    assert found["PrometheusRule/prod-relight"]["spec"] == shipped
    dashboard = found["ConfigMap/prod-relight-dashboard"]["data"]["relight.json"]
    assert dashboard == (CHART / "files" / "dashboard.json").read_text()
