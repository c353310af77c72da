"""The error of all readers of data."""


class DataError(ValueError):
    """A dataset that is missing, broken or not what it claims to be; one sentence that names it."""
