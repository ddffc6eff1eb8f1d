"""Scores token ids with an exported model, using only TensorFlow.

python score.py SAVED_MODEL < ids.json > log_probabilities.json
"""

import json
import subprocess
import sys


def score(saved_model, ids):
    """Computes the log-probabilities of token ids.

    Args:
        saved_model: path of the folder of an exported model.
        ids: nested list of ints `[batch, length]`.

    Returns:
        NumPy array `[batch, length]`: ln p of each token given the previous ones.
    """
    import tensorflow as tf

    signature = tf.saved_model.load(saved_model).signatures["serving_default"]
    return signature(ids=tf.constant(ids, tf.int32))["log_probabilities"].numpy()


def score_in_new_process(saved_model, ids):
    """Runs `score` in a new process that does not import `rt_keras`; returns nested lists."""
    command = [sys.executable, __file__, str(saved_model)]
    result = subprocess.run(command, input=json.dumps(ids), capture_output=True, text=True)
    if result.returncode:
        raise OSError(f"{saved_model} could not be scored in a new process:\n{result.stderr}")
    return json.loads(result.stdout)


if __name__ == "__main__":
    json.dump(score(sys.argv[1], json.load(sys.stdin)).tolist(), sys.stdout)
