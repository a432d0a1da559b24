"""Names of the systems the paper compares with, and what makes one: ``REGISTRY["sasrec"]("link", dim=64)``."""

import dataclasses

TASKS = ("link", "node", "traffic")
REGISTRY = {}
"""From a name, as in the paper's tables in lower case, to its :class:`Baseline`."""


@dataclasses.dataclass
class Baseline:
    """One row of the paper's tables.

    Attributes
    ----------
    name, title : str
        ``sasrec`` and ``SASREC``.
    tasks : dict
        From "link", "node" or "traffic" to the estimator's class.
    """

    name: str
    title: str
    tasks: dict

    def __call__(self, task, **settings):
        """A new estimator for a task, with the paper's settings but for those given."""
        if task not in self.tasks:
            raise ValueError(f"task must be one of {', '.join(self.tasks)} for {self.name!r}, got {task!r}")
        return self.tasks[task](**settings)


def register(name, title, task):
    """Decorate an estimator's class to give it a name in :data:`REGISTRY`.

    Examples
    --------
    >>> @register("coin", "A coin", "node")
    ... class Coin: ...
    >>> type(REGISTRY["coin"]("node")).__name__
    'Coin'
    >>> del REGISTRY["coin"]
    """
    if task not in TASKS:
        raise ValueError(f"task must be one of {', '.join(TASKS)}, got {task!r}")

    def enter(cls):
        entry = REGISTRY.setdefault(name, Baseline(name, title, {}))
        if entry.tasks.get(task, cls) is not cls or entry.title != title:
            raise ValueError(f"name {name!r} is taken for the task {task!r}")
        entry.tasks[task] = cls
        return cls

    return enter
