"""Whether a model has read the whole prompt.

Ollama drops the front of what does not fit and answers all the same: an essay is marked without
its beginning, and nobody is told. We ask it not to (`truncate: false`), which older servers ignore.
Then only its count of the prompt's tokens tells.
"""

import re
from collections.abc import Sequence

# Chinese, Japanese, Korean: no spaces between words, and hardly a token of more than four of them.
_IDEOGRAPHS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_PER_TOKEN = 4
# A comma or full stop at a word's end is a token of its own.
_STOPS = re.compile(r"\w[^\w\s]+(?=\s|$)")
# A count below that of the least is no matter of tokenizers any more.
_SHARE = 0.9
# So few words say nothing.
_LEAST = 50


def least_tokens(texts: Sequence[str]) -> int:
    """As few tokens as these may have: no tokenizer makes one of two words."""
    spaced = sum(len(text.split()) + len(_STOPS.findall(text)) for text in texts)
    dense = sum(len(_IDEOGRAPHS.findall(text)) for text in texts) // _PER_TOKEN
    return max(spaced, dense)


def looks_cut(texts: Sequence[str], counted: int | None) -> bool:
    """Whether so small a count needs an explanation. None and 0 say nothing."""
    least = least_tokens(texts)
    return bool(counted) and least >= _LEAST and (counted or 0) < _SHARE * least
