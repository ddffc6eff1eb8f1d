import pytest

from rt_keras.layers import LocalRoutingHeads
from rt_keras.layers.head_options import positive_int


@pytest.mark.parametrize("value", [0, 2.0, "3", True])
def test_positive_int(value):
    assert positive_int("size", 3) == 3
    with pytest.raises(
        ValueError, match=f"size must be a positive integer. Received: size={value!r}"
    ):
        positive_int("size", value)


def test_errors_of_options_name_the_kind():
    with pytest.raises(ValueError, match="LocalRoutingHeads.*sliding_window"):
        LocalRoutingHeads(2, 3, 3, 4, sliding_window=2)
