import pytest

from rt_keras.training.saved_tasks import adapted_class, class_name, task_folder


def test_the_task_of_a_run_is_its_best_model(tiny_run):
    folder = task_folder(tiny_run)
    assert folder == tiny_run / "model" and task_folder(folder) == folder
    assert class_name(folder) == "RoutingTransformerCausalLM"


def test_folders_without_a_task_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds neither a run nor a preset of a model"):
        task_folder(tmp_path)
    (tmp_path / "config.yaml").write_text("")
    with pytest.raises(FileNotFoundError, match="has not reached its first validation yet"):
        task_folder(tmp_path)


def test_only_adapted_language_models_are_adapted(tiny_run):
    message = "holds a RoutingTransformerCausalLM, which is not an adapted model"
    with pytest.raises(ValueError, match=message):
        adapted_class(task_folder(tiny_run))
