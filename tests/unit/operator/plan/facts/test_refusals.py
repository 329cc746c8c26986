"""The meaning of the API server's rejections for the job, in the API server's own words."""

import pytest

from understudy_operator.plan.facts.refusals import RefusalKind, read_refusal

CASES = [
    (422, 'Pod "x" is invalid: spec.containers[0].image: Required value', RefusalKind.MANIFEST),
    (400, 'strict decoding error: unknown field "spec.containers[0].imagePullPolcy"', RefusalKind.MANIFEST),
    (413, "Request entity too large: limit is 3145728", RefusalKind.MANIFEST),
    (403, 'pods "x" is forbidden: exceeded quota: q, requested: pods=1, used: pods=3, limited: pods=3',
     RefusalKind.QUOTA),
    (403, 'pods "x" is forbidden: unable to create new content in namespace a because it is being terminated',
     RefusalKind.NAMESPACE),
    (403, 'pods "x" is forbidden: violates PodSecurity "restricted:latest": allowPrivilegeEscalation',
     RefusalKind.FORBIDDEN),
    (400, 'admission webhook "v.example.com" denied the request: no', RefusalKind.ADMISSION),
    (422, "pods \"x\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request",
     RefusalKind.ADMISSION),
    (500, 'Internal error occurred: failed calling webhook "v.example.com": failed to call webhook: Post "https://v": '
     "context deadline exceeded", RefusalKind.WEBHOOK),
    (500, "etcdserver: request timed out", RefusalKind.SERVER),
    (504, "request did not complete within the allotted timeout", RefusalKind.SERVER),
]  # fmt: skip


@pytest.mark.parametrize(("status", "message", "reason"), CASES)
def test_rejections_have_a_kind_and_a_message(status: int, message: str, reason: RefusalKind):
    refusal = read_refusal(status, message)
    assert refusal is not None
    assert (refusal.kind, refusal.message, refusal.is_lasting) == (reason, message, reason is RefusalKind.MANIFEST)


@pytest.mark.parametrize(("status", "message"), [(409, "the object has been modified"), (404, "not found")])
def test_other_errors_are_no_refusals(status: int, message: str):
    assert read_refusal(status, message) is None


@pytest.mark.attack(
    "A1",
    "gives a pod template a variable whose name has 1 MB, which the API server quotes as it refuses the pod",
    before="the operator kept the words whole, and comparing them stopped it for minutes",
)
def test_the_message_of_a_refusal_is_truncated():
    message = f'Pod "x" is invalid: spec.containers[0].env[0].name: Invalid value: "{"a" * 1_000_000}"'
    refusal = read_refusal(422, message)
    assert refusal is not None
    assert refusal.message == message[:1999] + "…"
