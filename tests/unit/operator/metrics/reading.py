"""A scrape, read by the client library's own parser."""

from prometheus_client.parser import text_string_to_metric_families


def scraped(text: bytes) -> dict[tuple[str, ...], float]:
    """Each sample by its name and the values of its labels, in the order of the labels' names."""
    samples = [sample for family in text_string_to_metric_families(text.decode()) for sample in family.samples]
    return {(x.name, *(x.labels[label] for label in sorted(x.labels))): x.value for x in samples}
