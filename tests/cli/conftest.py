import pytest

from rt_keras import cli


@pytest.fixture
def run(capsys):
    """Runs a command; returns its status, output and error output."""

    def run(*argv):
        status = cli.main([str(argument) for argument in argv])
        return status, *capsys.readouterr()

    return run
