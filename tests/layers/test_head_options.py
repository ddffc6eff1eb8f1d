import pytest

from rt_keras.layers import LocalRoutingHeads
from rt_keras.layers.head_options import positive_int, positive_int_or_none


@pytest.mark.parametrize("value", [0, -1, 1.5, 2.0, "3", None, True])
def test_positive_int(value):
    assert positive_int("size", 3) == 3
    with pytest.raises(
        ValueError, match=f"size must be a positive integer. Received: size={value!r}"
    ):
        positive_int("size", value)


def test_positive_int_or_none():
    assert positive_int_or_none("size", None) is None
    assert positive_int_or_none("size", 3) == 3
    with pytest.raises(ValueError, match="size must be a positive integer. Received: size=0"):
        positive_int_or_none("size", 0)


def test_errors_of_options_name_the_kind():
    with pytest.raises(ValueError, match="LocalRoutingHeads.*attention_activation"):
        LocalRoutingHeads(2, 3, 3, 4, attention_activation="entmax15")
