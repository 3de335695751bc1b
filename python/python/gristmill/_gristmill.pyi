"""Types of the compiled module."""

import os
from collections.abc import Iterator, Sequence
from typing import Any, Optional, Union, final

import numpy
import numpy.typing

__version__: str

class GristmillError(RuntimeError):
    """A model cannot be opened or run.

    The message names the cause, and a way out after ``hint:``.
    """

@final
class TextStream(Iterator[str]):
    """Pieces of a text, in order. A dropped stream stops its generation."""

    def __iter__(self) -> TextStream: ...
    def __next__(self) -> str: ...
    def text(self) -> str:
        """Return the rest of the text."""
    def close(self) -> None:
        """Stop the generation."""
    @property
    def reasoning(self) -> str:
        """Reasoning so far, which is not part of the text."""
    @property
    def finish_reason(self) -> Optional[str]:
        """Reason for the end (``end of text``, ``token limit``, ...), once it has come."""

@final
class Model:
    """A model on a device."""

    def __new__(
        cls,
        path: Union[str, os.PathLike[str]] = "demo",
        *,
        device: Optional[str] = None,
        context: Optional[int] = None,
        threads: Optional[int] = None,
        precision: str = "fast",
        pooling: Optional[str] = None,
    ) -> Model:
        """Open a model and compile its kernels.

        :param path: a .gguf file, ``demo`` (built in), or a name such as ``qwen3-0.6b`` or
            ``ORG/REPO:QUANT``, which is fetched unless it is stored
        :param device: ``cpu``, ``cuda``, ``cuda:1``, ...; by default the best there is
        :param context: context length in tokens; by default the longest that fits
        :param threads: threads of the CPU; by default all cores
        :param precision: rounding of activations: ``fast``, ``balanced``, ``half`` or ``exact``
        :param pooling: ``mean``, ``cls`` or ``last``, for :meth:`embed`; by default the file's
        """
    def generate(
        self,
        prompt: str,
        *,
        max_tokens: Optional[int] = None,
        stop: Union[str, Sequence[str]] = (),
        temperature: Optional[float] = None,
        top_k: Optional[int] = None,
        top_p: Optional[float] = None,
        min_p: Optional[float] = None,
        repeat_penalty: Optional[float] = None,
        seed: Optional[int] = None,
    ) -> TextStream:
        """Continue a text. Sampling parameters default to the model file's."""
    def chat(
        self,
        messages: Union[str, Sequence[dict[str, Any]]],
        *,
        thinking: Optional[bool] = None,
        max_tokens: Optional[int] = None,
        stop: Union[str, Sequence[str]] = (),
        temperature: Optional[float] = None,
        top_k: Optional[int] = None,
        top_p: Optional[float] = None,
        min_p: Optional[float] = None,
        repeat_penalty: Optional[float] = None,
        seed: Optional[int] = None,
    ) -> TextStream:
        """Answer a conversation, by the model's chat template.

        :param messages: a text of the user, or messages with ``role`` and ``content``
        :param thinking: whether to reason, for models that can do both
        """
    def embed(
        self, texts: Union[str, Sequence[str]]
    ) -> numpy.typing.NDArray[numpy.float32]:
        """Return vectors of length 1: ``[width]`` of a text, ``[texts, width]`` of several."""
    def rerank(
        self, query: str, documents: Sequence[str]
    ) -> numpy.typing.NDArray[numpy.float32]:
        """Return the score of each document for a query, from 0 to 1."""
    def logits(self, tokens: Sequence[int]) -> numpy.typing.NDArray[numpy.float32]:
        """Return the logits after each token, ``[tokens, vocabulary]``."""
    def tokenize(self, text: str, *, special: bool = False, bos: bool = False) -> list[int]:
        """Return the token ids of a text.

        :param special: parse special tokens in the text
        :param bos: add the tokens that the model's texts begin and end with
        """
    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Return the text of tokens; that of special tokens, too, if ``special``."""
    @property
    def context(self) -> int:
        """Context length in tokens."""
    @property
    def vocabulary(self) -> int:
        """Number of logits."""
    @property
    def width(self) -> int:
        """Number of elements of an embedding."""

def set_packages(folder: str) -> None: ...
def render_template() -> int: ...
