"""Mixup where people already work: Lightning, Hugging Face, scikit-learn, torchmetrics; each imported when used."""
