"""PII masking: C2 of the bug log, validators, and what must hold for every text."""

import pytest
from datatrove.data import Document
from hypothesis import given
from hypothesis import strategies as st

from hf_pretrain.corpus.config_filters import PII_TYPES, PIIConfig
from hf_pretrain.corpus.filters.pii import PLACEHOLDERS, PIIFormatter
from hf_pretrain.corpus.filters.pii_patterns import iban_valid, luhn_valid
from hf_pretrain.utils.errors import UserError


MASK = PIIFormatter().format


@pytest.mark.parametrize(
    "text",
    [
        "libfoo 2.13.0.1",
        "section 4.12.2.10",
        "section 3.11.0.25",
        "1234.56.78.90",
        "999.8.8.8.8",
        "1.2.3.4.5",
        "8.8.8.8888",
        "pkg==2.13.0.1",
        "version 192.0.43.10",
        "1747731000",
        "v20260806T005029733Z",
        "2024-01-02 12:30:45",
        "git@github.com:org/repo.git",
        "ssh://git@example.org/x",
        "aa:bb:cc:dd:ee:ff",
        "std::vector a::b [1::2]",
        "x@y.T and W@x.mean()",
        "192.168.0.1 and 127.0.0.1",
        "2001:db8::1",
        "4111 1111 1111 1112",
        "GB82 WEST 1234 5698 7654 33",
        "ISBN 978-0-306-40615-7",
        "sk-learn-is-a-library-for-python",
        "3.14159265358979 10.1145/3292500.3330701",
        "a bug fix to 3.7.6.1",
        "getty@tty1.service backup@weekly.timer",
        "Git versions prior to 1.5.1.2 and later",
        "multicast group 239.1.1.1 and ajp://1.2.3.5:8009",
        "from -2147483648 to +2147483647 or +9223372036854775807",
        "8b 5d 08 83 3c 01 00 00 89 44 24 14",
        "f | 26 00 00 00 00 00 00 00 | t",
        "00:01:02:03:04:05 ff:ff:ff:ff:ff:ff 01:00:5e:00:00:fb",
        "sha1 aa:0b:cc:0d:ee:0f:11:02:33:04:55:06:77:08:99:0a",
        "12:34:56 12-11-10-09-08-07",
        "postgresql://user:secret@localhost/mydb smtp://username@mail.example.org",
        "token = get_token_from_environment_or_default()",
        "password: correct-horse-battery-staple",
        "api_key = 'your-api-key-goes-here'",
        "auth: 123e4567-e89b-12d3-a456-426614174000",
        "access_key = /usr/share/doc/packages/readme2.1.txt",
        "Tel: 2002-07-19",
        "fax 12345",
        "-----BEGIN PGP PUBLIC KEY BLOCK-----",
    ],
)
def test_look_alikes_stay(text):
    assert MASK(text) == text


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("mail bob.smith+x@corp.example.co.uk.", "mail <EMAIL>."),
        ("from 8.8.8.8", "from <IPV4>"),
        ("server 8.8.4.4:53", "server <IPV4>:53"),
        ("seen 212.58.244.20 today", "seen <IPV4> today"),
        ("2606:4700:4700::1111", "<IPV6>"),
        ("call +1 415 555 2671", "call <PHONE>"),
        ("+33 1 23 45 67 89", "<PHONE>"),
        ("(415) 555-2671", "<PHONE>"),
        ("01 23 45 67 89", "<PHONE>"),
        ("https://alice:s3@host.example/x", "https://<USERINFO>@host.example/x"),
        ("078-05-1120", "<SSN>"),
        ("4111 1111 1111 1111", "<CARD>"),
        ("378282246310005", "<CARD>"),
        ("GB82 WEST 1234 5698 7654 32 OK", "<IBAN> OK"),
        ("DE89370400440532013000", "<IBAN>"),
        ("AKIAIOSFODNN7EXAMPLE", "<SECRET>"),
        ("token hf_" + "a1B2" * 9, "token <SECRET>"),
        ("ext 800-933-6632x6", "ext <PHONE>"),
        ("703-724-0118W 703-995-0407Fax", "<PHONE>W <PHONE>Fax"),
        ("Phone: + 353 (01) 4042840", "Phone: <PHONE>"),
        ("Tel : 086-8888975 Fax: 852 23873058", "Tel : <PHONE> Fax: <PHONE>"),
        ("(760)\n 731-7785", "<PHONE>"),
        ("x.asp?em=JM@corp.com&l=1", "x.asp?em=<EMAIL>&l=1"),
        ("%EM%JM@CORP.COM%/EM%", "%EM%<EMAIL>%/EM%"),
        ("addr 00:17:42:8a:b4:05 up", "addr <MAC> up"),
        ("00-1B-21-3C-9D-F8", "<MAC>"),
        ("upgraded the server at 203.0.114.7:22", "upgraded the server at <IPV4>:22"),
        ('api_key = "q7Rk2mZx9LpV4tYb8NcW"', 'api_key = "<SECRET>"'),
        ("Authorization: Bearer 9f86d081884c7d659a2feaa0c55ad015", "Authorization: Bearer <SECRET>"),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYz9sTw2pQe4", "AWS_SECRET_ACCESS_KEY=<SECRET>"),
        ("-----BEGIN PGP PRIVATE KEY BLOCK-----\nx\n-----END PGP PRIVATE KEY BLOCK-----", "<SECRET>"),
        ("-----BEGIN PRIVATE KEY-----\n" + "MIIEvQIBADANBgkq\n" * 3 + "cut off", "<SECRET>\ncut off"),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----", "<SECRET>"),
    ],
)
def test_personal_data_is_masked(text, masked):
    assert MASK(text) == masked


