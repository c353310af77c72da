"""Encoders of Hugging Face as small as they can be, without dropout, and texts for them."""

import torch
import transformers

WORDS, PADDING, START = 30, 0, 1
SIZES = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 24,
    "pad_token_id": PADDING,
}
DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
CONFIGS = {
    "Bert": lambda: transformers.BertConfig(**SIZES, **DROPOUT, classifier_dropout=0.0),
    "Roberta": lambda: transformers.RobertaConfig(**SIZES, **DROPOUT, classifier_dropout=0.0),
    "DistilBert": lambda: transformers.DistilBertConfig(
        vocab_size=WORDS,
        dim=16,
        n_layers=1,
        n_heads=2,
        hidden_dim=16,
        max_position_embeddings=24,
        dropout=0.0,
        attention_dropout=0.0,
        seq_classif_dropout=0.0,
        pad_token_id=PADDING,
    ),
    "ModernBert": lambda: transformers.ModernBertConfig(
        **SIZES, global_attn_every_n_layers=1, attn_implementation="eager", classifier_dropout=0.0
    ),
}


def encoder(kind: str = "Bert", task: str = "SequenceClassification", labels: int = 3, **settings):
    torch.manual_seed(0)
    config = CONFIGS[kind]()
    config.num_labels = labels
    for name, value in settings.items():
        setattr(config, name, value)
    return getattr(transformers, f"{kind}For{task}")(config)


def texts(n: int = 36, labels: int = 3, seed: int = 1) -> list[dict]:
    """Tokens of any length with a label each."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 10, (n,), generator=generator).tolist()
    words = [[START, *torch.randint(2, WORDS, (length,), generator=generator).tolist()] for length in lengths]
    classes = torch.randint(labels, (n,), generator=generator).tolist()
    return [
        {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": y} for ids, y in zip(words, classes, strict=True)
    ]


def tagged(n: int = 36, labels: int = 3) -> list[dict]:
    """The same with a label for every token but the first, and some others without."""
    found = []
    for sample in texts(n):
        tags = [word % labels if word % 4 else -100 for word in sample["input_ids"]]
        found.append({**sample, "labels": [-100, *tags[1:]]})
    return found


def padded(samples: list[dict]) -> dict[str, torch.Tensor]:
    """A batch, padded at the end to its longest text."""
    length = max(len(sample["input_ids"]) for sample in samples)
    fill = {"input_ids": PADDING, "attention_mask": 0, "labels": -100}

    def column(name: str) -> torch.Tensor:
        values = [sample[name] for sample in samples]
        if all(isinstance(v, list) and len(v) == len(s["input_ids"]) for v, s in zip(values, samples, strict=True)):
            values = [value + [fill[name]] * (length - len(value)) for value in values]
        return torch.tensor(values)

    return {name: column(name) for name in samples[0]}


def trainer(folder, net, samples, callbacks=(), loss=None, **settings):
    """With plain steps of gradient descent, on texts."""
    defaults = {"num_train_epochs": 2, "per_device_train_batch_size": 12, "save_strategy": "no"}
    defaults |= {"optim": "sgd", "learning_rate": 0.1}
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        logging_strategy="no",
        seed=5,
        **{**defaults, **settings},
    )
    return transformers.Trainer(
        net,
        arguments,
        train_dataset=samples,
        eval_dataset=samples,
        data_collator=padded,
        callbacks=list(callbacks),
        compute_loss_func=loss,
    )
