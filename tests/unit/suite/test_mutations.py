"""The code that a mutation changes exists. The simulations use the mutations, and `make check` runs no simulation."""

from functools import partial
from unittest import mock

import pytest

from tests.simulation import mutations as data_plane
from tests.simulation_operator import mutations as operator

CHANGES = [
    *(pytest.param(x.open, id=x.name) for x in data_plane.MUTATIONS),
    *(pytest.param(x.open, id=x.name) for x in data_plane.SCHEDULED),
    *(pytest.param(partial(mock.patch.object, x.where, x.name), id=x.description) for x in operator.MUTATIONS),
]


@pytest.mark.parametrize("change", CHANGES)
def test_the_code_that_a_mutation_changes_exists(change: data_plane.Open) -> None:
    with change():
        pass
