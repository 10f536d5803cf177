"""The parts of JobSet and of the MPI operator that a program sees, and whether manifests fit."""

import re
import sys
from pathlib import Path
from typing import Any

from hosts import SOFTWARE

Json = dict[str, Any]


def _load(path: Path) -> Json:
    sys.path.append(str(SOFTWARE / "python"))
    import yaml

    document: Json = yaml.safe_load(path.read_text())
    return document


def container_of(path: Path) -> Json:
    """The one container of a JobSet's one job."""
    job = _load(path)["spec"]["replicatedJobs"][0]["template"]
    container: Json = job["spec"]["template"]["spec"]["containers"][0]
    return container


def expanded(container: Json, index: int, head: str) -> list[str]:
    """The command as the kubelet starts it in Pod `index`, whose head has this address: $(NAME) is
    the container's variable.
    """
    variables = {one["name"]: one.get("value", "") for one in container["env"]}
    variables |= {"MASTER_ADDR": head, "NODE": str(index)}
    return [
        re.sub(r"\$\((\w+)\)", lambda match: variables[match[1]], word)
        for word in container["command"]
    ]


def check_manifests(folder: Path) -> int:
    """The Jobs and Pods inside, against Kubernetes' own schemas; custom resources have none."""
    jobset, mpijob = _load(folder / "jobset.yaml"), _load(folder / "mpijob.yaml")
    import kubernetes_validate

    job = jobset["spec"]["replicatedJobs"][0]["template"]
    documents: list[Json] = [
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "node"}, "spec": job["spec"]}
    ]
    for name, replica in mpijob["spec"]["mpiReplicaSpecs"].items():
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name.lower()}}
        documents.append(pod | {"spec": replica["template"]["spec"]})
    for document in documents:
        kubernetes_validate.validate(document, "1.32", strict=True)
    return len(documents)
