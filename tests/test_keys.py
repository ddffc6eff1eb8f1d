import dataclasses

import pytest

from rt_keras import keys
from rt_keras.keys import check_values, key, keys_of, read_section


@dataclasses.dataclass
class Inner:
    count: int = key(2, "how many", keys.AT_LEAST_1)
    share: float = key(0.5, "how much", keys.SHARE_BELOW_1)


@dataclasses.dataclass
class Outer:
    name: str | None = key(None, "which", keys.one_of("first", "second"))
    text: str = key("", "any text")
    large: bool = key(False, "whether it is large")
    rate: float = key(1.0, "how fast", keys.POSITIVE)
    inner: Inner = keys.section(Inner)


def test_every_key_is_listed_with_its_declaration():
    found = keys_of(Outer, "outer.")
    assert [(key.name, key.values, key.default) for key in found.values()] == [
        ("outer.name", "one of first, second, or null", None),
        ("outer.text", "text", ""),
        ("outer.large", "true or false", False),
        ("outer.rate", "a number above 0", 1.0),
        ("outer.inner.count", "an integer of at least 1", 2),
        ("outer.inner.share", "at least 0 and below 1", 0.5),
    ]
    assert found["outer.inner.count"].meaning == "how many"


def test_a_section_is_read_with_defaults_from_names_with_and_without_dots():
    assert read_section(Outer, {}) == Outer()
    assert check_values(Outer, {"inner.count": 4}) == {"inner": {"count": 4}}
    # The numbers are text to YAML.
    outer = read_section(Outer, {"name": "first", "inner": {"count": "3e1"}, "rate": "2e-1"})
    assert outer == Outer("first", rate=0.2, inner=Inner(30))
    assert type(read_section(Outer, {"rate": 2}).rate) is float


def test_limits_are_in_or_out_of_the_range_as_it_says():
    inf, nan = float("inf"), float("nan")
    for allowed, values, others in (
        (keys.AT_LEAST_0, [0], [-1]),
        (keys.AT_LEAST_1, [1], [0]),
        (keys.AT_LEAST_2, [2], [1]),
        (keys.POSITIVE, [1e-9], [0, inf, nan]),
        (keys.NOT_NEGATIVE, [0], [-1e-9, inf, nan]),
        (keys.SHARE, [0, 1], [-1e-9, 1.1]),
        (keys.SHARE_BELOW_1, [0, 0.9], [-1e-9, 1]),
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
        ({"rate": "1e-3.5"}, "x.rate is '1e-3.5'"),
        ({"inner": {"count": 2.0}}, r"x.inner.count is 2.0 \(float\); it must be an integer of at"),
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
