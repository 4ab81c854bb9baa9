"""Profiles of languages: what is shipped, what a file may say, what a reference corpus gives."""

import json
import pydoc_data.topics

import pytest
from datatrove.data import Document

from hf_pretrain.corpus.config_filters import FilterConfig
from hf_pretrain.corpus.filters.gopher_quality import QualityFilter
from hf_pretrain.corpus.filters.heuristics import build_filters
from hf_pretrain.corpus.filters.profiles import LanguageProfile, derive_profile, load_profiles, save_profiles
from hf_pretrain.corpus.filters.words import FastWordTokenizer
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.strict import build


SHIPPED = load_profiles()
SENTENCES = {
    "de": "Der Hund liegt in dem Garten und schaut auf die Stra\u00dfe, weil er von dort die Kinder sehen kann",
    "fr": "Le chien dort dans le jardin de la maison et il regarde les enfants qui jouent sur la route",
    "es": "El perro duerme en el jard\u00edn de la casa y mira a los ni\u00f1os que juegan por la calle",
    "pt": "O cachorro dorme no jardim da casa e olha para as crian\u00e7as que brincam na rua com uma bola",
    "ru": "\u0421\u043e\u0431\u0430\u043a\u0430 \u0441\u043f\u0438\u0442 \u0432 \u0441\u0430\u0434\u0443 \u0438 "
    "\u0441\u043c\u043e\u0442\u0440\u0438\u0442 \u043d\u0430 \u0434\u0435\u0442\u0435\u0439 \u0438\u0437 "
    "\u043e\u043a\u043d\u0430",
    "zh": "\u6211\u5728\u56fe\u4e66\u9986"
    "\u8bfb\u4e86\u4e00\u672c\u5173\u4e8e\u5386\u53f2\u7684\u4e66\u548c\u5730\u56fe",
    "ja": "\u79c1\u306f\u56f3\u66f8\u9928\u3067\u6b74\u53f2\u306e\u672c\u3092\u8aad\u3093\u3067\u3044\u307e\u3059",
    "ar": "\u0630\u0647\u0628 \u0627\u0644\u0631\u062c\u0644 \u0625\u0644\u0649 "
    "\u0627\u0644\u0645\u062f\u064a\u0646\u0629"
    " \u0645\u0646 \u0627\u0644\u0642\u0631\u064a\u0629 \u0645\u0639 \u0627\u0628\u0646\u0647",
    "hi": "\u0930\u093e\u092e \u0915\u0947 \u0918\u0930 \u092e\u0947\u0902 \u090f\u0915 "
    "\u0915\u0941\u0924\u094d\u0924\u093e \u0939\u0948 \u0914\u0930 \u092c\u093f\u0932\u094d\u0932\u0940 \u092d\u0940",
    "en": "The dog sleeps in the garden of the house and looks at the children that play with a ball",
}


@pytest.mark.parametrize("language", sorted(SENTENCES))
def test_running_text_passes_the_rules_of_its_language(language):
    rules = {"domains": {"web": {"min_words": 5, "c4": False, "fineweb": "off"}}}
    for step in build_filters(build(FilterConfig, rules, "test"), "web"):
        assert step.filter(Document(SENTENCES[language], "id", metadata={"language": language})) is True


def test_another_language_lacks_the_stop_words():
    settings = {"min_doc_words": 3, "max_non_alpha_words_ratio": 0, "min_avg_word_length": 0, "max_avg_word_length": 0}
    step = QualityFilter(language=FastWordTokenizer(), **settings)
    for language, text in SENTENCES.items():
        if language not in ("en", "zh", "ja"):
            document = Document(text, "id", metadata={"language": "en"})
            assert step.filter(document) == (False, "gopher_enough_stop_words"), language


def test_shipped_profiles_say_where_they_are_from():
    assert {"en", "de", "fr", "es", "pt", "ru", "zh", "ja", "ar", "hi"} <= set(SHIPPED)
    for profile in SHIPPED.values():
        assert profile.source
        # Korean particles and Thai syllables are no words of a tokenizer without a dictionary: no rule there.
        assert len(profile.stop_words) >= 8 or profile.language in ("ko", "th")
        assert profile.stop_words == [word.lower() for word in profile.stop_words]
    assert SHIPPED["en"].stop_words == "the be to of and that have with".split()
    assert SHIPPED["en"] == LanguageProfile("en", SHIPPED["en"].stop_words, source=SHIPPED["en"].source)


def test_derived_english_profile_has_english_stop_words_and_lets_english_pass():
    texts = [text for text in pydoc_data.topics.topics.values() if len(text) > 300]
    profile = derive_profile(texts, "eng", tail=0.05, scores=[0.9, 0.99, 0.95], source="topics")
    assert profile.language == "en"
    assert {"the", "of", "to", "and", "is"} <= set(profile.stop_words)
    assert all(word.isalpha() for word in profile.stop_words)
    assert 3 < profile.min_avg_word_length < profile.max_avg_word_length < 8
    assert profile.min_language_score == pytest.approx(0.9, abs=0.03)
    assert dict(map(tuple, profile.dup_n_grams))[5] >= 0.15
    mean = [profile.min_alpha_ratio <= 1, profile.line_punct_ratio < 0.5]
    assert all(mean)


def test_tails_are_quantiles():
    texts = ["word " * 10 + "x" * number for number in range(1, 101)]
    profile = derive_profile(texts, "en", tail=0.1)
    lengths = sorted((40 + number) / 11 for number in range(1, 101))
    assert profile.max_avg_word_length == pytest.approx(lengths[89], abs=0.01)
    assert profile.min_avg_word_length == pytest.approx(lengths[10], abs=0.02)


def test_a_file_of_profiles_is_put_over_the_shipped_ones(tmp_path):
    path = tmp_path / "mine.json"
    mine = LanguageProfile("mt", ["il", "li", "ta"], source="mine")
    save_profiles([mine, LanguageProfile("fr", ["le", "la"])], path)
    loaded = load_profiles(str(path))
    assert loaded["mt"] == mine
    assert loaded["fr"].stop_words == ["le", "la"]
    assert loaded["de"] == SHIPPED["de"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "no JSON"),
        ("{}", "list of profiles"),
        (json.dumps([{"language": "fr"}]), "stop_words"),
        (json.dumps([{"language": "fra", "stop_words": []}]), "write 'fr'"),
        (json.dumps([{"language": "fr", "stop_words": [], "min_alpha_ratio": 2.0}]), "allowed is 0 to 1"),
        (json.dumps([{"language": "fr", "stop_words": [], "top_n_grams": [[2.0]]}]), "write .n, share."),
        (json.dumps([{"language": "fr", "stop_words": [], "colour": 1}]), "colour"),
    ],
)
def test_wrong_files_are_one_clear_line(tmp_path, content, message):
    path = tmp_path / "profiles.json"
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        load_profiles(str(path))


def test_too_little_to_derive_from():
    with pytest.raises(UserError, match="at least 20"):
        derive_profile(["a few words"] * 5, "en")
    with pytest.raises(UserError, match="tail = 0.5"):
        derive_profile([], "en", tail=0.5)
    with pytest.raises(UserError, match=r"no\.json"):
        load_profiles("no.json")
