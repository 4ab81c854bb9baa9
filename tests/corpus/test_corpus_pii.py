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
