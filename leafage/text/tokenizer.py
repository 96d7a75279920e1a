"""Text to token ids and back, from what a model file declares about its vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from leafage.errors import InvalidParameterError
from leafage.text.detokenizer import Detokenizer, PieceTable
from leafage.text.special import TokenFinder, protect


class Encoder(Protocol):
    """Text to ids without BOS and EOS. Text broken by LITERAL_MARK stays text, and the mark leaves no id."""

    def __call__(self, text: str, parse_special: bool) -> list[int]: ...


class Tokenizer:
    """One model's vocabulary and rules. Build it with `from_gguf` or `from_hf`. Threads may share it.

    Attributes:
        vocab_size: number of ids.
        bos_id: the beginning-of-sequence id, or None.
        eos_ids: every id that ends a generation (eos, eot, eom, generation_config's, well-known names).
        special_ids: control tokens: never in user text, skipped by `decode`.
        prefix: ids that `encode` puts in front as the file declares: BOS, or nothing, or a model's own.
        suffix: ids that `encode` puts at the end as the file declares.
        eos_id: the declared end-of-sequence id, or None.
        chat_template: Jinja source, or None.
    """

    def __init__(
        self,
        *,
        encoder: Encoder,
        tokens: list[str],
        token_bytes: Callable[[int], bytes],
        bos_id: int | None,
        eos_id: int | None,
        eos_ids: frozenset[int],
        special_ids: frozenset[int],
        prefix: list[int],
        suffix: list[int],
        strip_space: bool,
        chat_template: str | None,
    ) -> None:
        self._encoder = encoder
        self._tokens = tokens
        self._pieces = PieceTable(len(tokens), token_bytes)
        self._strip_space = strip_space
        self._special_finder = TokenFinder({tokens[i]: i for i in special_ids if len(tokens[i]) > 1})
        self.vocab_size = len(tokens)
        self.bos_id = bos_id
        self.eos_id = eos_id
        self.eos_ids = eos_ids
        self.special_ids = special_ids
        self.prefix = prefix
        self.suffix = suffix
        self.chat_template = chat_template

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """From the metadata of a GGUF file (keys `tokenizer.*`).

        Raises:
            ModelFileError: keys are missing or contradict each other.
            UnsupportedError: a tokenizer model or pre-tokenizer that Leafage does not know.
        """
        from leafage.text.gguf_tokenizer import build

        return cls(**build(metadata))

    @classmethod
    def from_hf(cls, folder: str | Path) -> Tokenizer:
        """From a Hugging Face folder: tokenizer.json, tokenizer_config.json, generation_config.json.

        Raises:
            ModelFileError: tokenizer.json is missing or does not parse.
            UnsupportedError: its decoder is of a kind that generation has no use for.
        """
        from leafage.text.hf_tokenizer import build

        return cls(**build(Path(folder)))

    @property
    def add_bos(self) -> bool:
        """Whether `encode` puts BOS in front."""
        return self.prefix[:1] == [self.bos_id]

    def encode(
        self,
        text: str,
        *,
        add_special: bool = True,
        parse_special: bool = False,
        continues: bool = False,
    ) -> list[int]:
        """Ids of a text.

        Args:
            text: any string; lone surrogates become U+FFFD.
            add_special: add BOS and EOS where the file declares them, never a second one.
            parse_special: read the texts of control tokens as these tokens. Leave it off for text of users.
            continues: the text goes on after other text: nothing is added, and no space goes in front of it
                where the vocabulary's encoder puts one.
        """
        if not isinstance(text, str):
            raise InvalidParameterError(
                "only a string can be encoded", value=type(text).__name__, remedy="pass str"
            )
        if not text.isascii():
            text = (
                text.encode(errors="surrogatepass").decode(errors="replace") if _has_surrogate(text) else text
            )
        if continues:
            return self._encode_behind("\n" if self._strip_space else "", text, parse_special)
        ids = self._encoder(text, parse_special)
        if add_special:
            if ids[: len(self.prefix)] != self.prefix:
                ids = self.prefix + ids
            if ids[len(ids) - len(self.suffix) :] != self.suffix:
                ids = ids + self.suffix
        return ids

    def _encode_behind(self, start: str, text: str, parse_special: bool) -> list[int]:
        """Ids of `text` behind `start`, which takes the encoder's space; where they do not part, with it."""
        head, ids = self._encoder(start, False), self._encoder(start + text, parse_special)
        parts = ids[: len(head)] == head
        return ids[len(head) :] if parts else self._encoder(text, parse_special)

    def decode(
        self, token_ids: Iterable[int], *, skip_special_tokens: bool = True, continues: bool = False
    ) -> str:
        """Text of ids; bytes that are no UTF-8 become U+FFFD.

        Args:
            token_ids: ids; those outside the vocabulary leave no text.
            skip_special_tokens: leave out control tokens.
            continues: the ids go on after other text, so a leading space belongs to the text. Matters only
                for vocabularies whose encoder puts a space in front of every text.
        """
        stream = self.detokenizer(skip_special_tokens=skip_special_tokens, continues=continues)
        return "".join([stream.push(token_id) for token_id in token_ids]) + stream.flush()

    def detokenizer(self, *, skip_special_tokens: bool = True, continues: bool = True) -> Detokenizer:
        """A new incremental decoder; by default for generated ids, which continue a prompt."""
        skip = self.special_ids if skip_special_tokens else frozenset()
        return Detokenizer(self._pieces, skip, strip_space=self._strip_space and not continues)

    def token_text(self, token_id: int) -> str:
        """One id for display: its text, with U+FFFD for bytes that are no whole character."""
        return self.token_bytes(token_id).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one id leaves in a text; b"" for ids outside the vocabulary."""
        return self._pieces.bytes_of(token_id)

    def token_id(self, text: str) -> int | None:
        """The id of a special token's text, or None."""
        for token_id in self.special_ids:
            if self._tokens[token_id] == text:
                return token_id
        return None

    def protect(self, text: str) -> str:
        """`text` marked so that `encode(..., parse_special=True)` reads no control token in it."""
        return protect(text, self._special_finder.present(text))


def _has_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
