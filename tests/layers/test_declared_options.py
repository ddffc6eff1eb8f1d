import pytest

from rt_keras.layers import LocalHeads, LocalRoutingHeads, RoutingHeads
from rt_keras.layers.declared_options import options_of_kind, sets_of_kind
from rt_keras.layers.key_sets import Cluster, Window


def test_the_first_set_that_has_an_option_owns_it():
    owners = {name: option.owner for name, option in options_of_kind(LocalRoutingHeads).items()}
    assert owners["max_relative_distance"] is Window
    assert owners["window_size"] is Cluster


@pytest.mark.parametrize("kind", [LocalHeads, RoutingHeads])
def test_fixed_values_are_not_options(kind):
    options = options_of_kind(kind)
    assert not options.keys() & kind.fixed.keys()
    assert ("share_qk" in options) == kind.can_share_qk


def test_each_set_gets_its_options():
    options = {name: x.field.default for name, x in options_of_kind(LocalRoutingHeads).items()}
    options |= {**LocalRoutingHeads.fixed, "block_size": 8, "num_clusters": 3, "window_size": 4}
    window, cluster = sets_of_kind(LocalRoutingHeads, {**options, "max_relative_distance": 5})
    assert (window.block_size, window.max_relative_distance) == (8, 5)
    assert (cluster.num_clusters, cluster.max_relative_distance) == (3, None)
