import re

import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import LocalHeads, LSHHeads, RoutingHeads
from rt_keras.layers.head_group import copy_groups
from tests.layers import checks

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")


def test_copy_groups():
    x = checks.random(1, 2, 9, 6, dtype="float64")
    groups = [LocalHeads(2, 4, look_back=2), RoutingHeads(2, 3, 4, num_probes=2)]
    for group in groups:
        group(x, x, x)
    copies = copy_groups(groups, "float64")
    for group, copy in zip(groups, copies):
        assert copy is not group and not copy.built
        assert copy(x, x, x).dtype == "float64"
        assert copy.kind == group.kind and copy.get_config()["name"] == group.get_config()["name"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: RoutingHeads(2, 3, 4, share_qk=True),
        lambda: RoutingHeads(2, 3, 4, assignment="balanced", share_qk=True),
        lambda: LSHHeads(2, 4, 3),
    ],
)
def test_queries_that_are_also_keys_need_as_many_values(make):
    group = make()
    name = group.kind
    query, value = checks.random(2, 2, 9, 4), checks.random(2, 2, 6, 4)
    message = f"{re.escape(name)} with share_qk=True need as many values as queries"
    with pytest.raises(ValueError, match=f"{message}.* length 9, value of length 6"):
        group(query, value)
    unknown = tf.TensorSpec([None, 2, None, 4])
    attend = tf.function(group, input_signature=[unknown] * 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="share_qk=True need as many values"):
        attend(query, value)
    np.testing.assert_allclose(attend(query, query), group(query, query), atol=1e-6)
