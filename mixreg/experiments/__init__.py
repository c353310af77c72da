"""The paper's experiments: runs, measurements, figures and claims."""
