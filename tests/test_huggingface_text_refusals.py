"""What cannot be mixed as text in Hugging Face's trainer is refused before it trains, in one sentence."""

import pytest
import torch

from mixreg import Choice, CutMix, DataMoments, Mixup, SimilarTargets

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from encoders import encoder, padded, tagged, texts, trainer  # noqa: E402

from mixreg.adapters.huggingface import MixupCallback, mixup_loss  # noqa: E402

pytestmark = [pytest.mark.xdist_group("huggingface")]

WRONG = {
    "CutMix": ({"method": CutMix(1.0, 3)}, TypeError, "by Mixup or a Choice of such, not by CutMix"),
    "CutMix by name": (
        {"method": "cutmix", "num_classes": 3},
        TypeError,
        "by Mixup or a Choice of such, not by CutMix",
    ),
    "gaussian": ({"method": "gaussian", "num_classes": 3}, TypeError, "not by GaussianMixup"),
    "a choice": ({"method": Choice([Mixup(1.0, 3), CutMix(1.0, 3)])}, TypeError, "not by CutMix"),
    "balanced": ({"method": Mixup(1.0, 3, partners="balanced")}, ValueError, "no prediction rule on embeddings"),
    "similar": (
        {"method": Mixup(1.0, 3, partners=SimilarTargets(1.0))},
        ValueError,
        "no prediction rule on embeddings",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_methods_that_are_not_for_text_are_refused_before_training(tmp_path, kind) -> None:
    options, error, message = WRONG[kind]
    run = trainer(tmp_path, encoder(), texts(), [MixupCallback(**options)], mixup_loss)
    with pytest.raises(error, match=message):
        run.train()
    assert run.state.global_step == 0


def language_model():
    config = transformers.GPT2Config(vocab_size=30, n_positions=24, n_embd=16, n_layer=1, n_head=2)
    return transformers.GPT2LMHeadModel(config)


def translator():
    config = transformers.BartConfig(
        vocab_size=30, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=24,
    )  # fmt: skip
    return transformers.BartForConditionalGeneration(config)


def last_token():
    config = transformers.GPT2Config(
        vocab_size=30, n_positions=24, n_embd=16, n_layer=1, n_head=2, num_labels=3, pad_token_id=0
    )
    return transformers.GPT2ForSequenceClassification(config)


UNREADABLE = {
    "predicts the next token": language_model,
    "GPT2ForSequenceClassification does not read inputs_embeds as it reads input_ids": last_token,
}


@pytest.mark.parametrize("message", UNREADABLE)
def test_models_that_cannot_be_mixed_are_refused_before_training(tmp_path, message) -> None:
    net = UNREADABLE[message]()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    run = trainer(tmp_path, net, texts(), [MixupCallback(0.7, 3)], mixup_loss)
    with pytest.raises(ValueError, match=message):
        run.train()
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    with pytest.raises(ValueError, match="predicts the next token"):
        trainer(tmp_path, translator(), texts(), [MixupCallback(0.7, 3)], mixup_loss).train()


def test_padding_at_the_front_is_refused_where_positions_depend_on_it(tmp_path) -> None:
    def padded_before(samples):
        batch = padded(samples)
        return {name: value.flip(1) if value.ndim == 2 else value for name, value in batch.items()}

    run = trainer(tmp_path, encoder("Roberta"), texts(), [MixupCallback(0.7, 3)], mixup_loss)
    run.data_collator = padded_before
    with pytest.raises(ValueError, match="RobertaForSequenceClassification does not read inputs_embeds as it reads"):
        run.train()
    assert run.state.global_step == 0


def test_moments_of_something_else_are_refused(tmp_path) -> None:
    moments = DataMoments(3)
    moments.update(torch.randn(4, 2), torch.arange(4) % 3)
    run = trainer(tmp_path, encoder(), texts(), [MixupCallback(0.7, 3, moments=moments)], mixup_loss)
    with pytest.raises(TypeError, match="moments of input_ids are TokenMoments, got DataMoments"):
        run.train()


def test_labels_of_tokens_need_classes_and_a_loss_that_knows_of_both(tmp_path) -> None:
    net = encoder(task="TokenClassification")
    with pytest.raises(ValueError, match="labels of tokens are classes: give MixupCallback num_classes"):
        trainer(tmp_path, net, tagged(), [MixupCallback(0.7)], mixup_loss).train()
    with pytest.raises(ValueError, match="compute_loss_func=mixup_loss"):
        trainer(tmp_path, encoder(task="TokenClassification"), tagged(), [MixupCallback(0.7, 3)]).train()
