"""What a hostile process would send in place of a value."""

from __future__ import annotations

import pathlib


class Payload:
    """Makes a file wherever it is unpickled."""

    def __init__(self, marker: pathlib.Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple:
        return pathlib.Path.write_text, (self.marker, "a payload ran")
