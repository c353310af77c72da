"""The explorer: Mixup's theory on one page to play with, built from the small sources in this folder."""
