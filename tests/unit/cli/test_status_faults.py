"""What `why` says about faults that only a cluster has, from the status of their pods."""

from tests.unit.cli import status_faults


def test_the_container_of_a_pod_that_ran_out_of_memory_is_named() -> None:
    (fault,) = status_faults.out_of_memory().faults
    assert fault.place == "rank 0, pod a0, node node-a0"
    assert fault.symptom == "container trainer ran out of memory (limit 64Gi); its connection ended"


def test_an_eviction_is_named_with_its_reason() -> None:
    (fault,) = status_faults.evicted().faults
    assert fault.place == "rank 0, pod a0, node node-a0"
    assert fault.symptom.startswith("it was disrupted: TerminationByKubelet: The node was low on resource")


def test_a_spare_with_a_wrong_image_is_named_with_the_image() -> None:
    shown = status_faults.wrong_image()
    assert shown.problems == (
        "SparesReady (TooFewSpares): 0 of 1; pod s0: container trainer: ImagePullBackOff: Back-off pulling image "
        '"registry/train:41"',
    )
