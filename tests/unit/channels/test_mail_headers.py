"""Headers of mails, read back by others: addresses, words and links arrive as they were, however long."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from deliveryd.channels.mail.mail_headers import Mailbox
from deliveryd.channels.mail.mime import Letter, compose
from deliveryd.model import SECOND

MESSAGES = 10_000

NAMES = (
    "Shop", "Dr. Max Muster", 'Jo "the boss" O\'Neil', "a\\b", "Ádá, Countess",
    "Müller & Söhne GmbH", "株式会社",
    "A", "Отдел уведомлений", "1,2;3:4", "<b>", "(a comment)", "a@b", "[x]", "x" * 200, "é" * 150,
    "🎉 Fest", "'q'",
    "Customer service of the bank, department of payments, group for messages, at Frankfurt, third floor",
)  # fmt: skip
WORDS = (
    "Your", "code", "is", "1234,", "Grüße", "из", "банка", "=", "?=", "=_", "_", "a:b", "\u00a0", "日本語",
    "🎉", "https://example.com/" + "path/" * 30, "x" * 120, '"quoted,', 'words"', "<tag>", "%41",
    "\\", ".", "(c)",
    "e\u0301",
)  # fmt: skip
UNFIT = frozenset(',;@<>"')
LOCALS = ("ada", "a.b+c", "o'neil", "x_y-z", "first.last", "a" * 64)
DOMAINS = ("example.com", "mail.shop.example", "xn--bcher-kva.example", "very-long-name." * 6 + "example")
LINKS = (
    "<https://example.com/unsubscribe?id=1&list=news>",
    f"<https://example.com/unsubscribe/{'0123456789abcdef' * 12}?a=%41&b==?utf-8?q?x?=>",
    f"<mailto:unsubscribe@example.com?subject={'unsubscribe%20' * 8}>, <https://example.com/{'u' * 90}>",
    '"a long, quoted name with many words, which goes on for more than one line" <list.example.com>',
)


def mailbox(draw: random.Random) -> Mailbox:
    """One address, half of them with a name."""
    name = draw.choice(NAMES) if draw.random() < 0.5 else ""
    if draw.random() < 0.2:
        name = " ".join(draw.choice(NAMES) for _ in range(3))[:250].strip()
    return Mailbox(name, draw.choice(LOCALS), draw.choice(DOMAINS))


def letters() -> list[Letter]:
    """Letters that are the same in each run."""
    draw = random.Random(5322)
    return [
        Letter(
            key=f"{number}-{draw.getrandbits(64):x}",
            at=(1_700_000_000 + number) * SECOND,
            message_id=number,
            sender=mailbox(draw),
            recipient=mailbox(draw),
            reply_to=mailbox(draw) if draw.random() < 0.3 else None,
            headers={"List-Unsubscribe": draw.choice(LINKS)},
            fields={
                "subject": draw.choice((" ", " ", "  "))
                .join(draw.choices(WORDS, k=draw.randrange(1, 12)))
                .strip(),
                "body": draw.choice(
                    ("text", "a\0b\x1b", "ü" * 3000, "x" * 3000, "<p>" + "y" * 3000 + "</p>")
                ),
            },
        )
        for number in range(MESSAGES)
    ]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Letter], Path]:
    """The letters, and a folder with each mail as its receiver stores it."""
    folder = tmp_path_factory.mktemp("mails")
    drawn = letters()
    for number, letter in enumerate(drawn):
        content = compose(letter).content()
        (folder / f"{number:05}").write_bytes(re.sub(rb"(?m)^\.\.", b".", content).replace(b"\r\n", b"\n"))
    return drawn, folder


PERL = r"""
use strict; use warnings; use JSON::PP; use Email::MIME; use Email::Address::XS qw(parse_email_addresses);
my $json = JSON::PP->new->utf8->canonical;
for my $path (sort glob("$ARGV[0]/*")) {
    open my $file, '<:raw', $path or die $!;
    local $/; my $mail = Email::MIME->new(<$file>);
    my %found = (Subject => $mail->header_str('Subject'), link => $mail->header_raw('List-Unsubscribe'));
    for my $name (qw(From To Reply-To)) {
        my $raw = $mail->header_raw($name);
        next unless defined $raw;
        my @read = parse_email_addresses($raw);
        $found{$name} = [map {[Email::MIME::Encode::mime_decode($_->phrase // ''), $_->address]} @read];
    }
    my @parts = map { $_->body_str } $mail->subparts ? $mail->subparts : $mail;
    print $json->encode({%found, body => $parts[-1]}), "\n";
}
"""


def has_email_mime() -> bool:
    """Whether Perl and its module are there."""
    if shutil.which("perl") is None:
        return False
    return (
        subprocess.run(["perl", "-MEmail::MIME", "-e", "1"], capture_output=True, check=False).returncode == 0
    )


@pytest.mark.slow
@pytest.mark.skipif(
    not has_email_mime(), reason="needs Perl's Email::MIME (apt-get install libemail-mime-perl)"
)
def test_email_mime_reads_what_was_written(written: tuple[list[Letter], Path]) -> None:
    """One address each with its name, the subject, the link and the body, of 10,000 mails."""
    drawn, folder = written
    perl = subprocess.run(
        ["perl", "-e", PERL, str(folder)],
        capture_output=True, check=True, encoding="utf-8",
    )  # fmt: skip
    lines = perl.stdout.splitlines()
    assert len(lines) == MESSAGES
    for letter, line in zip(drawn, lines, strict=True):
        found = json.loads(line)
        addresses = {"From": letter.sender, "To": letter.recipient, "Reply-To": letter.reply_to}
        expected = {name: [[box.display, box.address]] for name, box in addresses.items() if box is not None}
        assert {name: found[name] for name in expected} == expected
        assert found["Subject"] == letter.fields["subject"]
        assert re.sub(r"\s+", " ", found["link"]) == letter.headers["List-Unsubscribe"]
        assert found["body"].rstrip("\r\n") == letter.fields["body"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("maddr") is None, reason="needs mblaze (apt-get install mblaze)")
def test_mblaze_reads_what_was_written(written: tuple[list[Letter], Path]) -> None:
    """The same by a reader in C: each subject, and the one address where no name looks like several."""
    drawn, folder = written

    def shown(command: str, chosen: list[Letter]) -> list[str]:
        paths = "".join(f"{folder}/{letter.message_id:05}\n" for letter in chosen)
        run = subprocess.run(command.split(), input=paths, capture_output=True, check=True, encoding="utf-8")
        return run.stdout.splitlines()

    assert shown("mhdr -d -h subject", drawn) == [letter.fields["subject"] for letter in drawn]
    boxes = {"from": [each.sender for each in drawn], "to": [each.recipient for each in drawn]}
    for name, each in boxes.items():
        # It decodes names before it looks for addresses.
        plain = [at for at, box in enumerate(each) if box.display.isascii() or not UNFIT & set(box.display)]
        assert len(plain) > MESSAGES / 2
        found = shown(f"maddr -a -h {name}", [drawn[at] for at in plain])
        assert found == [each[at].address for at in plain]


def test_every_line_has_a_length_that_servers_take() -> None:
    """At most 998 octets, in headers and bodies, and neither NUL nor another control (RFC 5322 2.1.1)."""
    for letter in letters()[:500]:
        lines = compose(letter).content().split(b"\r\n")
        assert max(map(len, lines)) <= 998
        assert not re.search(rb"[^\t -\xff]", b"".join(lines))


@pytest.mark.slow
def test_encoded_words_have_a_length_that_readers_take() -> None:
    """At most 75 characters each, and 76 on a line that has one (RFC 2047, 2), whatever follows on it."""
    for letter in letters()[:2000]:
        head = compose(letter).content().partition(b"\r\n\r\n")[0].decode()
        assert max(map(len, re.findall(r"=\?utf-8\?[bq]\?[^?]*\?=", head)), default=0) <= 75
        assert max((len(line) for line in head.split("\r\n") if " =?utf-8?" in line), default=0) <= 76


@pytest.mark.parametrize("value", LINKS)
def test_links_and_quoted_strings_are_neither_encoded_nor_cut(value: str) -> None:
    """A header that lists links has them as they were, a line each where they are long."""
    letter = letters()[0]._replace(headers={"List-Unsubscribe": value})
    content = compose(letter).content().decode()
    for part in re.findall(r'<[^>]*>|"[^"]*"', value):
        assert part in content
