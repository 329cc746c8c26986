"""The chart's settings for jobs' networks, from the environment: UNDERSTUDY_NETWORK_POLICIES, ingress rules as JSON
(networkPolicies.jobs.enabled). If unset, jobs get no NetworkPolicy.
"""

import json
from collections.abc import Mapping

from understudy_operator.plan.manifests.network_policy import Rules

ENV_RULES = "UNDERSTUDY_NETWORK_POLICIES"


def read_network_rules(env: Mapping[str, str]) -> Rules | None:
    """Raises ValueError with the cause."""
    text = env.get(ENV_RULES, "")
    if not text:
        return None
    fix = "set it to a JSON list of ingress rules of a NetworkPolicy, or unset it"
    try:
        rules = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{ENV_RULES} is not JSON: {error}; {fix}") from error
    # A rule without peers would allow all peers.
    if not isinstance(rules, list) or not all(isinstance(rule, dict) and rule.get("from") for rule in rules):
        raise ValueError(f"{ENV_RULES} is {text}; {fix}; each rule has to name its peers (from)")
    return tuple(rules)
