"""The model's answers to calls, and their changes by a fault.

Feedback is in the language of the prompt. The same prompt gets the same text, so that a test can
call twice and compare.
"""

import json
import math
import re
import zlib
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from random import Random
from typing import Any

from penstock.models.simulated.content.scenes import picture
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
    """Return the answer to a call; the same call always gets the same answer."""
    if ask.images:
        return _changed(_pictures(ask), ask, fault)
    random = Random(zlib.crc32(ask.prompt.encode()) ^ ask.seed)  # noqa: S311  # not secret
    if not ask.prompt:
        return Answer([], finish="load")  # an empty prompt asks Ollama to load the model
    tokens = _tokens(ask, options, fault, random)
    finish = "stop"
    if ask.limit is not None and len(tokens) > ask.limit:
        del tokens[ask.limit :]
        finish = "length"
    # Of a prompt that is too long for the window, Ollama reads about half a window.
    window = ask.num_ctx or options.num_ctx
    read = ask.prompt_tokens if ask.prompt_tokens <= window else max(1, window // 2)
    return _changed(Answer(tokens, finish, read, len(tokens)), ask, fault)


def _pictures(ask: Ask) -> Answer:
    """Draw the pictures, each with its own seed: the second of four equals the second of two."""
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
        answer: Any = {"unasked": sentence(ask.prompt, random)}
    elif ask.schema is None:
        return feedback(ask.prompt, random, options.tokens)
    elif ask.schema == "json":
        answer = {"feedback": sentence(ask.prompt, random)}
    else:
        answer = _Writer(ask.schema, ask.prompt, random).value(ask.schema, 0)
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
            # Ollama has no such reason. The same one is sent there, so that the fault is visible.
            words = _REFUSALS[is_german(ask.prompt)]
            return replace(answer, tokens=[], refusal=words, finish="content_filter")
        case "truncation":
            return replace(answer, prompt_tokens=max(1, answer.prompt_tokens // 2))
        case "remote_host":
            return replace(answer, remote_host=fault.parameters["host"])
        case "empty":
            return replace(answer, tokens=[], completion_tokens=0, images=[])
        case _:
            return answer


_ENGLISH = (
    "Your opening makes the question clear and draws the reader in.",
    "The second paragraph would gain from one concrete example.",
    "You state your position early and return to it at the end.",
    "Some sentences run long; two shorter ones would carry the thought better.",
    "The argument about cost is convincing because you name your source.",
    "Look again at how you move from the third point to the conclusion.",
    "Your choice of words is precise, and the tone suits the task.",
    "A counter-argument is mentioned but not answered yet.",
    "The summary repeats the introduction almost word for word; say what has been learnt.",
    "Spelling is sound, and only the commas before subordinate clauses need care.",
    "The structure is easy to follow from beginning to end.",
    "Try to explain why this matters to somebody who disagrees.",
)
_GERMAN = (
    "Die Einleitung nennt die Frage klar und macht neugierig auf die Antwort.",
    "Im zweiten Absatz fehlt noch ein Beispiel, das den Gedanken anschaulich macht.",
    "Du nennst deine Meinung früh und kommst am Ende darauf zurück.",
    "Manche Sätze sind sehr lang; zwei kürzere würden den Gedanken besser tragen.",
    "Das Argument zu den Kosten überzeugt, weil du deine Quelle angibst.",
    "Der Übergang vom dritten Punkt zum Schluss wirkt noch sprunghaft.",
    "Deine Wortwahl ist treffend, und der Ton passt zur Aufgabe.",
    "Ein Gegenargument wird erwähnt, aber noch nicht entkräftet.",
    "Der Schluss wiederholt die Einleitung fast wörtlich; sag lieber, was sich ergeben hat.",
    "Die Rechtschreibung ist sicher, nur bei den Kommas vor Nebensätzen lohnt ein zweiter Blick.",
    "Der Aufbau ist von Anfang bis Ende gut nachzuvollziehen.",
    "Versuche zu erklären, warum das auch für jemanden wichtig ist, der anders denkt.",
)
_REFUSALS = ("I cannot help with this text.", "Bei diesem Text kann ich nicht helfen.")

_GERMAN_WORDS = re.compile(
    r"\b(?:der|die|das|und|ist|nicht|eine?|zu|mit|auf|für|den|dem|wie|bitte|du|ich)\b",
    re.IGNORECASE,
)
_ENGLISH_WORDS = re.compile(
    r"\b(?:the|and|is|not|an?|to|with|on|for|of|how|please|you|I|this|that|give)\b", re.IGNORECASE
)
# Enough to recognise the language; a prompt may be a book.
_LANGUAGE_CHARS = 2_000


@lru_cache(maxsize=1_024)
def is_german(prompt: str) -> bool:
    """Return whether the prompt has more common German than English words."""
    begin = prompt[:_LANGUAGE_CHARS]
    return len(_GERMAN_WORDS.findall(begin)) > len(_ENGLISH_WORDS.findall(begin))


def feedback(prompt: str, random: Random, tokens: int) -> list[str]:
    """Write feedback of exactly `tokens` tokens; a token is a word with the space before it.

    The feedback consists of whole sentences. When no further sentence fits, words are halved until
    the number is reached; real tokens are parts of words, too. If even the shortest sentence is too
    long, the feedback is the beginning of a sentence.
    """
    sentences = _GERMAN if is_german(prompt) else _ENGLISH
    # Praise comes first, as in real feedback.
    order = [random.choice(sentences[::2]), *random.sample(sentences, len(sentences))]
    words: list[str] = []
    fits = True
    while fits:
        fits = False
        for sentence in order:
            piece = [f" {word}" for word in sentence.split(" ")]
            if len(words) + len(piece) <= tokens and piece[-1:] != words[-1:]:
                words += piece
                fits = True
    if not words:
        words = [f" {word}" for word in order[0].split(" ")][:tokens]
        words[-1] = words[-1].rstrip(".,;") + "."
    while len(words) < tokens:
        longest = max(range(len(words)), key=lambda index: len(words[index]))
        half = len(words[longest]) // 2
        words[longest : longest + 1] = [words[longest][:half], words[longest][half:]]
    words[0] = words[0][1:]
    return words


def sentence(prompt: str, random: Random) -> str:
    return random.choice(_GERMAN if is_german(prompt) else _ENGLISH)


# A schema that refers to itself would never end.
_DEEPEST = 8
_MOST_ITEMS = 3
_RANGE = 9  # numbers without bounds lie between 1 and 10


class _Writer:
    """Generates values for a JSON schema, like a model that is bound by a grammar.

    It writes `null` for a part of the schema that it does not understand.
    """

    def __init__(self, root: Any, prompt: str, random: Random) -> None:
        self._root, self._prompt, self._random = root, prompt, random

    def value(self, schema: Any, depth: int) -> Any:
        if not isinstance(schema, Mapping) or depth > _DEEPEST:
            return None
        if "$ref" in schema:
            return self.value(self._referred(str(schema["$ref"])), depth + 1)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self._random.choice(list(schema["enum"]))
        for choice in ("anyOf", "oneOf", "allOf"):
            if schema.get(choice):
                return self.value(schema[choice][0], depth + 1)
        return self._typed(schema, depth)

    def _typed(self, schema: Mapping[str, Any], depth: int) -> Any:
        kind = schema.get("type", "object" if "properties" in schema else None)
        match kind[0] if isinstance(kind, list) and kind else kind:
            case "object":
                parts = schema.get("properties", {}).items()
                return {name: self.value(part, depth + 1) for name, part in parts}
            case "array":
                return self._array(schema, depth)
            case "string":
                text = sentence(self._prompt, self._random)[: schema.get("maxLength")]
                return text.ljust(schema.get("minLength", 0), ".")
            case "integer":
                low, high = _bounds(schema, 1)
                least = math.ceil(low)
                return self._random.randint(least, max(least, math.floor(high)))
            case "number":
                low, high = _bounds(schema, 0.01)
                return min(max(round(self._random.uniform(low, high), 2), low), high)
            case "boolean":
                return self._random.choice([True, False])
            case _:
                return None

    def _array(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        least = schema.get("minItems", 1)
        count = self._random.randint(least, max(least, schema.get("maxItems", _MOST_ITEMS)))
        part = schema.get("items", {"type": "string"})
        return [self.value(part, depth + 1) for _ in range(count)]

    def _referred(self, reference: str) -> Any:
        """Resolve a reference like `#/$defs/Name` in the same document."""
        value = self._root
        for part in reference.removeprefix("#").strip("/").split("/"):
            value = value.get(part) if part and isinstance(value, Mapping) else value
        return value


def _bounds(schema: Mapping[str, Any], inward: float) -> tuple[float, float]:
    """Return the least and the greatest value; `inward`: by how much exclusive bounds move."""
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is None and "exclusiveMinimum" in schema:
        low = schema["exclusiveMinimum"] + inward
    if high is None and "exclusiveMaximum" in schema:
        high = schema["exclusiveMaximum"] - inward
    if low is None:
        low = 1 if high is None or high >= 1 else high - _RANGE
    return low, max(low, low + _RANGE if high is None else high)
