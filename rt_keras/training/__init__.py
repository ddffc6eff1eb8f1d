"""Training: the configuration of an experiment, its task, the run and the scores.

- `config.py`: the typed configuration and its YAML.
- `config_checks.py`: which values of a configuration go together.
- `tasks/`: what models are trained to do, one object per task.
- `tokenizer.py`, `schedule.py`: the tokenizer and the learning rate that a configuration describes.
- `experiment.py`: the task, model, optimizer and strategy that it describes; how a model is loaded.
- `cluster.py`: the workers that train one model together, from `TF_CONFIG`.
- `memory.py`: how much memory training needs at least.
- `run.py`: the `fit` driver.
- `run_folder.py`, `source.py`: the folder of a run, and what it says of the training data.
- `batches.py`: the share of each batch that workers and replicas get.
- `pictures.py`: what TensorBoard shows of centroids and attention.
- `evaluation.py`: the scores of a model on a split.
- `baselines.py`: how gzip and a byte bigram compress the same split.
"""
