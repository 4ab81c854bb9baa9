"""One code a language: ISO 639-1 where there is one, else ISO 639-3.

Detectors, tokenizers and data sets disagree on codes ("fr", "fra", "fre", "fra_Latn", "fr-CA", "French"); a filter
that compares them as text drops everything and says nothing (datatrove#365, #388). Everything here is brought to one
form first, and a code that nobody knows is an error.
"""

from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message


# ISO 639-1, ISO 639-2/3 codes, English name; the first is the canonical form.
_TABLE = """
af afr Afrikaans;am amh Amharic;ar ara arb Arabic;as asm Assamese;az aze azj Azerbaijani;be bel Belarusian;bg bul
Bulgarian; bn ben Bengali;br bre Breton;bs bos Bosnian;ca cat Catalan;cs ces cze Czech;cy cym wel Welsh;da dan
Danish;de deu ger German; el ell gre Greek;en eng English;eo epo Esperanto;es spa Spanish;et est ekk Estonian;eu eus
baq Basque;fa fas per pes Persian; fi fin Finnish;fo fao Faroese;fr fra fre French;fy fry Frisian;ga gle Irish;gd gla
Gaelic;gl glg Galician;gu guj Gujarati; ha hau Hausa;he heb Hebrew;hi hin Hindi;hr hrv Croatian;ht hat Haitian;hu hun
Hungarian;hy hye arm Armenian; id ind Indonesian;ig ibo Igbo;is isl ice Icelandic;it ita Italian;ja jpn Japanese;jv jav
Javanese;ka kat geo Georgian; kk kaz Kazakh;km khm Khmer;kn kan Kannada;ko kor Korean;ku kur kmr Kurdish;ky kir
Kyrgyz;la lat Latin;lb ltz Luxembourgish; lo lao Lao;lt lit Lithuanian;lv lav lvs Latvian;mg mlg plt Malagasy;mk mkd
mac Macedonian;ml mal Malayalam;mn mon khk Mongolian; mr mar Marathi;ms msa may zsm Malay;mt mlt Maltese;my mya bur
Burmese;ne nep npi Nepali;nl nld dut Dutch;nn nno Nynorsk; no nor nob nb Norwegian;oc oci Occitan;om orm Oromo;or ori
ory Oriya;pa pan Punjabi;pl pol Polish;ps pus pbt Pashto; pt por Portuguese;qu que quy Quechua;ro ron rum Romanian;ru
rus Russian;rw kin Kinyarwanda;sa san Sanskrit;sd snd Sindhi; si sin Sinhala;sk slk slo Slovak;sl slv Slovenian;sn sna
Shona;so som Somali;sq sqi alb als Albanian;sr srp Serbian;st sot Sotho; su sun Sundanese;sv swe Swedish;sw swa swh
Swahili;ta tam Tamil;te tel Telugu;tg tgk Tajik;th tha Thai;tk tuk Turkmen; tl tgl fil Tagalog;tr tur Turkish;tt tat
Tatar;ug uig Uyghur;uk ukr Ukrainian;ur urd Urdu;uz uzb uzn Uzbek;vi vie Vietnamese; wa wln Walloon;xh xho Xhosa;yi yid
ydd Yiddish;yo yor Yoruba;zh zho chi cmn Chinese;zu zul Zulu;yue Cantonese;wuu Wu; arz Egyptian;grc AncientGreek;ltg
Latgalian;nso Pedi;kab Kabyle;an arg Aragonese;ba bak Bashkir;ln lin Lingala;lg lug Ganda;
"""

_CANONICAL: dict[str, str] = {}
_NAMES: dict[str, str] = {}
for _entry in _TABLE.replace("\n", " ").split(";"):
    if _entry.strip():
        *_codes, _name = _entry.split()
        _NAMES[_codes[0]] = _name
        for _code in [*_codes, _name.lower()]:
            _CANONICAL[_code] = _codes[0]


def canonical_language(code: str) -> str:
    """
    Bring a language code to its canonical form.

    Args:
        code (`str`): "fr", "fra", "fre", "fra_Latn", "fr-CA", "fr_FR" or "French", in any case.

    Returns:
        `str`: "fr"; an ISO 639-3 code for a language without a two-letter one.

    Raises:
        UserError: If the code is unknown; the message suggests the nearest one.
    """
    found = known_language(code)
    if found is None:
        known = sorted({*_NAMES, *_NAMES.values()})
        raise UserError(f"language = {code!r}; {unknown_name_message('language', str(code), known)}")
    return found


def known_language(code: object) -> str | None:
    """
    Canonical form of a code that may be unknown, as found in raw data.

    Args:
        code (`object`): Whatever a row says.

    Returns:
        `str` or `None`: the canonical code, `None` where the code is unknown.
    """
    if not isinstance(code, str):
        return None
    return _CANONICAL.get(code.strip().replace("-", "_").split("_")[0].lower())