def test_scp_addresses_and_private_addresses_by_policy():
    strict = PIIFormatter(PIIConfig(mask_scp_addresses=True, public_ips_only=False)).format
    assert strict("git@github.com:org/repo.git") == "<EMAIL>:org/repo.git"
    assert strict("host 192.168.0.1") == "host <IPV4>"


def test_only_the_types_asked_for():
    assert PIIFormatter(PIIConfig(types=["ssn"])).format("a@b.org 078-05-1120") == "a@b.org <SSN>"
    with pytest.raises(UserError, match="Did you mean 'email'"):
        PIIConfig(types=["emial"])


def test_validators():
    assert luhn_valid("79927398713")
    assert not luhn_valid("79927398710")
    assert iban_valid("GB82WEST12345698765432")
    assert not iban_valid("GB82WEST1234569876543")  # one digit short
    assert not iban_valid("ZZ82WEST12345698765432")


def test_every_type_has_a_placeholder():
    assert set(PLACEHOLDERS) == set(PII_TYPES)


PIECES = [
    "00:17:42:8a:b4:05",
    "Tel: 086-8888975",
    "api_key=q7Rk2mZx9LpV4tYb8NcW",
    "x",
    "=",
    "bob@example.org",
    "8.8.8.8",
    "host ",
    "https://u:p@",
    "+1 415 555 2671",
    "4111 1111 1111 1111",
    "2606:4700:4700::1111",
    "078-05-1120",
    " ",
    "-",
    ":",
    "1",
    "a",
    "GB82WEST12345698765432",
    "/",
]


@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join))
def test_masking_twice_changes_nothing_more(text):
    once = MASK(text)
    assert MASK(once) == once


def test_the_same_address_is_the_same_in_any_order_and_counts_are_kept():
    texts = ["mail a@example.org and b@example.org", "mail a@example.org"]
    forward, backward = PIIFormatter(), PIIFormatter()
    first = [doc.text for doc in forward([Document(text, str(i)) for i, text in enumerate(texts)])]
    second = [doc.text for doc in backward([Document(text, str(i)) for i, text in enumerate(reversed(texts))])]
    assert first == list(reversed(second)) == ["mail <EMAIL> and <EMAIL>", "mail <EMAIL>"]
    assert forward.stats["pii_email"].total == 3
    assert forward.stats["pii_documents"].total == 2


