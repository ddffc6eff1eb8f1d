from tests.cli.checks import assert_one_line


def test_a_folder_that_holds_something_is_refused(run, tiny_run):
    status, _, error = run("quickstart", "--output", tiny_run)
    assert_one_line(status, error, "already holds something")
