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


def test_options_have_what_they_share_and_their_help_says_it(capsys):
    parser = argparse.ArgumentParser()
    add_integers(parser, {"look_back": (1, "blocks before its own"), "heads": (8, "heads")})
    add_options(parser, {"--rows N": "rows", "--max-length N": "tokens"}, type=int, default=2)
    add_options(parser, {"--quick": "less exact"}, action="store_true")
    add_plot(parser, "the heads")
    args = parser.parse_args(["--look-back", "3", "--max-length", "4", "--quick"])
    numbers = {"look_back": 3, "heads": 8, "rows": 2, "max_length": 4}
    assert vars(args) == {**numbers, "quick": True, "plot": None}
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    help = capsys.readouterr().out
    for line in (
        "--look-back N   blocks before its own (default: 1)",
        "--max-length N  tokens",
        "--quick         less exact",
        "--plot FILE     draw the heads to FILE (.png, .svg, .pdf)",
    ):
        assert line in help


def test_numbers_out_of_range_are_refused_by_the_name_of_their_option():
    for value, highest, message in (
        (9, 8, "--look-back must be from 1 to 8. Received: 9$"),
        ([1, 2, 0], None, "--look-back must be at least 1. Received: 0$"),
    ):
        with pytest.raises(ValueError, match=message):
            check_range(argparse.Namespace(look_back=value), "look_back", 1, highest)
    for value in (1, 8, [1, 8], None):
        check_range(argparse.Namespace(look_back=value), "look_back", 1, 8)
    args = argparse.Namespace(heads=1, look_back=0)
    with pytest.raises(ValueError, match="--look-back must be at least 1. Received: 0"):
        check_at_least_one(args, "heads", "look_back")


def test_a_picture_has_a_known_ending_and_can_be_written(tmp_path):
    for path, message in (
        ("heads.txt", "--plot must end in .png or .svg or .pdf. Received: heads.txt"),
        (f"{__file__}/heads.png", "--plot must be a file that can be written"),
    ):
        with pytest.raises(ValueError, match=message):
            check_picture(argparse.Namespace(plot=path))
    check_picture(argparse.Namespace(output=str(tmp_path / "heads.svg")), "output")
    check_picture(argparse.Namespace(plot=None))
