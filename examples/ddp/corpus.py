"""The text that train.py learns: sentences of a small grammar, the same for the same seed on every version of Python.

`python corpus.py` prints it.
"""

import random
import re

SEED = 1
CHARACTERS = 27_000
LINES_PER_PARAGRAPH = 12
#: The expansions of each symbol. A line of text is an expansion of LINE in which all symbols are expanded.
GRAMMAR: dict[str, tuple[str, ...]] = {
    name: tuple(expansions.split(" | "))
    for name, expansions in {
        "LINE": (
            "CLAUSE. | CLAUSE. | CLAUSE, and CLAUSE. | TIME CLAUSE. | TIME CLAUSE, but CLAUSE. | CLAUSE, "
            "because CLAUSE."
        ),
        "CLAUSE": "SINGULAR ACTs OBJECT | PLURAL ACT OBJECT | SINGULAR ACTs OBJECT PLACE | PLURAL ACT OBJECT PLACE",
        "SINGULAR": "the PERSON | the PERSON | every QUALITY PERSON | the QUALITY PERSON | one PERSON PLACE",
        "PLURAL": "NUMBER PERSONs | the NUMBER PERSONs | many QUALITY PERSONs",
        "OBJECT": "the THING | the QUALITY THING | NUMBER THINGs | NUMBER QUALITY THINGs | all THINGs of the PERSON",
        "PERSON": (
            "baker | captain | carpenter | clerk | cook | diver | doctor | farmer | gardener | guard | miner | "
            "painter | pilot | printer | sailor | shepherd | singer | smith | tailor | teacher | traveler | "
            "weaver"
        ),
        "ACT": (
            "borrow | clean | collect | count | cover | draw | examine | find | follow | forget | gather | "
            "guard | hide | keep | lift | measure | move | need | paint | recognize | repair | return | sell | "
            "show | trade | want | weigh"
        ),
        "QUALITY": (
            "brave | bright | calm | careful | clever | cold | curious | friendly | gentle | gray | green | "
            "heavy | honest | large | narrow | old | patient | plain | proud | quiet | red | round | slow | "
            "small | tall | young"
        ),
        "THING": (
            "apple | basket | bell | boat | book | bottle | bridge | bucket | button | cart | chair | clock | "
            "coat | coin | door | drum | engine | flag | garden | hammer | kettle | key | ladder | lamp | "
            "letter | map | mirror | rope | sail | stone | table | wheel | window"
        ),
        "PLACE": (
            "PREPOSITION the mill | PREPOSITION the river | PREPOSITION the market | PREPOSITION the tower | "
            "PREPOSITION the old wall | PREPOSITION the school | PREPOSITION the forest | PREPOSITION the "
            "harbor"
        ),
        "PREPOSITION": "behind | near | beside | below | in front of",
        "TIME": (
            "In the morning | At noon | After the storm | Before dinner | In winter | Every summer | On the last day"
        ),
        "NUMBER": "two | three | four | five | six | seven | eight | nine | ten | twelve | twenty",
    }.items()
}


def generate_text(seed: int = SEED, characters: int = CHARACTERS) -> str:
    """Return this many characters of paragraphs. The last line may be incomplete."""
    # Python guarantees the sequence of random() for a seed, but not those of choice() and shuffle().
    draw = random.Random(seed).random

    def expand(symbol: re.Match[str]) -> str:
        expansions = GRAMMAR[symbol[0]]
        return re.sub("[A-Z]{2,}", expand, expansions[int(draw() * len(expansions))])

    text = ""
    while len(text) < characters:
        for _ in range(LINES_PER_PARAGRAPH):
            line = re.sub("[A-Z]{2,}", expand, "LINE")
            text += line[0].upper() + line[1:] + "\n"
        text += "\n"
    return text[:characters]


if __name__ == "__main__":
    print(generate_text(), end="")
