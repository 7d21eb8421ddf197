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
from penstock.models.simulated.faults.orders import Fault
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
    # About half the window is read of a prompt that overflows it.
    window = ask.num_ctx or options.num_ctx
    read = ask.prompt_tokens if ask.prompt_tokens <= window else max(1, window // 2)
    return _changed(Answer(tokens, finish, read, len(tokens)), ask, fault)


def _pictures(ask: Ask) -> Answer:
    """Each from its own dice: the second of four is the second of two."""
    drawn = [
        picture(Random(f"{ask.model}\n{ask.prompt}\n{ask.seed}\n{number}"), *ask.size)  # noqa: S311
        for number in range(ask.images)
    ]
    return Answer(
        [],
        prompt_tokens=ask.prompt_tokens,
        completion_tokens=_IMAGE_TOKENS * ask.images,
        images=drawn,
    )


def _tokens(ask: Ask, options: Options, fault: Fault | None, random: Random) -> list[str]:
    if fault and fault.name == "schema_invalid":
        answer: Any = {"unasked": texts.sentence(ask.prompt, random)}
    elif ask.schema is None:
        return texts.feedback(ask.prompt, random, options.tokens)
    elif ask.schema == "json":
        answer = {"feedback": texts.sentence(ask.prompt, random)}
    else:
        answer = value(ask.schema, ask.prompt, random)
    return _PIECES.findall(json.dumps(answer, ensure_ascii=False))


def _changed(answer: Answer, ask: Ask, fault: Fault | None) -> Answer:
    if fault is None:
        return answer
    match fault.name:
        case "wrong_usage":
            prompt, completion = _WRONG[fault.parameters["form"]]
            return replace(answer, prompt_tokens=prompt, completion_tokens=completion)
        case "length":
            half = answer.tokens[: max(1, len(answer.tokens) // 2)]
            return replace(answer, tokens=half, completion_tokens=len(half), finish="length")
        case "refusal":
            # Ollama has no word for it; there it is the same, so that the fault can be seen.
            refusal = texts.refusal(ask.prompt)
            return replace(answer, tokens=[], refusal=refusal, finish="content_filter")
        case "truncation":
            return replace(answer, prompt_tokens=max(1, answer.prompt_tokens // 2))
        case "remote_host":
            return replace(answer, remote_host=fault.parameters["host"])
        case "empty":
            return replace(answer, tokens=[], completion_tokens=0, images=[])
        case _:
            return answer
