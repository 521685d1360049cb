"""What the reading of a checkpoint can end in, besides ``OSError``."""


class CheckpointError(ValueError):
    """A checkpoint, or a file of it, cannot be loaded: the message says which, why, and what to do."""


class MissingFileError(CheckpointError, FileNotFoundError):
    """A file that a checkpoint names is not there."""
