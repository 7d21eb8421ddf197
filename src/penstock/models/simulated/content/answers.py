"""What the model will say to a call, and how a fault changes it."""

import json
import re
import zlib
from dataclasses import replace
from random import Random
from typing import Any

from penstock.models.simulated.content import texts
from penstock.models.simulated.content.scenes import picture
from penstock.models.simulated.content.schemas import value
from penstock.models.simulated.faults.faults import (
    Empty,
    Fault,
    Length,
    Refuses,
    RemoteHost,
    SchemaInvalid,
    Truncation,
    WrongUsage,
)
from penstock.models.simulated.options import Options
from penstock.models.simulated.request import Answer, Ask

_PIECES = re.compile(r".{1,4}", re.DOTALL)
_IMAGE_TOKENS = 1_056
_WRONG: dict[str, tuple[Any, Any]] = {
    "negative": (-12, -40),
    "missing": (None, None),
    "absurd": (10**15, 10**15),
    "strings": ("many", "12"),
}


def answer_to(ask: Ask, options: Options, fault: Fault | None) -> Answer:
    """The same call always gets the same answer."""
    if ask.images:
        return _changed(_pictures(ask), ask, fault)
    random = Random(zlib.crc32(ask.prompt.encode()) ^ ask.seed)  # noqa: S311  # not secret
    if not ask.prompt:
        return Answer([], finish="load")  # asks Ollama to load the model, no more
    tokens = _tokens(ask, options, fault, random)
    finish = "stop"
    if ask.limit is not None and len(tokens) > ask.limit:
        del tokens[ask.limit :]
        finish = "length"
    answer = Answer(tokens, finish, _seen(ask, options), len(tokens))
    return _changed(answer, ask, fault)


def _pictures(ask: Ask) -> Answer:
    """Each from its own dice: the second of four is the second of two."""
    drawn = [
        picture(Random(f"{ask.model}\n{ask.prompt}\n{ask.seed}\n{number}"), *ask.size)  # noqa: S311
        for number in range(ask.images)
    ]
    told = _IMAGE_TOKENS * ask.images
    return Answer([], prompt_tokens=ask.prompt_tokens, tokens_told=told, images=drawn)


def _tokens(ask: Ask, options: Options, fault: Fault | None, random: Random) -> list[str]:
    if isinstance(fault, SchemaInvalid):
        wrong = {"unasked": texts.sentence(ask.prompt, random)}
        return _PIECES.findall(json.dumps(wrong, ensure_ascii=False))
    if ask.schema is None:
        return texts.feedback(ask.prompt, random, options.tokens)
    if ask.schema == "json":
        said: Any = {"feedback": texts.sentence(ask.prompt, random)}
    else:
        said = value(ask.schema, ask.prompt, random)
    return _PIECES.findall(json.dumps(said, ensure_ascii=False))


def _seen(ask: Ask, options: Options) -> int:
    """Tokens of the prompt that the model reads: about half the window, once it overflows."""
    window = ask.num_ctx or options.num_ctx
    return ask.prompt_tokens if ask.prompt_tokens <= window else max(1, window // 2)


def _changed(answer: Answer, ask: Ask, fault: Fault | None) -> Answer:
    match fault:
        case WrongUsage(form):
            prompt, told = _WRONG[form]
            return replace(answer, prompt_tokens=prompt, tokens_told=told)
        case Length():
            half = answer.tokens[: max(1, len(answer.tokens) // 2)]
            return replace(answer, tokens=half, tokens_told=len(half), finish="length")
        case Refuses():
            # Ollama has no word for it; there it is the same, so that the fault can be seen.
            said = texts.refusal(ask.prompt)
            return replace(answer, tokens=[], refusal=said, finish="content_filter")
        case Truncation():
            return replace(answer, prompt_tokens=max(1, answer.prompt_tokens // 2))
        case RemoteHost(host):
            return replace(answer, remote_host=host)
        case Empty("text"):
            return replace(answer, tokens=[], tokens_told=0, images=[])
        case _:
            return answer
