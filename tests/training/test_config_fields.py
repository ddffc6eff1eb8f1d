from rt_keras import arguments


def test_limits_are_in_or_out_of_the_range_as_it_says():
    inf, nan = float("inf"), float("nan")
    for allowed, values, others in (
        (arguments.AT_LEAST_0, [0], [-1]),
        (arguments.AT_LEAST_1, [1], [0]),
        (arguments.POSITIVE, [1e-9], [0, inf, nan]),
        (arguments.NOT_NEGATIVE, [0], [-1e-9, inf, nan]),
        (arguments.SHARE, [0, 1], [-1e-9, 1.1]),
        (arguments.SHARE_BELOW_1, [0, 0.9], [-1e-9, 1]),
    ):
        assert all(map(allowed.holds, values)), allowed.text
        assert not any(map(allowed.holds, others)), allowed.text
