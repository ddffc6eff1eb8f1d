"""Helpers of the tests of commands."""


def overrides(settings):
    """The `--set` arguments of a dictionary of keys and values."""
    return [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]


def assert_one_line(status, error, *parts):
    """Asserts that the last line is the error, after nothing but progress."""
    last = error.splitlines()[-1]
    assert status == 1
    assert last.startswith("rt-keras: error: ") and "Traceback" not in error
    for part in parts:
        assert part in last
