"""What scikit-learn's estimators are made of: columns, weights, targets, a network, its training, and the choice of α.

The estimators themselves are in `mixreg.adapters.sklearn`.
"""
