"""What the model says: feedback on a piece of writing, in the language of the prompt.

The same prompt gets the same words, so that a test can ask twice and compare.
"""

import re
from functools import lru_cache
from random import Random

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
# Enough to tell a language by; a prompt may be a book.
_LANGUAGE_CHARS = 2_000


@lru_cache(maxsize=1_024)
def is_german(prompt: str) -> bool:
    """By its most common words; in doubt it is English."""
    begin = prompt[:_LANGUAGE_CHARS]
    return len(_GERMAN_WORDS.findall(begin)) > len(_ENGLISH_WORDS.findall(begin))


def feedback(prompt: str, random: Random, tokens: int) -> list[str]:
    """So many tokens of feedback in whole sentences; a token is a word with the space before it.

    What is left when no further sentence fits goes into halves of words, as real tokens are. Fewer
    tokens than the shortest sentence has are the beginning of one.
    """
    sentences = _GERMAN if is_german(prompt) else _ENGLISH
    # Something good first, as one would say it.
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


def refusal(prompt: str) -> str:
    return _REFUSALS[is_german(prompt)]
