import dataclasses

import pytest

from rt_keras import arguments
from rt_keras.training.config_fields import field, read_section, section


@dataclasses.dataclass
class Inner:
    count: int = field(2, "how many", arguments.AT_LEAST_1)
    share: float = field(0.5, "how much", arguments.SHARE_BELOW_1, ("reader",))


@dataclasses.dataclass
class Outer:
    name: str | None = field(None, "which", arguments.one_of("first", "second"))
    text: str = field("", "any text")
    large: bool = field(False, "whether it is large")
    rate: float = field(1.0, "how fast", arguments.POSITIVE)
    sizes: list = field([1], "sizes")
    inner: Inner = section(Inner, ("ctc",))


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


@pytest.mark.parametrize(
    "values, message",
    [
        ({"name": "third"}, r"x.name is 'third' \(str\); it must be one of first, second, or null"),
        ({"text": None}, r"x.text is None \(NoneType\); it must be text$"),
        ({"large": 1}, r"x.large is 1 \(int\); it must be true or false"),
        ({"rate": True}, r"x.rate is True \(bool\); it must be a number above 0"),
        ({"inner": {"count": 2.5}}, r"x.inner.count is 2.5 \(float\); it must be an integer of at"),
        ({"inner": None}, "x.inner is a section; set its keys: x.inner.count, x.inner.share"),
        ({"inner": {"cuont": 3}}, "unknown key x.inner.cuont; the nearest known key is x.inner.co"),
        ({"count": 3}, "unknown key x.count; the nearest known key is x.inner.count"),
        ({"inner": {"count": {"more": 1}}}, r"x.inner.count is \{'more': 1\} \(dict\)"),
        ({5: 5}, "unknown key x.5"),
    ],
)
def test_what_is_wrong_is_named(values, message):
    with pytest.raises(ValueError, match=message):
        read_section(Outer, values, "x.")
