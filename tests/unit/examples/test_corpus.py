"""The text of examples/ddp/corpus.py: one text for a seed, with words and a structure that a small model can learn."""

import hashlib
import math
import random
import re
from collections import Counter

from examples.ddp.corpus import generate_text


def bits_per_character(text: str, context: int) -> float:
    """The entropy of a character after the characters before it."""
    windows = Counter(text[start : start + context + 1] for start in range(len(text) - context))
    contexts = Counter(text[start : start + context] for start in range(len(text) - context))
    total = sum(windows.values())
    return -sum(n / total * math.log2(n / contexts[window[:-1]]) for window, n in windows.items())


def test_a_seed_has_one_text():
    assert generate_text(2, 500) == generate_text(2, 500)
    assert generate_text(2, 500) != generate_text(3, 500)


def test_the_text_of_the_example_is_this_one():
    # given the seed and the length of the example; when its text is generated on any version of Python
    text = generate_text()
    # then it is the text whose losses the example's README shows
    assert len(text) == 27000
    assert text.startswith("Many curious miners hide ten calm apples beside the forest.\nIn the morning many cold ")
    assert hashlib.sha256(text.encode()).hexdigest() == (
        "a6cb25f75e8527bc2bc832c44256f9eea7647e7510697275757c3c0f2aac3cc6"
    )


def test_generating_leaves_the_random_numbers_of_the_training_alone():
    random.seed(7)
    expected = random.random()
    random.seed(7)
    generate_text(1, 500)
    assert random.random() == expected


def test_it_has_many_words_and_no_symbol_of_the_grammar():
    text = generate_text()
    assert len(set(re.findall("[a-z]+", text.lower()))) >= 200
    assert not re.search("[A-Z]{2}", text)


def test_the_next_word_follows_from_the_previous_ones():
    text = generate_text()
    assert bits_per_character(text, 0) > 4.0
    assert bits_per_character(text, 4) < 1.5


def test_verbs_agree_with_their_subjects():
    # given the sentences whose subject is a number of persons, and those whose subject is every person of a kind
    text = generate_text()
    plural = re.findall(r"(?:and|but|because) (?:two|four|six|seven|nine|ten|twelve) (\w+) (\w+)", text)
    singular = re.findall(r"\bevery \w+ (\w+) (\w+)", text)
    # then noun and verb are plural in the former, and singular in the latter
    assert len(plural) > 10
    assert len(singular) > 20
    assert all(noun.endswith("s") and not verb.endswith("s") for noun, verb in plural)
    assert all(not noun.endswith("s") and verb.endswith("s") for noun, verb in singular)


def test_the_test_split_has_no_word_that_the_training_split_lacks():
    text = generate_text()
    cut = len(text) * 9 // 10
    words = set(re.findall(r"\b[a-z]+(?=[ .,])", text[cut:].partition(" ")[2]))
    assert len(words) > 100
    assert words <= set(re.findall("[a-z]+", text[:cut]))
