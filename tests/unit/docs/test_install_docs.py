"""The chart's schema and docs/reference/values.md agree with values.yaml; install.md uses existing names."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.chart_values import (
    CHART,
    PAGE,
    RENAMED,
    ROOT,
    Value,
    ValuesError,
    main,
    pod_spec,
    read_values,
    schema_of,
    tables,
)
from tests.cluster.binaries import kubernetes_version
from tests.cluster.other_kubernetes import versions

INSTALL = ROOT / "docs/how-to/install.md"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
FENCE = re.compile(r"^ *```sh\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


def schema_for(text: str) -> dict[str, Any]:
    properties: dict[str, Any] = schema_of(read_values(text), pod_spec(), {})["properties"]
    return properties


@pytest.fixture
def copy(tmp_path: Path) -> tuple[Path, Path]:
    """The chart's two files and the page, for a test to change."""
    for file in (CHART / "values.yaml", CHART / "values.schema.json", PAGE):
        shutil.copy(file, tmp_path)
    return tmp_path, tmp_path / PAGE.name


def test_the_schema_and_the_tables_are_up_to_date() -> None:
    assert main(["--check"]) == 0, "run `make chart` and commit what it writes"


def test_stale_files_are_named_and_written(copy: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    # given a default that has changed
    chart, page = copy
    text = (chart / "values.yaml").read_text()
    (chart / "values.yaml").write_text(text.replace("timeoutSeconds: 5", "timeoutSeconds: 7\n  # Patience.\n  more: 1"))
    # then both are stale
    assert main(["--check"], chart, page) == 1
    err = capsys.readouterr().err
    assert "values differs from values.yaml: run `make chart`" in err
    assert "values.schema.json differs from values.yaml: run `make chart`" in err
    # and are not any more once they are written
    assert main([], chart, page) == 0
    assert main(["--check"], chart, page) == 0
    assert "| `webhook.timeoutSeconds` | `7` |" in page.read_text()
    assert "| `webhook.more` | `1` | Patience. |" in page.read_text()


def test_the_schema_has_exactly_the_values_of_the_chart() -> None:
    def agree(inside: tuple[Value, ...], result: dict[str, Any]) -> None:
        assert result["additionalProperties"] is False
        assert {name for name, x in result["properties"].items() if "const" not in x} == {x.path[-1] for x in inside}
        for value in inside:
            if value.inside:
                section = result["properties"][value.path[-1]]
                agree(value.inside, section.get("else", section))

    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    del schema["properties"]["global"]  # helm passes this to a chart that is part of another one
    agree(read_values((CHART / "values.yaml").read_text(encoding="utf-8")), schema)


@pytest.mark.parametrize("previous", RENAMED)
def test_a_former_value_is_rejected_with_the_name_of_the_new_one(previous: str) -> None:
    # given a value that was renamed; then helm's message contains the new path
    *above, name = previous.split(".")
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    for part in above:
        schema = schema["properties"][part.removesuffix("[]")]
        schema = schema["items"] if part.endswith("[]") else schema
    former = schema["properties"][name]
    assert former.get("then", former) == {"const": f"now named {RENAMED[previous]}"}
    assert former.get("if", {"type": "boolean"}) == {"type": "boolean"}


def test_a_value_without_a_comment_or_with_an_incomplete_one_is_refused_with_the_fix() -> None:
    with pytest.raises(ValuesError, match=r"line 3: a\.b has no comment: describe it above"):
        read_values("# A section.\na:\n  b: 1\n")
    with pytest.raises(ValuesError, match=r"line 2: a is empty: describe its content above it"):
        read_values("# A list.\na: []\n")


def test_unknown_fields_are_rejected_in_a_section_and_in_a_field_of_kubernetes() -> None:
    result = schema_for(
        "# A section.\na:\n  # Taints.\n  # @schema {pod: tolerations}\n  b: []\n"
        "  # Room.\n  # @schema {container: resources}\n  c: {}\n"
    )
    assert result["a"]["additionalProperties"] is False
    toleration = result["a"]["properties"]["b"]["items"]
    assert toleration["additionalProperties"] is False
    assert toleration["properties"]["tolerationSeconds"] == {"type": "integer"}
    # a quantity may be written as a number
    assert result["a"]["properties"]["c"]["properties"]["limits"]["additionalProperties"]["type"] == [
        "number",
        "string",
    ]


def test_a_table_reports_the_default_the_comment_and_the_choices_and_leaves_examples_out() -> None:
    text = (
        "# A section.\na:\n  # How | loud,\n  # such as\n  #   an example\n  # @schema {enum: [High, Low]}\n  b: Low\n"
    )
    assert tables(read_values(text)).splitlines()[-1] == r"| `a.b` | `Low` | How \| loud, such as `High` or `Low`. |"


def commands() -> list[list[str]]:
    blocks = FENCE.findall(INSTALL.read_text(encoding="utf-8"))
    return [shlex.split(line) for block in blocks for line in block.splitlines() if line.strip()]


def test_the_commands_of_the_page_set_existing_values() -> None:
    result = [word for words in commands() for flag, word in itertools.pairwise(words) if flag == "--set"]
    assert result
    for setting in ",".join(result).split(","):
        value: Any = VALUES
        for name in setting.partition("=")[0].split("."):
            assert name in value, f"docs/how-to/install.md sets {setting}, and values.yaml has no {name} there"
            value = value[name]


def test_the_commands_of_the_page_are_helms_and_kubectls() -> None:
    assert {words[0] for words in commands()} == {"helm", "kubectl"}


def test_chart_and_pages_state_the_versions_of_kubernetes_that_tests_run() -> None:
    # given the versions whose programs tests run: their Go modules are in tests/cluster
    local_cluster = kubernetes_version().rpartition(".")[0]
    assert [*versions(), local_cluster] == ["1.30", "1.33", "1.36"]
    # then the chart refuses older ones, and the pages state the same range
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["kubeVersion"] == ">=1.30.0-0"
    page, readme = (" ".join(file.read_text(encoding="utf-8").split()) for file in (INSTALL, ROOT / "README.md"))
    assert "All tests have run on 1.36, and the integration tests also on 1.30 and 1.33." in page
    assert "On an existing cluster (Kubernetes 1.30 or newer)" in readme
    assert re.findall(r"Kubernetes 1\.(?!30)\d+", page + readme) == []