def test_metadata_counts_add_up_over_two_passes():
    step = PIIFormatter()
    (doc,) = step([Document("078-05-1120", "a", metadata={"pii": {"ssn": 1, "email": 2}})])
    assert doc.metadata["pii"] == {"email": 2, "ssn": 2}


def test_skipped_domains_are_left_alone():
    step = PIIFormatter(PIIConfig(skip_domains=["code"]))
    (doc,) = step([Document("a@example.org", "a", metadata={"domain": "code"})])
    assert doc.text == "a@example.org"


def test_long_text_without_data_is_quick_work():
    # Quadratic patterns would take minutes here.
    for text in ("a." * 50_000 + "@", "1 " * 50_000, "1-" * 50_000, ":" * 50_000, "A1" * 50_000, "+1 " * 30_000):
        assert MASK(text) == text


def digits_with_check(body: str) -> str:
    return next(body + check for check in "0123456789" if luhn_valid(body + check))


@given(st.integers(0, 10**14 - 1), st.sampled_from(["", " ", "-"]))
def test_every_card_number_is_masked_and_no_other(number, separator):
    digits = digits_with_check(f"4{number:014d}")
    groups = separator.join(digits[place : place + 4] for place in range(0, 16, 4))
    assert MASK(f"pay {groups} now") == "pay <CARD> now"
    wrong = digits[:-1] + str((int(digits[-1]) + 1) % 10)
    assert "<CARD>" not in MASK(f"pay {wrong} now")


@given(st.integers(0, 10**18 - 1))
def test_every_german_iban_is_masked_and_no_other(number):
    account = f"{number:018d}"
    check = 98 - int(account + "131400") % 97
    iban = f"DE{check:02d}{account}"
    assert iban_valid(iban)
    grouped = " ".join(iban[place : place + 4] for place in range(0, 22, 4))
    assert MASK(f"to {iban}.") == "to <IBAN>."
    assert MASK(f"to {grouped}, please") == "to <IBAN>, please"
    wrong = check + 1 if check < 98 else check - 1
    assert "<IBAN>" not in MASK(f"DE{wrong:02d}{account}")


@given(st.binary(min_size=4, max_size=4))
def test_every_public_address_is_masked_after_a_word_that_says_so(octets):
    import ipaddress

    address = ipaddress.ip_address(octets)
    masked = MASK(f"ping host {address} twice")
    excepted = not address.is_global or address.is_multicast or octets[:3] in (b"\1\2\3", b"\x6f\x16\x21")
    assert masked == "ping host <IPV4> twice" or excepted
    assert MASK(f"version {address} is out") == f"version {address} is out"


@given(st.binary(min_size=6, max_size=6))
def test_every_single_hardware_address_is_masked(pairs):
    text = ":".join(f"{pair:02x}" for pair in pairs)
    masked = MASK(f"link {text} up")
    assert masked in (f"link {text} up", "link <MAC> up")
    assert masked == "link <MAC> up" or pairs[0] & 1 or len(set(pairs)) < 3 or text.startswith(("00:", "aa:", "11:"))


@given(st.text(max_size=200))
def test_any_text_is_masked_without_fault_and_for_good(text):
    once, counts = PIIFormatter().mask(text)
    assert MASK(once) == once
    assert bool(counts) == (once != text)


def test_too_many_findings_drop_the_document_and_are_counted():
    step = PIIFormatter(PIIConfig(max_findings=3))
    many = Document("a@b.org b@b.org c@b.org 078-05-1120", "many")
    few = Document("a@b.org", "few")
    assert [doc.id for doc in step([many, few])] == ["few"]
    assert many.metadata["filter_reason"] == "pii_email"
    assert step.stats["dropped_pii_email"].total == 1 and step.stats["forwarded"].total == 1
    with pytest.raises(UserError, match="max_findings = -1"):
        PIIConfig(max_findings=-1)
