import pytest
import tensorflow as tf

from rt_keras.serving import checks

InvalidArgument = tf.errors.InvalidArgumentError


@pytest.mark.parametrize(
    "condition, good, bad",
    [
        (checks.above_zero, [1, 7], [0, -1]),
        (checks.temperature, [1e-3, 2.0], [0.0, 1e-37, -1.0, float("nan"), float("inf")]),
        (checks.share, [1e-3, 1.0], [0.0, 1.001, float("nan")]),
        (checks.at_least_zero, [0, 7], [-1]),
        (checks.valid_utf8, ["", "é", "\ufeffa\0"], [b"\xff", b"caf\xc3", b"\xed\xa0\x80"]),
    ],
)
def test_conditions(condition, good, bad):
    for value in good:
        assert checks.checked("x", tf.constant([value]), 1, [condition]).shape == [1]
    for value in bad:
        with pytest.raises(InvalidArgument, match="x: it must"):
            checks.checked("x", tf.constant([good[0], value]), 1, [condition])
    # A string that cannot be shown is named by its place.
    with pytest.raises(InvalidArgument, match=r"(?s)texts: .* is not at.*1"):
        checks.checked("texts", tf.constant(["a", b"\xff"]), 1, [checks.valid_utf8])


def test_a_parameter_is_for_all_rows_or_for_each():
    assert checks.one_a_row("k", tf.constant(3), 2, checks.above_zero).numpy().tolist() == [3, 3]
    for each in ([3, 4], [4, 3]):
        given = tf.constant(each)
        assert checks.one_a_row("k", given, 2, checks.above_zero).numpy().tolist() == each
    for shape in ([1], [3], [1, 2], [2, 1], [1, 1]):
        with pytest.raises(InvalidArgument, match="k: it must be a scalar or one for each"):
            checks.one_a_row("k", tf.ones(shape), 2, checks.above_zero)


def test_the_limit_itself_is_allowed():
    assert checks.not_longer("x", tf.constant([3, 4]), 4).numpy().tolist() == [3, 4]
    with pytest.raises(InvalidArgument, match=r"(?s)x: it must have at most 4 tokens, but has.*5"):
        checks.not_longer("x", tf.constant([3, 5]), 4)
