"""The rules of crds/trainingjobs.yaml, read as a file. tests/integration/test_crd.py asks an API server."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

Schema = dict[str, Any]

CRD_FILE = Path(__file__).resolve().parents[3] / "crds" / "trainingjobs.yaml"
JOB_SPEC = "spec.replicatedJobs[].template.spec"
POD_SPEC = f"{JOB_SPEC}.template.spec"
CLAIM = "spec.volumeClaimPolicies[].templates[]"
FEWEST_WORDS = 8  # of a message that names a field and the fix
#: The reserved words of CEL, as k8s.io/apiserver/pkg/cel/escaping.go lists them.
RESERVED = (
    "true|false|null|in|as|break|const|continue|else|for|function|if|import|let|loop|package|namespace|return|var|void"
    "|while"
)

# Fields of a Pod that are a number or a string, at any depth.
NUMBER_OR_STRING = {
    "containers[].resources.limits{}",
    "containers[].resources.requests{}",
    "containers[].livenessProbe.httpGet.port",
    "containers[].livenessProbe.tcpSocket.port",
    "containers[].env[].valueFrom.resourceFieldRef.divisor",
    "initContainers[].resources.limits{}",
    "overhead{}",
    "resources.limits{}",
    "volumes[].emptyDir.sizeLimit",
    "volumes[].ephemeral.volumeClaimTemplate.spec.resources.requests{}",
}


# Fields of the first draft of this version, each with the field that replaced it.
RENAMED = {
    "spec.checkpoint.nologinPath": "faults.nodeFile",
    "spec.checkpoint.onSigterm": "termination.onSigterm",
    "spec.checkpoint.replicaGroups": "termination.replicaGroups",
    "spec.elastic.minReplicas": "elastic.minPods",
    "spec.faults.proactive": "faults.proactiveReplacement",
    "spec.launcher.zygote": "launcher.forkServer",
    "spec.recovery.backoff.max": "recovery.backoff.maxDelay",
    "spec.recovery.fenceTimeout": "recovery.coordinatorLossTimeout",
    "spec.recovery.workerGrace": "recovery.workerGracePeriod",
    "spec.rollouts.gateway.inFlight": "rollouts.gateway.inFlightRequests",
}


@pytest.fixture(scope="module")
def crd() -> Schema:
    manifest: Schema = yaml.safe_load(CRD_FILE.read_text(encoding="utf-8"))
    return manifest


@pytest.fixture(scope="module")
def version(crd: Schema) -> Schema:
    (only,) = crd["spec"]["versions"]
    found: Schema = only
    return found


@pytest.fixture(scope="module")
def fields(version: Schema) -> dict[str, Schema]:
    """Every schema by its path, such as spec.replicatedJobs[].name; the root's is ""."""
    return dict(walk("", version["schema"]["openAPIV3Schema"]))


