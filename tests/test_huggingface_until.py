"""Hugging Face's Trainer where mixing ends, training is resumed or a best model is loaded: whose rule is obeyed."""

import pytest
import torch

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from encoders import encoder, padded, texts, trainer  # noqa: E402
from test_huggingface_attacks import assert_obeyed, by_hand  # noqa: E402

from mixreg.adapters.huggingface import RULE, MixupCallback, mixup_loss, rescale_from  # noqa: E402

pytestmark = [pytest.mark.xdist_group("huggingface")]


def logits_of(net: torch.nn.Module, samples: list[dict]) -> torch.Tensor:
    with torch.no_grad():
        return net.eval()(**{name: value for name, value in padded(samples).items() if name != "labels"}).logits


def plain_logits(net: torch.nn.Module, callback: MixupCallback, samples: list[dict]) -> torch.Tensor:
    with callback.plain():
        return logits_of(net, samples)


def kinds_of_batches(run) -> list[str]:
    """Which batches were mixed; those of evaluation are not among them."""
    kinds, inner = [], run.compute_loss_func

    def loss(outputs, labels, **further):
        kinds.append("mixed" if labels.is_floating_point() else "plain")
        return inner(outputs, labels, **further)

    run.compute_loss_func = loss
    run.train()
    return kinds


@pytest.mark.parametrize("persistent", [False, True])
def test_mixing_ends_in_worker_processes_that_live_on(tmp_path, persistent) -> None:
    settings = {"num_train_epochs": 3, "dataloader_num_workers": 1, "dataloader_persistent_workers": persistent}
    net, callback = encoder(), MixupCallback(0.7, 3, until=1)
    run = trainer(tmp_path, net, texts(), [callback], mixup_loss, **settings)
    assert kinds_of_batches(run) == ["mixed"] * 3 + ["plain"] * 6
    assert torch.equal(logits_of(net, texts()), plain_logits(net, callback, texts()))


class StopsEarly(transformers.TrainerCallback):
    """Ends every epoch after its first step."""

    def on_step_end(self, args, state, control, **given):
        control.should_epoch_stop = True


def test_mixing_ends_after_so_many_epochs_also_if_they_are_cut_short(tmp_path) -> None:
    callback = MixupCallback(0.7, 3, until=2)
    run = trainer(tmp_path, encoder(), texts(), [callback, StopsEarly()], mixup_loss, num_train_epochs=3)
    assert kinds_of_batches(run) == ["mixed", "mixed", "plain"]


# 3 steps an epoch: within and at the end of the last mixed epoch, just after it, and of a run that is over.
@pytest.mark.parametrize("step", [4, 5, 6, 7, 12])
def test_a_run_whose_mixing_ends_is_resumed_exactly(tmp_path, step) -> None:
    settings = {"num_train_epochs": 4, "save_strategy": "steps", "save_steps": 1}
    whole, callback = encoder(), MixupCallback(0.7, 3, seed=3, until=2)
    trainer(tmp_path / "whole", whole, texts(), [callback], mixup_loss, **settings).train()
    resumed, again = encoder(), MixupCallback(0.7, 3, seed=3, until=2)
    run = trainer(tmp_path / "resumed", resumed, texts(), [again], mixup_loss, **settings)
    run.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{step}"))
    for key, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[key]), key
    assert torch.equal(logits_of(resumed, texts()), plain_logits(whole, callback, texts()))


def test_a_finished_run_that_was_mixed_to_its_end_is_resumed_with_its_rule(tmp_path) -> None:
    settings = {"num_train_epochs": 2, "save_strategy": "epoch"}
    trainer(tmp_path, encoder(), texts(), [MixupCallback(0.7, 3, seed=3, until=2)], mixup_loss, **settings).train()
    net, callback = encoder(), MixupCallback(0.7, 3, seed=3, until=2)
    trainer(tmp_path, net, texts(), [callback], mixup_loss, **settings).train(resume_from_checkpoint=True)
    assert_obeyed(net, callback, texts())
    assert float((logits_of(net, texts()) - plain_logits(net, callback, texts())).abs().max()) > 1e-3


# Losses fall: the first evaluation is that of the largest, the last that of the smallest.
BEST = {
    "mixed, then plain": ({"until": 1}, {}, True, "rescaled"),
    "plain in the end": ({"until": 1}, {}, False, "plain"),
    "within the first epoch": ({}, {"eval_strategy": "steps", "save_strategy": "steps"}, True, "of some"),
}


@pytest.mark.parametrize("kind", BEST)
def test_the_best_model_is_evaluated_with_the_rule_it_was_best_with(tmp_path, kind) -> None:
    options, settings, greater, expected = BEST[kind]
    settings = {"eval_strategy": "epoch", "save_strategy": "epoch", "eval_steps": 1, "save_steps": 1} | settings
    settings |= {"load_best_model_at_end": True, "greater_is_better": greater, "metric_for_best_model": "eval_loss"}
    # A folder in which an earlier run left its rules.
    for step in (3, 6):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / RULE).write_bytes(b"of another run")
    net, callback = encoder(), MixupCallback(0.7, 3, seed=3, **options)
    run = trainer(tmp_path, net, texts(), [callback], mixup_loss, **settings)
    run.train()
    assert run.evaluate()["eval_loss"] == run.state.best_metric
    best = transformers.BertForSequenceClassification.from_pretrained(run.state.best_model_checkpoint)
    if expected == "plain":
        assert torch.equal(logits_of(net, texts()), logits_of(best, texts()))
        return
    if expected == "rescaled":
        torch.testing.assert_close(logits_of(net, texts()), by_hand(best, callback, texts()), rtol=1e-4, atol=1e-5)
    rescale_from(best, run.state.best_model_checkpoint)
    assert torch.equal(logits_of(net, texts()), logits_of(best, texts()))
    callback.release()
    assert torch.equal(logits_of(net, texts()), plain_logits(best, callback, texts()))


def test_several_callbacks_are_refused_before_training(tmp_path) -> None:
    one, net = MixupCallback(0.7, 3), encoder()
    for callbacks in ([one, MixupCallback(0.7, 3)], [one, one]):
        run = trainer(tmp_path, net, texts(), callbacks, mixup_loss)
        with pytest.raises(ValueError, match="several MixupCallbacks, and a batch is mixed once: give it one"):
            run.train()
        assert run.state.global_step == 0
    # What a refused training left on the model is not in the way of the next one, nor in that of its rule.
    trainer(tmp_path, net, texts(), [one], mixup_loss).train()
    assert_obeyed(net, one, texts())


def test_one_rule_is_obeyed_however_often_a_model_is_trained_or_given_one(tmp_path) -> None:
    net, first, second = encoder(), MixupCallback(0.7, 3, seed=1), MixupCallback(0.7, 3, seed=2)
    trainer(tmp_path, net, texts(), [first], mixup_loss, save_strategy="epoch").train()
    trainer(tmp_path / "second", net, texts(), [second], mixup_loss).train()
    assert_obeyed(net, second, texts())
    second.save(tmp_path)
    for _ in range(2):
        rescale_from(net, tmp_path)
        assert_obeyed(net, second, texts())
    trainer(tmp_path / "third", net, texts(), [MixupCallback(0.7, 3, rescale=False)], mixup_loss).train()
    assert torch.equal(logits_of(net, texts()), plain_logits(net, second, texts()))
