"""What stops training before it can reach a checkpoint."""


class NonFinite(ArithmeticError):
    """A reward, loss or gradient that is not finite: says which, and where. The weights stay as they were."""
