"""Frequent function words by language, for Gopher's rule that running text holds at least two of them.

English has Gopher's own eight (arXiv 2112.11446). The rule says nothing about a language without a list here and is
skipped there.
"""

STOP_WORDS: dict[str, frozenset[str]] = {
    "en": frozenset("the be to of and that have with".split()),
    "de": frozenset("der die das und ist von mit in den zu".split()),
    "es": frozenset("el la de y que en los un por con".split()),
    "fr": frozenset("le la les de et est un une des dans".split()),
    "it": frozenset("il la di e che un per in con del".split()),
    "nl": frozenset("de het een en van in is dat op met".split()),
    "pt": frozenset("o a de e que do da em um para".split()),
    "ru": frozenset(
        "\u0438 \u0432 \u043d\u0435 \u043d\u0430 \u0447\u0442\u043e \u0441 \u043f\u043e \u043a\u0430\u043a".split()
    ),
    "sv": frozenset("och att det som en i av p\u00e5 \u00e4r f\u00f6r".split()),
}
