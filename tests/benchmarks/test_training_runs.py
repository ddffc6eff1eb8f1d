import multiprocessing

import pytest

from rt_keras.benchmarks.training_runs import train_alone

NAME = "local_and_nearest on recall, seed 0"


class Answers:
    """Replaces the process of a run, with all its messages already sent."""

    def __init__(self, monkeypatch, *messages):
        self.messages, self.exitcode, self.ended = list(messages), -9, False
        context = multiprocessing.get_context("spawn")
        monkeypatch.setattr(context.__class__, "Process", lambda _, target, args, daemon: self)
        monkeypatch.setattr(context.__class__, "Pipe", lambda _: (self, self))

    def recv(self):
        if not self.messages:
            raise EOFError
        return self.messages.pop(0)

    def start(self):
        pass

    close = join = start

    def terminate(self):
        self.ended = True


def test_the_answer_of_the_process_comes_after_its_reports(monkeypatch, capsys):
    process = Answers(
        monkeypatch,
        ("step", 1),
        ("test", {"step": 1, "note": "accuracy 0.500"}),
        ("note", "2 of 3 pages translated"),
        ("done", {"weights": 3}),
    )
    assert train_alone("a:b", {"steps": 20}, NAME) == {"weights": 3}
    lines = capsys.readouterr().err.splitlines()
    step, note = f"{NAME}: step 1 of 20, accuracy 0.500", f"{NAME}: 2 of 3 pages translated"
    assert lines == [f"training {NAME}", step, note]
    assert process.ended


def test_errors_and_the_end_of_the_process_are_raised(monkeypatch):
    process = Answers(monkeypatch, ("error", FloatingPointError("the loss is nan at step 3")))
    with pytest.raises(FloatingPointError, match="step 3"):
        train_alone("a:b", {"steps": 20}, NAME)
    assert process.ended
    Answers(monkeypatch, ("step", 1))
    with pytest.raises(ChildProcessError, match="seed 0 ended with status -9, perhaps because"):
        train_alone("a:b", {"steps": 20}, NAME)
