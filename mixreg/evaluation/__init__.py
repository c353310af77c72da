"""Evaluation: what a trained network is worth, plain and rescaled, before and after temperature scaling."""
