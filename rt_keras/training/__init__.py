"""Training: an experiment's configuration, its model, optimizer and schedule, the run, its scores.

- `config.py`: the typed configuration and its YAML.
- `experiment.py`: tokenizer, model, optimizer and strategy from a configuration.
- `schedule.py`: the learning rate over the steps.
- `run.py`: the `fit` driver.
- `evaluation.py`: bits per byte and perplexity of a model on a split.
- `baselines.py`: what gzip and a byte bigram make of the same split.
"""
