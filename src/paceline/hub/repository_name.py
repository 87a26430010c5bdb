"""Names of repositories: `owner/name`, `owner/name@revision`, `owner/name:FILE`."""

import re
from dataclasses import dataclass

PATTERN = re.compile(
    r"(?P<repository>[\w][\w.-]*/[\w][\w.-]*)"
    r"(@(?P<revision>[\w][\w./-]*))?"
    r"(:(?P<gguf>[\w][\w./-]*))?"
)


@dataclass(frozen=True, slots=True)
class RepositoryName:
    """A repository on the hub.

    gguf  the GGUF file to take: its name, or a part of it such as Q4_K_M. None: the repository has
          a folder of safetensors
    """

    repository: str
    revision: str | None = None
    gguf: str | None = None

    @classmethod
    def parse(cls, text: str) -> "RepositoryName | None":
        """None if the text does not have the form of such a name."""
        found = PATTERN.fullmatch(text)
        return cls(**found.groupdict()) if found else None

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"{self.repository}{revision}" + (f":{self.gguf}" if self.gguf else "")
