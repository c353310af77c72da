"""Private machinery for derivatives of networks: tangents, Jacobians, curvature, layers, wrappers."""
