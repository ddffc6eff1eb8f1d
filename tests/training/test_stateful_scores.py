import pytest

from rt_keras import data
from rt_keras.layers import FullHeads, LocalHeads, RoutingHeads
from rt_keras.models import RoutingTransformerCausalLM, RoutingTransformerCausalLMPreprocessor
from rt_keras.training.evaluation import evaluate
from tests.models import checks


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"head_groups": [FullHeads(1), LocalHeads(1, 4)]}, "bounded; FullHeads see the whole"),
        ({"head_groups": [RoutingHeads(2, 2, 4, assignment="balanced")]}, "bounded; RoutingHeads"),
        ({"max_sequence_length": 24}, "without learned positions; .*max_sequence_length=24"),
    ],
)
def test_models_that_cannot_be_stateful(books, changes, message):
    preprocessor = RoutingTransformerCausalLMPreprocessor(data.ByteTokenizer(), sequence_length=24)
    backbone = checks.make_backbone(vocabulary_size=258, num_layers=1, **changes)
    model = RoutingTransformerCausalLM(backbone, preprocessor)
    documents = data.load_documents("text_folder", "test", directory=books)
    with pytest.raises(ValueError, match=message):
        evaluate(model, documents, context="stateful")