def walk(path: str, schema: Schema) -> Iterator[tuple[str, Schema]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from walk(f"{path}.{name}".lstrip("."), child)
    if "items" in schema:
        yield from walk(f"{path}[]", schema["items"])
    if isinstance(schema.get("additionalProperties"), dict):
        yield from walk(f"{path}{{}}", schema["additionalProperties"])


def is_own_field(path: str) -> bool:
    return not path.startswith((f"{JOB_SPEC}.", f"{CLAIM}.", "metadata"))


def test_the_file_fits_client_side_apply(crd: Schema) -> None:
    # given the CRD, which client-side apply copies as JSON into an annotation of at most 256 KiB
    copied = json.dumps(crd, separators=(",", ":"), ensure_ascii=False).encode()
    # then it is well below that
    assert len(copied) < 200_000


def test_it_is_a_namespaced_trainingjob(crd: Schema, version: Schema) -> None:
    assert crd["metadata"]["name"] == "trainingjobs.understudy.dev"
    assert crd["spec"]["group"] == "understudy.dev"
    assert crd["spec"]["scope"] == "Namespaced"
    assert crd["spec"]["names"] == {
        "kind": "TrainingJob",
        "listKind": "TrainingJobList",
        "plural": "trainingjobs",
        "singular": "trainingjob",
        "shortNames": ["tj"],
        "categories": ["all"],
    }
    assert (version["name"], version["served"], version["storage"]) == ("v1alpha1", True, True)


def test_status_is_a_subresource(version: Schema) -> None:
    assert version["subresources"] == {"status": {}}


def test_kubectl_get_shows_the_state_of_the_job(version: Schema, fields: dict[str, Schema]) -> None:
    # given the columns of kubectl get
    columns = version["additionalPrinterColumns"]

    # then a narrow terminal shows the most important ones, a wide one shows more, and each column's field exists
    narrow = [column["name"] for column in columns if not column.get("priority")]
    wide = [column["name"] for column in columns if column.get("priority")]
    assert narrow == ["Phase", "Ready", "Spares", "Recoveries", "Last Fault", "Step", "Age"]
    assert wide == [
        "FaultTolerant",
        "Suspended",
        "Active",
        "Round",
        "Restarts",
        "InPlace",
        "Swaps",
        "ETTR",
        "Coordinator",
        "Promoted",
    ]
    assert next(x["jsonPath"] for x in columns if x["name"] == "FaultTolerant") == (
        '.status.conditions[?(@.type=="FaultTolerant")].status'
    )
    for column in (column for column in columns if column["name"] != "FaultTolerant"):
        assert column["jsonPath"] == ".metadata.creationTimestamp" or column["jsonPath"].lstrip(".") in fields


def test_every_field_of_ours_has_a_description(fields: dict[str, Schema]) -> None:
    # given every field above the Job's spec, the entries of lists and maps aside
    own = {path: schema for path, schema in fields.items() if is_own_field(path) and not path.endswith("{}")}
    scalars = {path for path in own if path.endswith("[]") and "properties" not in own[path]}

    # then kubectl explain has a description of it
    assert [path for path in own if path not in scalars and len(own[path].get("description", "").split()) < 2] == []


def test_a_description_is_written_in_paragraphs(fields: dict[str, Schema]) -> None:
    # given our descriptions, then kubectl explain breaks their lines, and they contain no line breaks
    for path, schema in fields.items():
        assert "\n" not in schema.get("description", "").replace("\n\n", ""), path


def test_kubernetes_own_fields_have_no_descriptions(fields: dict[str, Schema]) -> None:
    # given the Job's fields, then only kubectl explain job.spec describes them: the file stays small
    foreign = [path for path in fields if path.startswith((f"{JOB_SPEC}.", f"{CLAIM}."))]
    assert len(foreign) > 1000
    assert [path for path in foreign if "description" in fields[path]] == []


@pytest.mark.parametrize(
    ("field", "default"),
    [("parallelism", 1), ("completionMode", "Indexed"), ("template.spec.restartPolicy", "OnFailure")],
)
def test_a_job_has_the_defaults_of_jobset(fields: dict[str, Schema], field: str, default: object) -> None:
    assert fields[f"{JOB_SPEC}.{field}"]["default"] == default


def test_every_rule_has_a_message_that_names_a_field_and_the_fix(fields: dict[str, Schema]) -> None:
    # given every CEL rule
    rules = [rule for schema in fields.values() for rule in schema.get("x-kubernetes-validations", [])]

    # then each states the problem and the fix
    assert len(rules) >= 15
    assert [rule["rule"] for rule in rules if len(rule.get("message", "").split()) < FEWEST_WORDS] == []


def reserved_words(rule: str) -> list[str]:
    """The fields that a rule selects by a reserved word."""
    return re.findall(rf"\.({RESERVED})\b", re.sub(r"'[^']*'", "''", rule))


def test_a_reserved_word_is_found_in_a_rule_unless_it_is_escaped() -> None:
    assert reserved_words("size(t.metadata.namespace) == 0") == ["namespace"]
    assert reserved_words("size(t.metadata.__namespace__) == 0 && self.format == 'a.namespace'") == []


@pytest.mark.parametrize("plural", ["trainingjobs", "hotsparepools", "injectedjobs"])
def test_rules_escape_the_fields_whose_names_are_reserved_words(plural: str) -> None:
    # given an API server as old as 1.30, which knows the field namespace as __namespace__ only and else refuses the CRD
    crd = yaml.safe_load(CRD_FILE.with_stem(plural).read_text(encoding="utf-8"))
    (version,) = crd["spec"]["versions"]
    schemas = dict(walk("", version["schema"]["openAPIV3Schema"]))
    rules = [rule["rule"] for schema in schemas.values() for rule in schema.get("x-kubernetes-validations", ())]
    assert rules
    # then no rule selects such a field by its name
    assert {rule: words for rule in rules if (words := reserved_words(rule))} == {}


@pytest.mark.parametrize("previous", RENAMED)
def test_a_previous_field_is_rejected_with_the_name_of_the_new_one(fields: dict[str, Schema], previous: str) -> None:
    # given a field that was renamed: the API server prunes unknown fields before a webhook sees the object
    new = RENAMED[previous]

    # then the schema has the former field, with a rule that always fails and names the new field, which exists
    (rule,) = fields[previous]["x-kubernetes-validations"]
    assert rule["rule"] == "false"
    assert f"is now named {new}: " in rule["message"]
    assert f"spec.{new}" in fields


def test_an_unknown_field_is_kept_below_the_pods_spec_and_nowhere_else(fields: dict[str, Schema]) -> None:
    # given every object with named fields
    objects = {path: schema for path, schema in fields.items() if "properties" in schema}

    # then those from the pod's spec on keep unknown fields, and ours reject them
    keeps = {path for path, schema in fields.items() if schema.get("x-kubernetes-preserve-unknown-fields")}
    assert keeps == {path for path in objects if f"{path}.".startswith(f"{POD_SPEC}.")}


def test_a_quantity_or_port_of_a_pod_may_be_a_number_or_a_string(fields: dict[str, Schema]) -> None:
    for path in NUMBER_OR_STRING:
        assert fields[f"{POD_SPEC}.{path}"].get("x-kubernetes-int-or-string"), path


def test_a_ports_protocol_has_the_default_that_its_list_is_keyed_by(fields: dict[str, Schema]) -> None:
    for containers in ("containers", "initContainers", "ephemeralContainers"):
        ports = fields[f"{POD_SPEC}.{containers}[].ports"]
        assert ports["x-kubernetes-list-map-keys"] == ["containerPort", "protocol"]
        assert ports["items"]["properties"]["protocol"]["default"] == "TCP"


def test_replicatedjobsstatus_and_restarts_are_as_readers_of_jobsets_expect(fields: dict[str, Schema]) -> None:
    numbers = ["restarts", "restartsCountTowardsMax"]
    numbers += [f"replicatedJobsStatus[].{name}" for name in ("ready", "succeeded", "failed", "active", "suspended")]
    for path in numbers:
        assert (fields[f"status.{path}"]["type"], fields[f"status.{path}"]["format"]) == ("integer", "int32")
    assert fields["status.terminalState"]["type"] == "string"
    assert fields["status.conditions"]["x-kubernetes-list-map-keys"] == ["type"]
