"""Progress for a test to look at."""


class CountedProgress:
    """Remembers, for each stage, a list of its name, the bytes that it was to have, and those that were done."""

    def __init__(self):
        self.stages = []

    def begin(self, stage, total):
        self.stages.append([stage, total, 0])

    def advance(self, count):
        self.stages[-1][2] += count
