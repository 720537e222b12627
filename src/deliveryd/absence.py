"""Libraries that another one is to do without, though they are installed: most load whatever they find."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def absent(*names: str) -> Iterator[None]:
    """What is imported meanwhile finds none of the packages `names`, as where they aren't installed.

    Only for a library that has a way of its own to do without them.
    """
    before = {name: sys.modules[name] for name in names if name in sys.modules}
    sys.modules |= dict.fromkeys(names)  # type: ignore[arg-type]  # None is how Python marks a missing module
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
        sys.modules |= before
