import argparse

import pytest

from rt_keras.options import (
    add_integers,
    add_options,
    add_plot,
    check_at_least_one,
    check_picture,
    check_range,
)


def parse(*given):
    parser = argparse.ArgumentParser()
    add_integers(parser, {"look_back": (1, "blocks before its own"), "heads": (8, "heads")})
    return parser.parse_args([str(option) for option in given])


def test_integers_have_defaults():
    assert vars(parse()) == {"look_back": 1, "heads": 8}
    assert vars(parse("--look-back", 3, "--heads", -2)) == {"look_back": 3, "heads": -2}


def test_help_says_the_default(capsys):
    with pytest.raises(SystemExit):
        parse("--help")
    assert "--look-back N  blocks before its own (default: 1)" in capsys.readouterr().out


def test_options_share_what_they_have_in_common(capsys):
    parser = argparse.ArgumentParser()
    add_options(parser, {"--rows N": "rows", "--max-length N": "tokens"}, type=int, default=2)
    add_options(parser, {"--quick": "less exact"}, action="store_true")
    args = parser.parse_args(["--max-length", "3", "--quick"])
    assert vars(args) == {"rows": 2, "max_length": 3, "quick": True}
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    help = capsys.readouterr().out
    assert "--max-length N  tokens" in help and "--quick         less exact" in help


def test_numbers_below_one_are_refused_by_the_name_of_their_option():
    args = argparse.Namespace(look_back=0, heads=1, batch=None)
    check_at_least_one(args, "heads", "batch")
    with pytest.raises(ValueError, match="--look-back must be at least 1. Received: 0"):
        check_at_least_one(args, "heads", "look_back")


@pytest.mark.parametrize(
    "value, highest, message",
    [
        (0, None, "--look-back must be at least 1. Received: 0"),
        (9, 8, "--look-back must be from 1 to 8. Received: 9"),
        ([1, 2, 0], None, "--look-back must be at least 1. Received: 0"),
    ],
)
def test_numbers_out_of_range_are_refused_by_the_name_of_their_option(value, highest, message):
    args = argparse.Namespace(look_back=value)
    with pytest.raises(ValueError) as error:
        check_range(args, "look_back", 1, highest)
    assert str(error.value) == message


def test_an_option_that_is_not_given_is_not_refused():
    args = argparse.Namespace(batch=None)
    check_range(args, "batch", 1)
    check_picture(args, "batch")


def test_a_picture_has_a_known_ending_and_can_be_written(tmp_path, capsys):
    for path, message in (
        ("heads.txt", "--plot must end in .png or .svg or .pdf. Received: heads.txt"),
        (f"{__file__}/heads.png", "--plot must be a file that can be written"),
    ):
        with pytest.raises(ValueError, match=message):
            check_picture(argparse.Namespace(plot=path))
    check_picture(argparse.Namespace(output=str(tmp_path / "heads.svg")), "output")
    parser = argparse.ArgumentParser()
    add_plot(parser, "the heads")
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    assert "--plot FILE  draw the heads to FILE (.png, .svg, .pdf)" in capsys.readouterr().out


def test_limits_are_in_the_range():
    for value in (1, 8, [1, 8]):
        check_range(argparse.Namespace(look_back=value), "look_back", 1, 8)
    check_range(argparse.Namespace(look_back=10**9), "look_back", 1)
