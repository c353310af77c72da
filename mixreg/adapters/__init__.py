"""Mixup where people already work: Lightning, Hugging Face's Trainer, scikit-learn, torchmetrics; each imported when used."""
