"""Evaluation of trained networks, plain and rescaled, before and after temperature scaling."""
