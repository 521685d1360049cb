"""What the reading of a checkpoint can end in, besides ``OSError``, and the saving of one."""


class CheckpointError(ValueError):
    """A checkpoint, or a file of it, cannot be loaded: the message says which, why, and what to do."""


class NotACheckpointError(CheckpointError):
    """What is there is something else than an optimizer checkpoint."""


class MissingFileError(CheckpointError, FileNotFoundError):
    """A file that a checkpoint names is not there."""


class ReplacedError(CheckpointError):
    """A file was replaced by another one while it was read: the checkpoint has to be read again."""


class StateReleasedError(CheckpointError):
    """A load failed after the old state had been released for it: the optimizer has no state."""


class SaveError(OSError):
    """A save was given up, and the checkpoint that was there before is as it was: the message says where and why."""
