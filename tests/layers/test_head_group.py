import re

import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import LSHHeads, RoutingHeads
from tests.layers import checks

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")


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
