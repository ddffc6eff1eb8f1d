"""Training: the configuration of an experiment, its task, the run and the scores.

- `config.py`: the typed configuration and its YAML files.
- `config_checks.py`: checks of several values of a configuration together.
- `tasks/`: the training tasks, one object per task.
- `tokenizer.py`, `schedule.py`: the tokenizer and the learning rate schedule of a configuration.
- `experiment.py`: the task, model and optimizer of a configuration; loading of models.
- `strategy.py`: the distribution strategy of a run.
- `run.py`: the `fit` driver.
- `run_folder.py`: the folder of a run, with its record of the training data.
- `batches.py`: the share of each batch that each worker and replica reads.
- `evaluation.py`, `stateful_scores.py`: the scores of a model on a split.
- `baselines.py`: the scores of gzip and a byte bigram on the same split.
"""
