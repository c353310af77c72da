"""What goes with any method: label smoothing, dropout at the last layer, Parseval regularisation."""
