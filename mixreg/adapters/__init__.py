"""Mixup where people already work: Lightning, Hugging Face's Trainer, scikit-learn; each imported when used."""
