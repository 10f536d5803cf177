"""What `with` closes at its end."""

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """Is open from the beginning, and has a close() that may be called twice."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
