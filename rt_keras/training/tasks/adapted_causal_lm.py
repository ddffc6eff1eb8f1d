"""The task of KerasHub's language models with heads of this package."""

from rt_keras.models.adapted.causal_lm import AdaptedCausalLM
from rt_keras.models.generation import check_texts
from rt_keras.training.tasks.causal_lm import CausalLMTask


class AdaptedCausalLMTask(CausalLMTask):
    """`CausalLMTask` for models of `rt_keras.adapt`, which have no configuration.

    Every sequence begins with the start token of KerasHub's tokenizer, as in the training of these
    models. Without it, the loss of Gemma 3 is half a nat per token higher.
    """

    model_class = AdaptedCausalLM

    def prompts(self, texts, model, max_length):
        added = int(model.preprocessor.add_start_token)
        check_texts("prompt", texts, model.preprocessor.tokenizer, max_length, added)
        return [text.decode("utf-8") for text in texts]

    def start_token(self, preprocessor):
        return preprocessor.tokenizer.start_token_id if preprocessor.add_start_token else None
